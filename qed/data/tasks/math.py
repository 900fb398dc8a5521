"""MATH: 7,500 competition problems to train on and 5,000 to test with, by subject and level, and the usual 500 of them.

Hendrycks et al. 2021 (arXiv 2103.03874); the 500 are those of Lightman et al. 2023 (arXiv 2305.20050). The train split
and `test500` do not overlap, but `test` contains `test500`.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
REVISION = "21a5633873b6a120296cce3e2df9d5550074f4a3"
REVISION_500 = "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"
PROMPT = "boxed"
BENCHMARK = Benchmark(
    "math",
    {
        "train": HubDataset("EleutherAI/hendrycks_math", "train", SUBJECTS, revision=REVISION),
        "test": HubDataset("EleutherAI/hendrycks_math", "test", SUBJECTS, revision=REVISION),
        "test500": HubDataset("HuggingFaceH4/MATH-500", "test", revision=REVISION_500),
    },
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
