"""MMLU-Pro: 12,032 harder multiple-choice questions with up to ten options (Wang et al. 2024, arXiv 2406.01574)."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

REVISION = "b189ec765aa7ed75c8acfea42df31fdae71f97be"
PROMPT = "boxed"
BENCHMARK = Benchmark(
    "mmlu_pro",
    {split: HubDataset("TIGER-Lab/MMLU-Pro", split, revision=REVISION) for split in ("validation", "test")},
    drop=("cot_content",),
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
