"""Rows passed in Python: a list of dicts, a `datasets.Dataset` or a data frame, as the task `memory:NAME`.

They are read by their columns, like the rows of a file. Each call has its own rows, so that successive calls, or calls
in several threads, do not read each other's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

from qed.data.sources.rows import Place, Row, Rows, decode_texts
from qed.errors import DataError, UsageError, suggest_nearest
from qed.host import set_context

LEAF = "memory"
KINDS = "a list of dicts, a datasets.Dataset or a data frame"

_given: ContextVar[Mapping[str, list[Row]]] = ContextVar("rows")


def give_rows(rows: Mapping[str, list[Row]]) -> AbstractContextManager[None]:
    """Return a context manager that provides rows by task name, `memory:NAME`."""
    return set_context(_given, rows)


def get_given_rows() -> Mapping[str, list[Row]]:
    """Return the rows that are currently provided, by name."""
    return _given.get({})


def copy_rows(name: str, rows: Any) -> list[Row]:
    """Copy rows to provide as the task `memory:NAME`.

    Args:
        name: letters, digits, `_`, `-` and `.`; it becomes the task's split and the prefix of the problems' ids.
        rows: an iterable of dicts (a list, a generator, a `datasets.Dataset`), or a data frame of pandas, polars or
            pyarrow. Missing cells of a data frame become None.

    Raises:
        UsageError: the name has other characters, or the object is not a table of rows.
        DataError: there are no rows, or one of them is not a dict.
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise UsageError(f"'{name}' cannot name rows; use letters, digits, '_', '-' and '.'.")
    kept = []
    for number, row in enumerate(_list_rows(rows), 1):
        if not isinstance(row, Mapping):
            raise DataError(f"{LEAF}:{name}, row {number}: expected a dict of columns, found {type(row).__name__}.")
        kept.append(decode_texts({str(key): _copy_value(value) for key, value in row.items()}))
    if not kept:
        raise DataError(f"{LEAF}:{name} has no rows: the {type(rows).__name__} is empty.")
    return kept


def read_given(name: str) -> Rows:
    """Yield the rows that are provided under a name.

    Raises:
        UsageError: there are no such rows.
    """
    given = get_given_rows()
    if name not in given:
        raise UsageError(
            f"{LEAF}:{name} is data that was passed in Python, and this call does not have it."
            f"{suggest_nearest(name, given)} Pass the same rows again, as the tasks of qed.train or qed.evaluate; "
            "qed.evaluate(run) has them if qed.train returned that run. From the command line, use a file."
        )
    for number, row in enumerate(given[name], 1):
        yield Place(f"{LEAF}:{name}", number), dict(row)


def _list_rows(table: Any) -> Iterable[Any]:
    """Return the rows of a table; data frames are recognised by their methods, to avoid importing their libraries."""
    if hasattr(table, "iterrows"):  # pandas, which writes missing cells as NaN
        rows: Iterable[Any] = table.astype(object).where(table.notna(), None).to_dict("records")
        return rows
    for method in ("to_dicts", "to_pylist"):  # polars, pyarrow
        if hasattr(table, method):
            rows = getattr(table, method)()
            return rows
    if isinstance(table, Mapping):
        raise UsageError(
            f"Data in Python must be {KINDS}, not a {type(table).__name__} of {', '.join(map(str, table))}. "
            "Pass one split of it, such as data['train']."
        )
    if isinstance(table, str | bytes) or not isinstance(table, Iterable):
        raise UsageError(f"Data in Python must be {KINDS}, not {type(table).__name__}.")
    return table


def _copy_value(value: Any) -> Any:
    """Copy a cell, converting NumPy arrays and numbers to Python lists and numbers."""
    if isinstance(value, Mapping):
        return {str(key): _copy_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_copy_value(inner) for inner in value]
    return _copy_value(value.tolist()) if hasattr(value, "tolist") else value
