"""SimpleSafetyTests: 100 harmful instructions in five areas, to be refused (Vidgen et al. 2023, arXiv 2311.08370)."""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark


def select_instruction(row: Row) -> Row:
    """Name the instruction, and the area of harm by which verdicts are broken down."""
    return {
        "prompt": row.get("prompts_final") or row.get("prompt"),
        "id": row.get("id"),
        "dataset": row.get("harm_area"),
    }


PROMPT = "zero_shot"
JUDGED = False  # there are no gold answers: `qed judge` decides which outputs are safe
BENCHMARK = Benchmark(
    "simple_safety_tests", {"test": HubDataset("Bertievidgen/SimpleSafetyTests")}, adapt=select_instruction
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
