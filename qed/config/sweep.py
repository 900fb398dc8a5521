"""Runs a sweep: one run per combination of values, one after the other, and a table at the end."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qed.config.arguments import drop_flags, drop_settings
from qed.config.fields import Table
from qed.config.keys import flatten_tree
from qed.config.names import suggest
from qed.config.resolve import Resolved, read_sources, resolve_settings
from qed.config.screens import format_columns
from qed.config.values import Raw, format_value, split_items
from qed.errors import Interrupted, QedError, UsageError

BOUNDS = ("ci_lo", "ci_hi")  # result keys of an accuracy's 95 % confidence interval
LAST = ("run", "error")  # last columns of the table in the file
MAX_NAME_LENGTH = 120  # in characters, of a run's folder; file systems allow 255 bytes


@dataclass(frozen=True)
class Point:
    """One run of a sweep: its swept values as written, its settings, and the equivalent arguments without a sweep."""

    swept: dict[str, str]
    resolved: Resolved
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """The result or the error of one run of a sweep."""

    point: Point
    result: dict[str, Any]
    error: str = ""


def list_points(command: str, arguments: Sequence[str]) -> list[Point]:
    """Resolve all runs of a sweep, so that a mistake in any of them is reported before the first one starts."""
    source = read_sources(command, arguments)
    swept = _parse_swept(source.flags.sweep, source.table)
    out = resolve_settings(command, arguments).settings.run.out
    if (source.flags.resume or source.flags.requeue) and not out:
        raise UsageError("--resume and --requeue need the folder of the sweep: add --out DIR.")
    base = Path(out or time.strftime(f"runs/sweep-{_shorten_word(Path(command).stem)}-%Y%m%d-%H%M%S"))
    # A swept value replaces one that is also set on the command line.
    rest = drop_settings(arguments, swept, source.table)
    points: list[Point] = []
    folders: set[str] = set()
    for values in itertools.product(*swept.values()):
        point = dict(zip(swept, values, strict=True))
        folder = base / number_name(name_folder(point), folders)
        assignments = [f"{key}={value}" for key, value in point.items()]
        resolved = resolve_settings(command, [*rest, *assignments, f"run.out={folder}"])
        # A resumed sweep resumes the runs that have started, and starts the others.
        flags = replace(resolved.flags, resume=resolved.flags.resume and (folder / "settings.yaml").is_file())
        other = () if flags.resume else ("resume", "allow_change", "fast")
        alone = drop_flags(rest, "sweep", "ranks", *other)
        points.append(Point(point, replace(resolved, flags=flags), (*alone, *assignments, f"run.out={folder}")))
    return points


def run_points(
    points: Sequence[Point], train: Callable[[Point], dict[str, Any]], record: Callable[[Sequence[Outcome]], None]
) -> list[Outcome]:
    """Run the points in order; a failed run is reported, and the sweep continues.

    Args:
        points: the runs.
        train: runs a point and returns its result.
        record: called after each run with all outcomes so far.
    """
    outcomes: list[Outcome] = []
    for number, point in enumerate(points, 1):
        _print_point(f"sweep {number}/{len(points)}: {name_folder(point.swept)}")
        try:
            outcomes.append(Outcome(point, train(point)))
        except Interrupted:
            raise
        except QedError as error:
            _print_point(f"error: {error}")
            outcomes.append(Outcome(point, {}, str(error)))
        record(outcomes)
    return outcomes


def encode_table(outcomes: Sequence[Outcome], earlier: Path) -> bytes:
    """Return the runs as CSV: the swept values, the numbers of the result, the folder and the error of each.

    Args:
        outcomes: outcomes of the runs.
        earlier: path of an earlier sweep's table in the same folder, which need not exist; its other runs are kept.

    Raises:
        UsageError: that file is some other table.
    """
    rows = _read_table(earlier)
    for outcome in outcomes:
        run = outcome.point.resolved.settings.run.out
        rows[run] = {**outcome.point.swept, **_list_numbers(outcome.result), "run": run, "error": outcome.error}
    names = dict.fromkeys(name for row in rows.values() for name in row if name not in LAST)
    text = io.StringIO()
    writer = csv.DictWriter(text, [*names, *LAST], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows.values())
    return text.getvalue().encode("utf-8", "surrogateescape")


def _read_table(path: Path) -> dict[str, dict[str, Any]]:
    """Return the rows of a sweep's table by run; empty if there is no file."""
    if not path.is_file():
        return {}
    text = path.read_text(encoding="utf-8-sig", errors="surrogateescape")  # a spreadsheet may have saved it
    reader = csv.DictReader(io.StringIO(text))
    rows = {row.get("run"): row for row in reader}
    if tuple(reader.fieldnames or ())[-len(LAST) :] != LAST or any(None in row or not run for run, row in rows.items()):
        raise UsageError(f"{path} is not the table of a sweep. Move it away, or choose another --out.")
    return {str(run): dict(row) for run, row in rows.items()}


def format_table(outcomes: Sequence[Outcome]) -> str:
    """Format the runs as a table: the swept values, the result's numbers with confidence intervals, and the folder."""
    swept = list(outcomes[0].point.swept)
    results = [_list_numbers(outcome.result) for outcome in outcomes]
    numbers = list(dict.fromkeys(key for result in results for key in result if not key.endswith(BOUNDS)))
    rows = [[*swept, *numbers, "run"]]
    for outcome, result in zip(outcomes, results, strict=True):
        cells = [_round_number(result.get(key)) + _format_bounds(result, key) for key in numbers]
        failed = " (failed)" if outcome.error else ""
        rows.append([*outcome.point.swept.values(), *cells, outcome.point.resolved.settings.run.out + failed])
    return format_columns(rows)


def _format_bounds(result: dict[str, Any], key: str) -> str:
    """Return the 95 % confidence interval of a number, in brackets; empty if it has none."""
    stem = key.removesuffix("accuracy")
    names = [stem + bound for bound in BOUNDS]
    if stem == key or not all(name in result for name in names):
        return ""
    return f" [{', '.join(_round_number(result[name]) for name in names)}]"


def _list_numbers(result: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a result by name; those of an evaluation are prefixed by the task's name."""
    return {key: value for key, value in flatten_tree(result) if _is_number(value)}


def format_json(outcomes: Sequence[Outcome]) -> str:
    """Format the runs as one line of JSON."""
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


def _parse_swept(sweeps: Sequence[str], table: Table) -> dict[str, list[str]]:
    """Map the full keys of a sweep to their values, as on the command line."""
    swept: dict[str, list[str]] = {}
    for sweep in sweeps:
        name, equals, text = sweep.partition("=")
        key = name.removeprefix("--").replace("-", "_")
        names = table.expand_key(key)
        if not names:
            raise UsageError(f"--sweep {name} is not a setting of qed {table.command}.{suggest(key, table)}")
        if names == ("run.out",):
            raise UsageError("--sweep creates a folder for every run. Set --out to their parent folder.")
        values = [_format_text(raw) for raw in split_items(text)]
        if not equals or not values:
            raise UsageError(f"--sweep {sweep} lacks values. Write --sweep {name}=VALUE,VALUE.")
        full = names[0] if len(names) == 1 else key
        if full in swept:
            raise UsageError(f"--sweep names {full} twice. Give all of its values in one --sweep.")
        swept[full] = list(dict.fromkeys(values))
    return swept


def _format_text(raw: Raw) -> str:
    """Format a value as on the command line; a list inside the list of values stays a list."""
    return raw.text if raw.items is None else json.dumps([_format_text(item) for item in raw.items])


def name_folder(point: dict[str, str]) -> str:
    """Return a folder name made of the values and the shortest distinct keys."""
    last = [key.rpartition(".")[2] for key in point]
    names = last if len(set(last)) == len(last) else list(point)
    parts = [f"{name}={_shorten_word(value)}" for name, value in zip(names, point.values(), strict=True)]
    return ",".join(parts)[:MAX_NAME_LENGTH]


def _shorten_word(value: str) -> str:
    """Replace the characters of a value that are special in a file name or a shell."""
    return re.sub(r"[^A-Za-z0-9_.+-]+", "_", value).strip("_") or "_"


def number_name(folder: str, taken: set[str]) -> str:
    """Return the folder name, with a number appended if another run of the sweep has it."""
    numbered = (folder if number == 1 else f"{folder}-{number}" for number in itertools.count(1))
    name = next(name for name in numbered if name not in taken)
    taken.add(name)
    return name


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _round_number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else format_value(value)


def _print_point(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 -- progress of the command line
