"""College Math: 2,818 exercises from nine textbooks (Tang et al. 2024, MathScale, arXiv 2403.02884)."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark("college_math", {"test": HubDataset("realtreetune/college_math", "test")})
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
