"""SVAMP: 1,000 word problems with variations that expose shallow heuristics (Patel et al. 2021, arXiv 2103.07191).

Published results of large models are on all of them, which is the split `all`.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "r1_zero"
BENCHMARK = Benchmark(
    "svamp",
    {
        "train": HubDataset("ChilleD/SVAMP", "train"),
        "test": HubDataset("ChilleD/SVAMP", "test"),
        "all": HubDataset("ChilleD/SVAMP", "train+test"),
    },
    drop=("question_concat",),
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
