"""GSM8K: 7,473 grade-school word problems to train on and 1,319 to test with (Cobbe et al. 2021, arXiv 2110.14168)."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

REVISION = "740312add88f781978c0658806c59bc2815b9866"
PROMPT = "r1_zero"
BENCHMARK = Benchmark(
    "gsm8k",
    {split: HubDataset("openai/gsm8k", split, ("main",), revision=REVISION) for split in ("train", "test")},
    drop=tuple(f"{size}_{kind}" for size in ("6b", "175b") for kind in ("finetuning", "verification")),
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
