"""GPQA: science questions that a web search does not answer, with four options (Rein et al. 2023, arXiv 2311.12022).

`diamond` has the 198 questions that experts agree on and others fail, `main` 448, `extended` 546. The correct option
always comes first in the data, so the order is shuffled, the same way for a question in every run.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark

COLUMNS = ("Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)), "Subdomain")


def select_columns(row: Row) -> Row:
    """Select the question and its options, without the many columns about authors and reviewers."""
    return {key: row[key] for key in COLUMNS if key in row} if "Correct Answer" in row else row


PROMPT = "boxed"
BENCHMARK = Benchmark(
    "gpqa",
    {
        name: HubDataset("Idavidrein/gpqa", "train", (f"gpqa_{name}",), gated=True)
        for name in ("diamond", "main", "extended")
    },
    adapt=select_columns,
)
SPLITS = tuple(BENCHMARK.splits)
load, read = BENCHMARK.load, BENCHMARK.read
