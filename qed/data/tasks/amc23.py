"""AMC: 40 problems of the American Mathematics Competitions of 2023, or the 83 of 2022 and 2023."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark(
    "amc23",
    {"test": HubDataset("math-ai/amc23", "test"), "2022-2023": HubDataset("AI-MO/aimo-validation-amc", "train")},
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
