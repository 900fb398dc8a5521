"""ASDiv: 2,215 word problems with a single number as the answer (Miao et al. 2020, arXiv 2106.15772).

Answers have a unit, `9 (apples)`. Problems with several numbers, `3 (red); 4 (blue)`, are left out as usual.
"""

from __future__ import annotations

import re

from qed.data.sources.fields import SkippedRow
from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark

UNIT = re.compile(r"\(([^()]*)\)")


def split_unit(row: Row) -> Row:
    """Split the answer into its number and a column with its unit."""
    answer = str(row.get("answer", ""))
    if ";" in answer:
        raise SkippedRow("problems with several answers")
    units = UNIT.findall(answer)
    return {**row, "answer": UNIT.sub("", answer).strip(), **({"unit": units[0]} if units else {})}


PROMPT = "r1_zero"
BENCHMARK = Benchmark("asdiv", {"test": HubDataset("EleutherAI/asdiv", "validation")}, adapt=split_unit)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
