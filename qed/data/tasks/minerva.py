"""Minerva Math: 272 problems from courses of science and engineering (Lewkowycz et al. 2022, arXiv 2206.14858)."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark("minerva", {"test": HubDataset("math-ai/minervamath", "test")})
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
