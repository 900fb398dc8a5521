"""MATH as one set of 12,500 problems, train and test together: a training set for evaluation on other benchmarks.

Hendrycks et al. 2021 (arXiv 2103.03874). It contains every problem of `math:test` and `math:test500`.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark("competition_math", {"train": HubDataset("qwedsacf/competition_math", "train")})
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
