"""OlympiadBench: its open-ended mathematics problems in English without images (He et al. 2024, arXiv 2402.14008).

674 problems on the hub; the file of Qwen2.5-Math's evaluation has 675.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.tasks.base import Benchmark

PROMPT = "boxed"
BENCHMARK = Benchmark("olympiad", {"test": HubDataset("Hothan/OlympiadBench", "train", ("OE_TO_maths_en_COMP",))})
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
