"""Read a run's folder while it grows: metrics, evaluations, a sample of rollouts, alarms."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from qed.config.yaml_text import load_yaml
from qed.errors import DataError
from qed.runs.run import Row, read_evaluation, read_json
from qed.runs.step_file import name_step_file
from qed.runs.step_index import build_index, name_index, read_group, read_index

SAMPLE = 32  # rollouts to show per step
MAX_CHARACTERS = 8000  # of a text in a table
COLUMNS = (
    *("group_id", "question", "gold", "text", "extracted", "reward", "correct", "format_ok", "advantage"),
    *("n_tokens", "stop_reason", "source"),
)
ENDINGS = ("finished", "failed", "interrupted", "hung")
# The figures of a decoding without an interval, and those that are tables with an interval per entry.
FIGURES = ("format", "reward", "mean_tokens", "truncated_frac", "no_answer_frac")
TABLES = {"pass": "pass@{}", "maj": "maj@{}", "accuracy_by": "accuracy ({})"}


@dataclass(frozen=True)
class Item:
    """An item that a run has recorded; its content is a table for an evaluation or rollouts, otherwise a row."""

    kind: Literal["metrics", "evaluation", "rollouts", "alarm"]
    step: int
    content: Any


class GrowingLines:
    """Reads lines appended to a JSON lines file; an incomplete last line is left for the next call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0
        self.lines = 0  # the number of lines before the offset

    def read(self) -> list[Row]:
        """Return the rows since the last call.

        Raises:
            DataError: a line is damaged.
        """
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        rows = []
        for number, line in enumerate(whole.split(b"\n"), self.lines + 1):
            try:
                rows += [json.loads(line)] if line.strip() else []
            except ValueError as error:
                raise DataError(f"{self.path}, line {number}, cannot be read: {error}.") from error
        self.offset += len(whole)
        self.lines += whole.count(b"\n")
        return rows


class RunFollower:
    """Reads what a run records. The metrics of a step are written last, so its other files are complete by then.

    Args:
        folder: the folder of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = GrowingLines(folder / "metrics.jsonl")
        self.events = GrowingLines(folder / "events.jsonl")
        self.step = 0  # the step of the last row
        self.ending = "killed"
        self._alarms: dict[tuple[Any, ...], Row] = {}  # alarms not yet reported
        self._told: set[tuple[Any, ...]] = set()

    def check(self) -> None:
        """Raise a DataError if a line of the metrics or events is damaged."""
        for lines in (self.rows, self.events):
            GrowingLines(lines.path).read()

    def read(self) -> Iterator[Item]:
        """Yield what the run has recorded since the last call, step by step."""
        for row in self.rows.read():
            self.step = step = int(row["step"])
            is_evaluation = any(name.startswith("eval/") for name in row)
            values = {name: value for name, value in row.items() if name != "step" and value is not None}
            yield Item("metrics", step, values)
            table = self._read_evaluation(step) if is_evaluation else self._read_rollouts(step)
            if table:
                yield Item("evaluation" if is_evaluation else "rollouts", step, table)
        for event in self.events.read():
            self._take_event(event)
        for key, event in sorted(self._alarms.items()):
            # A resumed run repeats steps with their alarms; alarms of steps that it has not reached yet wait.
            if event["step"] <= self.step:
                del self._alarms[key]
                self._told.add(key)
                yield Item("alarm", event["step"], event)

    def _take_event(self, event: Row) -> None:
        kind = event.get("event")
        if kind == "alarm":
            key = (event["step"], event.get("phase", ""), event["name"])
            if key not in self._told:
                self._alarms[key] = event
        elif kind in ENDINGS:
            self.ending = str(kind)
        elif kind == "resumed":
            self.ending = "killed"

    def _read_evaluation(self, step: int) -> list[Row]:
        return list(list_figures(read_evaluation(self.folder, step)))

    def _read_rollouts(self, step: int) -> list[Row]:
        """Return a sample of a step's rollouts, spread evenly over its groups; empty if rollouts are not saved."""
        data = self.folder / name_step_file(step)
        if not data.exists():
            return []
        # Keep only one group in memory at a time, because a step may take gigabytes.
        index = read_index(name_index(data)) or build_index(data)
        total = sum(group["n"] for group in index.groups)
        wanted = {number * total // SAMPLE for number in range(SAMPLE)} if total > SAMPLE else set(range(total))
        table, first = [], 0
        for number, group in enumerate(index.groups):
            own = sorted(wanted & set(range(first, first + group["n"])))
            rows = read_group(data, index, number) if own else []
            table += [{name: _shorten(rows[each - first].get(name)) for name in COLUMNS} for each in own]
            first += group["n"]
        return [{"step": step, **row} for row in table]


def list_figures(summaries: Mapping[str, Mapping[str, Row]]) -> Iterator[Row]:
    """Yield each figure of an evaluation as a row, with its interval if it has one."""
    for task, decodings in summaries.items():
        for decoding, figures in decodings.items():
            entries: dict[str, Any] = {"accuracy": {**figures, "value": figures.get("accuracy")}}
            for table, label in TABLES.items():
                entries |= {label.format(name): entry for name, entry in figures.get(table, {}).items()}
            for column, values in figures.get("by", {}).items():
                entries |= {f"{column}={name}": {**e, "value": e.get("accuracy")} for name, e in values.items()}
            entries |= {name: {"value": figures[name]} for name in FIGURES if figures.get(name) is not None}
            for measure, entry in entries.items():
                interval = {"low": entry.get("ci_lo"), "high": entry.get("ci_hi")}
                count = entry.get("n", figures.get("n"))
                yield {"task": task, "decoding": decoding, "measure": measure, "value": entry.get("value")} | (
                    interval | {"n": count}
                )


def read_config(folder: Path) -> Row:
    """Return a run's settings as nested dicts, with its environment under `environment`.

    Raises:
        DataError: there are no settings, or they cannot be read.
    """
    path = folder / "settings.yaml"
    try:
        settings = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path} cannot be read: {error}. Is {folder} the folder of a run?") from error
    if not isinstance(settings, dict):
        raise DataError(f"{path} contains no settings.")
    return {**settings, "environment": read_json(folder / "env.json", {})}


def _shorten(value: Any) -> Any:
    is_long = isinstance(value, str) and len(value) > MAX_CHARACTERS
    return f"{value[:MAX_CHARACTERS]}…" if is_long else value
