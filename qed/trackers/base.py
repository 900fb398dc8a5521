"""What a tracker is: the run that it is told of, and the methods that it is called with.

A leaf defines `make(run) -> Tracker`. It is called in a process of its own, whose death, delay or lack of a network
does not reach training. Every attempt begins with an empty folder `run.home` and is told the whole history again, so
that a leaf needs no memory: what a resumed run has repeated replaces what the earlier attempt had said. A leaf may
define `clear(home)` to empty the folder in its own way.
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
    process that trains, or 0 if the run is over.
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
    """Takes what a run has recorded, in the order of its steps; a step may have several rows of metrics."""

    where: str
    """How to see the run: an address, or a command."""

    def log_metrics(self, step: int, values: Mapping[str, float | str]) -> None:
        """Take a row of metrics.jsonl; the values are numbers, and the name of the phase."""

    def log_evaluation(self, step: int, table: Sequence[Row]) -> None:
        """Take the figures of an evaluation: task, decoding, measure, value, interval (low and high, or None), n."""

    def log_rollouts(self, step: int, table: Sequence[Row]) -> None:
        """Take a sample of a step's rollouts."""

    def log_alarm(self, step: int, name: str, text: str, is_new: bool) -> None:
        """Take an alarm; `is_new` unless it is part of the history at the beginning of an attempt."""

    def flush(self) -> None:
        """Show what has been taken so far: everything that the run has recorded has been read."""

    def close(self, ending: str, report: Path | None) -> None:
        """Take the end: finished, failed, interrupted, hung, or killed if the run left no word; and the report."""


def flatten_config(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of nested settings by their dotted keys; a list becomes a text."""
    return {key: ", ".join(map(str, value)) if isinstance(value, list) else value for key, value in flatten_tree(tree)}


def format_table(table: Sequence[Row]) -> str:
    """Format rows as a table in Markdown."""
    names = list(table[0]) if table else []
    lines = [names, ["---"] * len(names), *([_format_cell(row[name]) for name in names] for row in table)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _format_cell(value: Any) -> str:
    """Format a value so that it stays in its cell and none of its characters is Markdown or HTML."""
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
