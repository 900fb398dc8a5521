"""Gaokao 2023 in English: 385 problems of China's entrance examination (Liao et al. 2024, MARIO, arXiv 2401.08190).

Two of them have no separate answer; the question contains it.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark("gaokao2023en", {"test": HubDataset("MARIO-Math-Reasoning/Gaokao2023-Math-En", "train")})
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
