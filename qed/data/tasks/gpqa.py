"""GPQA: science questions that a search does not answer, with four options (Rein et al. 2023, arXiv 2311.12022).

`diamond` has the 198 that experts agree on and others fail, `main` 448, `extended` 546. The right option is always
given first, so the order is drawn: the same for a question in every run.
"""

from __future__ import annotations

from qed.data.sources.hub import HubDataset
from qed.data.sources.rows import Row
from qed.data.tasks.base import Benchmark

COLUMNS = ("Question", "Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)), "Subdomain")


def select_columns(row: Row) -> Row:
    """The question and its options; the many columns about its authors and reviewers are left behind."""
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
