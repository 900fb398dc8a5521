"""A sweep: one run for each combination of the values swept, one after the other, and a table at the end."""

from __future__ import annotations

import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qed.config.fields import Table
from qed.config.help import format_columns
from qed.config.names import suggest
from qed.config.resolve import Resolved, read_sources, resolve_settings
from qed.config.values import Raw, format_value, split_items
from qed.errors import Interrupted, QedError, UsageError

LONGEST_NAME = 120  # Of a run's folder; file systems end at 255 bytes.


@dataclass(frozen=True)
class Point:
    """One run of a sweep: the values swept, as they were written, and its resolved settings."""

    swept: dict[str, str]
    resolved: Resolved


@dataclass(frozen=True)
class Outcome:
    """How one run of a sweep ended: with a result, or with an error."""

    point: Point
    result: dict[str, Any]
    error: str = ""


def list_points(command: str, arguments: Sequence[str]) -> list[Point]:
    """The runs of a sweep, all resolved, so that a mistake in any of them is found before the first one starts."""
    source = read_sources(command, arguments)
    swept = _parse_swept(source.flags.sweep, source.table)
    out = resolve_settings(command, arguments).settings.run.out
    if (source.flags.resume or source.flags.requeue) and not out:
        raise UsageError("--resume and --requeue need the sweep's folder: add --out DIR.")
    base = Path(out or time.strftime(f"runs/sweep-{_shorten_word(Path(command).stem)}-%Y%m%d-%H%M%S"))
    found: list[Point] = []
    folders: set[str] = set()
    for values in itertools.product(*swept.values()):
        point = dict(zip(swept, values, strict=True))
        folder = base / _require_free_folders(_choose_folder(point), folders)
        assignments = [f"{key}={value}" for key, value in point.items()]
        resolved = resolve_settings(command, [*arguments, *assignments, f"run.out={folder}"])
        # A sweep that was cut short goes on with the runs that it began, and begins the others.
        flags = replace(resolved.flags, resume=resolved.flags.resume and (folder / "settings.yaml").is_file())
        found.append(Point(point, replace(resolved, flags=flags)))
    return found


def run_points(found: Sequence[Point], train: Callable[[Resolved], dict[str, Any]]) -> list[Outcome]:
    """Make the runs in order; one that fails is reported, and the others go on."""
    outcomes = []
    for number, point in enumerate(found, 1):
        _print_point(f"sweep {number}/{len(found)}: {_choose_folder(point.swept)}")
        try:
            outcomes.append(Outcome(point, train(point.resolved)))
        except Interrupted:
            raise
        except QedError as error:
            _print_point(f"error: {error}")
            outcomes.append(Outcome(point, {}, str(error)))
    return outcomes


def format_table(outcomes: Sequence[Outcome]) -> str:
    """The runs as rows: what was swept, the numbers that came out, the folder."""
    swept = list(outcomes[0].point.swept)
    found = [_list_numbers(outcome.result) for outcome in outcomes]
    numbers = list(dict.fromkeys(key for one in found for key in one))
    rows = [[*swept, *numbers, "run"]]
    for outcome, one in zip(outcomes, found, strict=True):
        results = [_round_number(one.get(key)) for key in numbers]
        failed = " (failed)" if outcome.error else ""
        rows.append([*outcome.point.swept.values(), *results, outcome.point.resolved.settings.run.out + failed])
    return format_columns(rows)


def _list_numbers(result: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numbers of a result, those of an evaluation by the task's name before them."""
    flat: dict[str, Any] = {}
    for key, value in result.items():
        if isinstance(value, dict):
            flat |= _list_numbers(value, f"{prefix}{key}.")
        elif _read_number(value):
            flat[prefix + key] = value
    return flat


def format_json(outcomes: Sequence[Outcome]) -> str:
    """The same for machines, as one line."""
    return json.dumps(
        [
            {
                "swept": outcome.point.swept,
                "run": outcome.point.resolved.settings.run.out,
                "result": outcome.result,
                "error": outcome.error or None,
            }
            for outcome in outcomes
        ],
        default=str,
    )


def _parse_swept(sweeps: Sequence[str], known: Table) -> dict[str, list[str]]:
    """The keys swept, in full, each with its values as a command line would give them."""
    swept: dict[str, list[str]] = {}
    for sweep in sweeps:
        name, equals, text = sweep.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        names = known.expand_key(key)
        if not names:
            raise UsageError(f"--sweep {name} is not a setting of qed {known.command}.{suggest(key, known)}")
        if names == ("run.out",):
            raise UsageError("--sweep gives every run a folder of its own; give the folder around them as --out.")
        values = [_format_text(raw) for raw in split_items(text)]
        if not equals or not values:
            raise UsageError(f"--sweep {sweep} lacks values: write --sweep {name}=VALUE,VALUE.")
        full = names[0] if len(names) == 1 else key
        if full in swept:
            raise UsageError(f"--sweep names {full} twice; put all of its values behind one.")
        swept[full] = list(dict.fromkeys(values))
    return swept


def _format_text(raw: Raw) -> str:
    """A value as a command line would give it; a list within the list of values stays one."""
    return raw.text if raw.items is None else json.dumps([_format_text(item) for item in raw.items])


def _choose_folder(point: dict[str, str]) -> str:
    """A folder's name from the values, with keys as short as they stay distinct."""
    last = [key.rpartition(".")[2] for key in point]
    names = last if len(set(last)) == len(last) else list(point)
    parts = [f"{name}={_shorten_word(value)}" for name, value in zip(names, point.values(), strict=True)]
    return ",".join(parts)[:LONGEST_NAME]


def _shorten_word(value: str) -> str:
    """A value without the characters that a file name or a shell cannot take."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", value).strip("_") or "_"


def _require_free_folders(folder: str, taken: set[str]) -> str:
    """The folder's name, numbered where another run of the sweep has it already."""
    numbered = (folder if number == 1 else f"{folder}-{number}" for number in itertools.count(1))
    name = next(name for name in numbered if name not in taken)
    taken.add(name)
    return name


def _read_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _round_number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else format_value(value)


def _print_point(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 -- progress of the command line
