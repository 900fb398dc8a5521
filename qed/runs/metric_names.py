"""Renamed metrics: read rows that an earlier version wrote under the current names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qed.runs.run import Row, read_lines

# Maps the old name of each metric to the current one. The old stages covered more: `sample_s` included grading, and
# `train_s` scoring and the sync of the sampler's weights, so rows with old names lack these stages.
RENAMED: Mapping[str, str] = {
    "time/step_s": "time/step",
    "time/sample_s": "time/sample",
    "time/train_s": "time/update",
    "time/evaluation_s": "time/evaluate",
}


def rename_old_metrics(row: Row) -> Row:
    """Return a row of metrics under the current names."""
    return {RENAMED.get(name, name): value for name, value in row.items()}


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics.jsonl under the current names, see `read_lines`."""
    return [rename_old_metrics(row) for row in read_lines(path)]
