"""MMLU: 14,042 multiple-choice questions on 57 subjects (Hendrycks et al. 2021, arXiv 2009.03300).

`dev` has five questions per subject for few-shot examples. The original files, one csv without header per subject, can
be read as well.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

REVISION = "c30699e8356da336a370243923dbaf21066bb9fe"
PROMPT = "few_shot_mmlu"
BENCHMARK = Benchmark(
    "mmlu",
    {split: HubDataset("cais/mmlu", split, ("all",), revision=REVISION) for split in ("dev", "validation", "test")},
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
