"""MAWPS: arithmetic word problems from several older collections (Koncel-Kedziorski et al. 2016, NAACL N16-1136).

The hub has 1,772 problems with the numbers in a separate column; the file of Qwen2.5-Math's evaluation has 2,065.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark


def fill_in_numbers(row: Row) -> Row:
    """Insert the numbers into the question, which has placeholders N_00, N_01, … on the hub."""
    if "input" in row and "target" in row:
        rest = {key: value for key, value in row.items() if key not in ("input", "target")}
        return {**rest, "question": row["input"], "answer": row["target"]}
    question = row.get("question")
    if isinstance(question, str) and isinstance(numbers := row.get("Numbers"), str):
        for index, number in enumerate(numbers.split()):
            question = question.replace(f"N_{index:02d}", number.removesuffix(".0"))
        row = {**row, "question": question}
    return row


PROMPT = "r1_zero"
BENCHMARK = Benchmark(
    "mawps",
    {"test": HubDataset("mwpt5/MAWPS", "train")},
    columns={"question": "Question", "answer": "Answer"},
    adapt=fill_in_numbers,
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
