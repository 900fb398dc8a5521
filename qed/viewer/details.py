"""One run: its settings, environment, phases, events and logs, and which answers and evaluations it saved."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

from qed.errors import DataError
from qed.guards.redaction import redact
from qed.report.record import Phase, read_settings
from qed.report.settings_file import flatten_settings
from qed.runs.manifest import parse_step
from qed.runs.run import Row
from qed.runs.step_file import name_step_file, parse_step_file
from qed.viewer.cards import build_card
from qed.viewer.cleaning import clean_value, redact_named
from qed.viewer.curves import load_curves
from qed.viewer.evaluations import list_accuracies
from qed.viewer.library import Library, RunPlace
from qed.viewer.line_file import read_last_rows
from qed.viewer.logs import list_attempts
from qed.viewer.memo import FileMemo
from qed.viewer.params import Params
from qed.viewer.run_files import find_file, list_folder, read_object, read_text

MAX_EVENTS = 2_000
LAST_BYTES = 8 << 20  # of the events; each takes a few hundred bytes
MAX_SETTINGS = 2_000
DEEPEST = 12  # levels of settings that are listed one by one
ALARM = "alarm"
SETTINGS = FileMemo(256)
EVENTS = FileMemo(64)


def describe_run(library: Library, params: Params) -> dict[str, Any]:
    """Return what the pages of one run show besides its curves.

    Args:
        library: the runs.
        params: `run`.
    """
    place = library.find(params.text("run"))
    settings, events = load_settings(place), load_events(place)
    return {
        "card": build_card(library, place),
        "settings": list_settings(place),
        "environment": clean_value(read_object(place, "env.json")),
        "command": redact(read_text(place, "command.txt").strip()),
        "phases": [_describe_phase(phase) for phase in load_curves(place).split_phases(settings, events)],
        "events": events,
        "attempts": list_attempts(place),
        "steps": list_answer_steps(place),
        "evaluations": list_accuracies(place),
        "best_step": parse_step(read_text(place, "checkpoints", "BEST").strip()),
        "report": find_file(place, "report.html") is not None,
    }


def _describe_phase(phase: Phase) -> dict[str, Any]:
    return {
        "name": phase.name,
        "label": phase.label,
        "begin": phase.begin,
        "last": phase.last,
        "planned": phase.planned,
    }


def list_answer_steps(place: RunPlace) -> list[int]:
    """Return the training steps whose answers are saved, in order."""
    names = list_folder(place, "rollouts")
    return sorted({step for name in names if (step := parse_step_file(name)) is not None})


def find_answers(place: RunPlace, step: int) -> Path | None:
    """Return the file with the answers of a training step; None if they were not saved."""
    return find_file(place, name_step_file(step))


def load_settings(place: RunPlace) -> Row:
    """Return the settings of a run, nested as in its file; empty if the file is missing or damaged."""
    path = find_file(place, "settings.yaml")
    return {} if path is None else SETTINGS.read(path, [path], lambda: _read_settings(path))


def _read_settings(path: Path) -> Row:
    try:
        return read_settings(path)
    except (DataError, TypeError, RecursionError):
        return {}


def list_settings(place: RunPlace) -> list[dict[str, Any]]:
    """List the settings of a run by their dotted names, each with its origin."""
    origins = read_object(place, "settings.origin.json")
    return [
        {"key": key, "value": _show_setting(key, value), "origin": redact(str(origins.get(key, "")))}
        for key, value in islice(flatten_settings(load_settings(place), DEEPEST), MAX_SETTINGS)
    ]


def _show_setting(key: str, value: Any) -> Any:
    """Return a setting as JSON; an infinity, which JSON lacks, in YAML's notation."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return ".inf" if value > 0 else "-.inf"
    return redact_named(key, value) if isinstance(value, str) else clean_value(value, key)


def load_events(place: RunPlace) -> list[Row]:
    """Return the last MAX_EVENTS events of a run, cleaned; damaged lines are skipped."""
    path = find_file(place, "events.jsonl")
    return [] if path is None else EVENTS.read(path, [path], lambda: _read_events(path))


def _read_events(path: Path) -> list[Row]:
    try:
        rows = read_last_rows(path, LAST_BYTES)[-MAX_EVENTS:]
    except OSError:
        return []
    return [clean_value(row) for row in rows if row]


def list_alarms(place: RunPlace) -> list[dict[str, Any]]:
    """List the alarms among the events of a run."""
    return [
        {"step": event.get("step"), "name": str(event.get("name", "")), "message": str(event.get("told", ""))}
        for event in load_events(place)
        if event.get("event") == ALARM
    ]
