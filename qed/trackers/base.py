"""The interface of a tracker: the run that it shows, and the methods that are called.

A tracker's module defines `make(run) -> Tracker`. It is called in a separate process, so that its crash, delay or lack
of a network does not affect training. Every attempt starts with an empty folder `run.home` and gets the complete
history again, so that a tracker needs no memory: steps that a resumed run repeats replace those of the earlier attempt.
The module may define `clear(home)` to empty the folder in its own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qed.config.keys import flatten_tree
from qed.runs.run import Row


@dataclass(frozen=True)
class TrackedRun:
    """What is known of a run before its first step.

    `home` is the folder for all files of the tracker. `id` and `name` are the same in every attempt. `process` is the
    id of the training process, or 0 if the run is over.
    """

    home: Path
    id: str
    name: str
    project: str
    entity: str
    group: str
    tags: tuple[str, ...]
    config: Mapping[str, Any]
    process: int = 0


class Tracker(Protocol):
    """Receives what a run records, in the order of its steps; a step may have several rows of metrics."""

    where: str
    """How to see the run: an address, or a command."""

    def log_metrics(self, step: int, values: Mapping[str, float | str]) -> None:
        """Log a row of metrics.jsonl; the values are numbers, and the name of the phase."""

    def log_evaluation(self, step: int, table: Sequence[Row]) -> None:
        """Log the figures of an evaluation: task, decoding, measure, value, interval (low and high, or None), n."""

    def log_rollouts(self, step: int, table: Sequence[Row]) -> None:
        """Log a sample of a step's rollouts."""

    def log_alarm(self, step: int, name: str, text: str, is_new: bool) -> None:
        """Log an alarm; `is_new` unless it is part of the history at the beginning of an attempt."""

    def flush(self) -> None:
        """Show what has been logged so far: everything that the run has recorded has been read."""

    def close(self, ending: str, report: Path | None) -> None:
        """Log the ending: finished, failed, interrupted, hung, or killed if the run recorded no end; and the report."""


def flatten_config(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of nested settings under dotted keys; a list becomes a text."""
    return {key: ", ".join(map(str, value)) if isinstance(value, list) else value for key, value in flatten_tree(tree)}


def format_table(table: Sequence[Row]) -> str:
    """Format rows as a table in Markdown."""
    names = list(table[0]) if table else []
    lines = [names, ["---"] * len(names), *([_format_cell(row[name]) for name in names] for row in table)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_cell(value: Any) -> str:
    """Format a value so that it stays in its cell, with Markdown and HTML characters escaped."""
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    for character, entity in {
        "&": "&amp;",
        "<": "&lt;",
        "|": "&#124;",
        "`": "&#96;",
        "*": "&#42;",
        "_": "&#95;",
    }.items():
        text = text.replace(character, entity)
    return text.replace("\n", "<br>")
