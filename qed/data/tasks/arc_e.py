"""ARC Easy: 2,376 grade-school science questions with options (Clark et al. 2018, arXiv 1803.05457)."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.arc_c import REVISION, add_options
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark(
    "arc_e",
    {
        split: HubDataset("allenai/ai2_arc", split, ("ARC-Easy",), revision=REVISION)
        for split in ("train", "validation", "test")
    },
    adapt=add_options,
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
