"""The table of a step's answers, from its index alone, without reading texts or tokens."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from qed.errors import DataError
from qed.runs.answer_cells import TEXTS as CELLS
from qed.runs.step_file import Row, iterate_lines, parse_row, parse_step_file
from qed.runs.step_index import MAX_LINES, StepIndex
from qed.runs.token_stats import name_stats
from qed.viewer.cleaning import redact_texts
from qed.viewer.library import Library
from qed.viewer.memo import FileMemo
from qed.viewer.outcomes import PARTS, count_lost, leave_out_ungraded
from qed.viewer.params import Params
from qed.viewer.run_files import find_file
from qed.viewer.where import Where, find_where

HIDDEN = ("shingles",)  # columns only for finding duplicates
TEXTS = ("question", "gold")  # of a group
SHOWN = FileMemo(24)  # the indexes of the last shown steps, without secrets
PLACE = re.compile(rb'\{"group": (\d{1,9}), "answer": (\d{1,9}),')  # the beginning of a line of statistics
STATS = FileMemo(256)  # the answers of a step that have statistics
Place = tuple[int, int]
GROUP = (
    *("id", "question", "gold", "subject", "level", "data_source"),
    *("n", "n_graded", "n_right", "reward_mean", "reward_min", "reward_max"),
)


def read_step(library: Library, params: Params) -> dict[str, Any]:
    """Return the table of the answers of a step, a list for each column.

    Args:
        library: the runs.
        params: `run`, `step`, and for an evaluation `task` and `decoding`.

    Raises:
        Refused: there are no such answers.
    """
    begin = time.perf_counter()
    where = find_where(library, params)
    numbers = where.list_groups()
    columns = _select_columns(where, set(numbers))
    return {
        "where": where.describe(),
        "lost": count_lost(library, where.data, where.index) if where.is_training else 0,
        "groups": [describe_group(where, number, place) for place, number in enumerate(numbers)],
        "rows": {name: column for name, column in columns.items() if not name.startswith(PARTS)},
        "parts": {name.removeprefix(PARTS): column for name, column in columns.items() if name.startswith(PARTS)},
        **where.find_neighbours(),
        "seconds": round(time.perf_counter() - begin, 4),
    }


def describe_group(where: Where, number: int, place: int) -> dict[str, Any]:
    """Return what tables show of a group; `place` counts groups of its decoding, `number` those of the whole file.

    `n_right` is out of `n_graded` answers.
    """
    group = _load_shown(where).groups[number]
    return {"group": number, "place": place, **{name: group[name] for name in GROUP if group.get(name) is not None}}


def list_cells(where: Where, group: int) -> list[Row]:
    """Return the table's cells of each answer of a group; the cell of `parts` is a mapping."""
    begin = sum(each["n"] for each in where.index.groups[:group])
    rows = range(begin, begin + where.index.groups[group]["n"])
    columns = _list_columns(where)
    return [_nest_parts({name: column[row] for name, column in columns.items()}) for row in rows]


def find_stats(where: Where, group: int, answer: int) -> Row | None:
    """Return the token statistics of an answer; None if they were not recorded, or are damaged."""
    try:
        lines = (line for place, line in _iterate_stats(where) if place == (group, answer))
        return next(map(parse_row, lines), None)
    except (DataError, ValueError, OSError):
        return None


def _list_stats(where: Where) -> frozenset[Place]:
    """Return which answers of a step have token statistics, as (group, answer)."""
    found = _locate_stats(where)
    return STATS.read(found, [found], lambda: _read_places(where)) if found else frozenset()


def _read_places(where: Where) -> frozenset[Place]:
    try:
        return frozenset(place for place, _ in _iterate_stats(where))
    except (DataError, OSError):
        return frozenset()


def _iterate_stats(where: Where) -> Iterator[tuple[Place, bytes]]:
    """Yield the lines of a step's statistics with their group and answer; only the beginning of a line is parsed."""
    found = _locate_stats(where)
    for line in islice(iterate_lines(found), MAX_LINES) if found else ():
        if (begin := PLACE.match(line)) is not None:
            yield (int(begin[1]), int(begin[2])), line


def _locate_stats(where: Where) -> Path | None:
    if not where.is_training or parse_step_file(where.data.name) is None:
        return None
    return find_file(where.place, "rollouts", name_stats(where.data).name)


def _select_columns(where: Where, groups: set[int]) -> dict[str, Sequence[Any]]:
    columns = _list_columns(where)
    own = columns.get("group", ())
    if where.is_training:
        return columns
    rows = [row for row, group in enumerate(own) if group in groups]
    return {name: [column[row] for row in rows] for name, column in columns.items()}


def _list_columns(where: Where) -> dict[str, Sequence[Any]]:
    """Return the columns of the index, and those that depend on the step: staleness, and whether signals exist."""
    columns: dict[str, Sequence[Any]] = dict(_load_shown(where).columns)
    if where.is_training and "version" in columns:
        # An answer to step N is on-policy if the weights after step N - 1 wrote it.
        pairs = zip(columns["version"], columns.get("source", ()), strict=False)
        columns["staleness"] = [
            where.step - 1 - version if isinstance(version, int) and source in ("policy", "greedy") else None
            for version, source in pairs
        ]
    if (stats := _list_stats(where)) and {"group", "answer"} <= columns.keys():
        places = zip(columns["group"], columns["answer"], strict=True)
        columns["has_stats"] = [place in stats for place in places]
    return columns


def _load_shown(where: Where) -> StepIndex:
    """Return the redacted index with the verdicts that count; cached, because searching for secrets takes a while."""
    key = where.data, where.index.bytes, len(where.index.groups)
    shown: StepIndex = SHOWN.read(key, [where.data], lambda: _count_verdicts(_redact_index(where.index), where))
    return shown


def _count_verdicts(index: StepIndex, where: Where) -> StepIndex:
    """Leave out the answers of a training step that no grader could judge; in an evaluation they count as wrong."""
    if not where.is_training:
        return replace(index, groups=[group | {"n_graded": group["n"]} for group in index.groups])
    groups = [group | {"n_right": group.get("n_graded_right")} for group in index.groups]
    return StepIndex(index.bytes, groups, leave_out_ungraded(index.columns))


def _redact_index(index: StepIndex) -> StepIndex:
    texts = {name: redact_texts([group.get(name) for group in index.groups]) for name in TEXTS}
    groups = [group | {name: texts[name][number] for name in TEXTS} for number, group in enumerate(index.groups)]
    columns = {
        name: redact_texts(column) if name in CELLS else column
        for name, column in index.columns.items()
        if name not in HIDDEN
    }
    return StepIndex(index.bytes, groups, columns)


def _nest_parts(cells: Row) -> Row:
    parts = {name.removeprefix(PARTS): value for name, value in cells.items() if name.startswith(PARTS)}
    plain = {name: value for name, value in cells.items() if not name.startswith(PARTS)}
    return {**plain, "parts": {name: value for name, value in parts.items() if value is not None}}
