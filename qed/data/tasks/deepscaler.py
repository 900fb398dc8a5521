"""DeepScaleR: about 40,000 competition problems with answers, from AIME, AMC, Omni-MATH and STILL (Luo et al. 2025)."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark("deepscaler", {"train": HubDataset("agentica-org/DeepScaleR-Preview-Dataset", "train")})
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
