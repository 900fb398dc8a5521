"""Evaluation sweeps: one evaluation (cell) per combination of values, and one table of all of them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qed.config.screens import format_columns
from qed.config.sweep import number_name
from qed.errors import DataError
from qed.evaluation.summary import average_tasks
from qed.evaluation.table import NO_VALUE, format_interval, format_share
from qed.runs.folder import CELLS_FIGURES, CELLS_TABLE
from qed.runs.run import write_whole

MEAN = "mean of tasks"
ESTIMATES = ("pass@", "maj@")


@dataclass(frozen=True)
class Cell:
    """One evaluation of a sweep: its swept values as written, its folder, and its command line without the sweep."""

    swept: dict[str, str]
    folder: Path
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class CellOutcome:
    """The result or the error of a cell, with the fields of `qed.config.sweep.Outcome`."""

    cell: Cell
    result: dict[str, Any] = field(default_factory=dict)
    error: str = ""

    def describe(self) -> dict[str, Any]:
        """Return the outcome in a form for JSON."""
        return {
            "swept": self.cell.swept,
            "run": str(self.cell.folder),
            "result": self.result,
            "error": self.error or None,
        }


class SweepTable:
    """The outcomes in a sweep's folder: those of earlier sweeps are kept, unless the same cell is evaluated again.

    Args:
        folder: folder of the sweep.

    Raises:
        DataError: its sweep.json is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outcomes: dict[str, CellOutcome] = {}
        self._read()
        self._taken = {outcome.cell.folder.name for outcome in self.outcomes.values()}

    def choose_folder(self, swept: Mapping[str, str], name: str) -> Path:
        """Return the folder of a cell: its existing one, else one of this name, with a number added if it is taken."""
        known = self.outcomes.get(_write_key(swept))
        return self.folder / (known.cell.folder.name if known else number_name(name, self._taken))

    def write(self) -> None:
        """Write the table, which marks the folder as that of a sweep."""
        _write_outcomes(list(self.outcomes.values()), self.folder)

    def add(self, outcome: CellOutcome) -> None:
        """Write an outcome at once; a failed one never replaces another."""
        self._read()  # another sweep may have written in the meantime
        known = self.outcomes.get(key := _write_key(outcome.cell.swept))
        if known is None or known.error or not outcome.error:
            self.outcomes[key] = outcome
        self.write()

    def _read(self) -> None:
        self.outcomes |= {_write_key(outcome.cell.swept): outcome for outcome in _read_outcomes(self.folder)}


def _write_key(swept: Mapping[str, str]) -> str:
    """Return the swept values of a cell as one string, independent of their order."""
    return json.dumps(dict(sorted(swept.items())))


def _read_outcomes(folder: Path) -> list[CellOutcome]:
    """Return the outcomes in the sweep.json of a folder; an empty list if there is none."""
    path = folder / CELLS_FIGURES
    if not path.exists():
        return []
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            raise TypeError("it is not a list of cells")
        outcomes = [
            CellOutcome(Cell(dict(row["swept"]), Path(row["run"]), ()), dict(row["result"]), row["error"] or "")
            for row in rows
        ]
        _encode_table(outcomes)  # check that they have all values of the table
    except (ValueError, TypeError, KeyError, AttributeError, OSError) as error:
        raise DataError(f"{path} is not the table of a sweep: {error}. Restore it, or choose another --out.") from error
    return outcomes


def _write_outcomes(outcomes: Sequence[CellOutcome], folder: Path) -> None:
    """Write sweep.json with all figures, and sweep.csv with a row for each task of each cell.

    Raises:
        QedError: they cannot be written.
    """
    described = json.dumps([outcome.describe() for outcome in outcomes], indent=1, default=str)
    write_whole(folder / CELLS_FIGURES, described.encode())
    write_whole(folder / CELLS_TABLE, _encode_table(outcomes))


def _encode_table(outcomes: Sequence[CellOutcome]) -> bytes:
    """Return the table as CSV."""
    rows = [row for outcome in outcomes for row in _list_rows(outcome)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def _list_rows(outcome: CellOutcome) -> Iterator[dict[str, Any]]:
    """Yield a row of figures for each task of a cell, and their mean if several; a failed cell yields its error."""
    about = dict(outcome.cell.swept)
    if outcome.error:
        yield {**about, "run": str(outcome.cell.folder), "error": outcome.error}
        return
    tasks: Mapping[str, Mapping[str, Any]] = outcome.result.get("tasks", {})
    for task, figures in tasks.items():
        estimates = {
            f"{kind}@{k}": each["value"] for kind in ("pass", "maj") for k, each in figures.get(kind, {}).items()
        }
        also = {f"also/{name}": each["accuracy"] for name, each in figures.get("also", {}).items()}
        normalised = {"acc_norm": figures["acc_norm"]["accuracy"]} if "acc_norm" in figures else {}
        shown = {key: figures.get(key) for key in ("n", "k", "accuracy", "ci_lo", "ci_hi")}
        more = {key: figures.get(key) for key in ("truncated_frac", "mean_tokens")}
        run = {"run": str(outcome.cell.folder), "error": ""}
        yield {**about, "task": task, **shown, **normalised, **estimates, **also, **more, **run}
    if len(tasks) > 1:
        mean = {key: value for key, value in average_tasks(list(tasks.values())).items() if key != "tasks"}
        yield {**about, "task": MEAN, **mean, "run": str(outcome.cell.folder), "error": ""}


def format_outcomes(outcomes: Sequence[CellOutcome]) -> str:
    """Format one table of all cells: a line per task of each cell, with failed cells marked; shares are in percent."""
    rows = [row for outcome in outcomes for row in _list_rows(outcome)]
    if not rows:
        return ""
    swept = list(outcomes[0].cell.swept)
    optional = [name for name in _list_optional(rows) if any(row.get(name) is not None for row in rows)]
    columns = [*swept, "task", "n", "k", "avg@k [95 %]", *optional, "run"]
    return format_columns([columns, *(_format_row(row, swept, optional) for row in rows)])


def _list_optional(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that not every evaluation has: pass@k and maj@k, for the largest k only."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    largest = [max((name for name in names if name.startswith(kind)), key=_read_k, default="") for kind in ESTIMATES]
    also = [name for name in names if name == "acc_norm" or name.startswith("also/")]
    return [*also, *(name for name in largest if name and _read_k(name) > 1)]


def _read_k(name: str) -> int:
    return int(name.partition("@")[2])


def _format_row(row: Mapping[str, Any], swept: Sequence[str], optional: Sequence[str]) -> list[str]:
    values = [str(row[name]) for name in swept]
    if row["error"]:
        return [*values, *[NO_VALUE] * (4 + len(optional)), f"{row['run']} (failed)"]
    counts = [NO_VALUE if row.get(name) is None else f"{row[name]:,}" for name in ("n", "k")]
    shares = [format_share(row.get(name)) for name in optional]
    return [*values, row["task"], *counts, format_interval(row), *shares, row["run"]]
