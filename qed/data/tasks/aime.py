"""AIME: the 30 problems of the American Invitational Mathematics Examination of 2024, and those of 2025."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark(
    "aime",
    {
        "2024": HubDataset("HuggingFaceH4/aime_2024", "train", revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a"),
        "2025": HubDataset("math-ai/aime25", "test", revision="563bb8404243c5f09de6ec262f2db674fe5bce9b"),
    },
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
