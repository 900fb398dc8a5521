"""Names of metrics that have changed: rows that an earlier version wrote are read under today's names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qed.runs.run import Row, read_lines

# The old name of each metric, and the one that is written today. The old stages were wider: `sample_s` held grading,
# and `train_s` held scoring and the sampler's load, for which rows of that time have no figures.
RENAMED: Mapping[str, str] = {
    "time/step_s": "time/step",
    "time/sample_s": "time/sample",
    "time/train_s": "time/update",
    "time/evaluation_s": "time/evaluate",
}


def rename_old_metrics(row: Row) -> Row:
    """Return a row of metrics under today's names."""
    return {RENAMED.get(name, name): value for name, value in row.items()}


def read_metrics(path: Path) -> list[Row]:
    """Read the rows of a metrics.jsonl under today's names, see `read_lines`."""
    return [rename_old_metrics(row) for row in read_lines(path)]
