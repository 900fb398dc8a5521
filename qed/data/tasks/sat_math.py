"""SAT mathematics of May 2023: the 32 multiple-choice problems without a figure."""

from __future__ import annotations

from qed.data.sources.choices import written_out
from qed.data.sources.hub import Hub
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark


def with_options(row: Row) -> Row:
    """The options, which stand in one text, as a list."""
    options = row.get("options")
    return {**row, "options": list(written_out(options).get("choices", ()))} if isinstance(options, str) else row


PROMPT = "boxed"
BENCHMARK = Benchmark(
    "sat_math",
    {"test": Hub("mcaleste/sat_multiple_choice_math_may_23", "train")},
    columns={"question": "Question", "options": "Possible Answers", "answer": "Answer"},
    adapt=with_options,
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
