"""AlpacaEval: 805 instructions without a gold answer; another program compares the outputs (Li et al. 2023).

The reference output of each is in `meta["reference"]`.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark


def select_instruction(row: Row) -> Row:
    """Move the reference output out of the columns that are used as a demonstration."""
    rest = {key: value for key, value in row.items() if key not in ("instruction", "output")}
    return {**rest, "prompt": row.get("instruction"), "reference": row.get("output")}


PROMPT = "alpaca"
JUDGED = False  # there are no gold answers: `qed evaluate` only writes the outputs for comparison
BENCHMARK = Benchmark(
    "alpaca_eval",
    {"test": HubDataset("tatsu-lab/alpaca_eval", file="alpaca_eval.json")},
    adapt=select_instruction,
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
