"""SAT mathematics of May 2023: the 32 multiple-choice problems without a figure."""

from __future__ import annotations

from qed.data.sources.choices import parse_written_options
from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark


def split_options(row: Row) -> Row:
    """Split the options, given as one text, into a list."""
    options = row.get("options")
    return (
        {**row, "options": list(parse_written_options(options).get("choices", ()))} if isinstance(options, str) else row
    )


PROMPT = "boxed"
BENCHMARK = Benchmark(
    "sat_math",
    {"test": HubDataset("mcaleste/sat_multiple_choice_math_may_23", "train")},
    columns={"question": "Question", "options": "Possible Answers", "answer": "Answer"},
    adapt=split_options,
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
