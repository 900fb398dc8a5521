"""Write rows to a file atomically: jsonl (line by line, plain or gzipped), csv or parquet."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

from qed.data.sources.hub import load_datasets_library
from qed.data.sources.rows import Row
from qed.errors import QedError, UsageError

LINES = (".jsonl", ".jsonl.gz")
SUFFIXES = (*LINES, ".csv", ".parquet")
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def require_suffix(path: Path) -> str:
    """Return the suffix of a file to write, such as .jsonl.gz.

    Raises:
        UsageError: the suffix is not a known format.
    """
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), "")
    if not suffix:
        raise UsageError(f"{path} must end in one of {', '.join(SUFFIXES)}.")
    return suffix


# Created once, because json.dumps creates an encoder in every call.
_encode_json = json.JSONEncoder(ensure_ascii=True, default=str, allow_nan=False).encode


def encode_row(row: Row) -> str:
    """Encode a row as a jsonl line with its line feed; non-JSON values become text, NaN and infinity null."""
    try:
        return _encode_json(row) + "\n"
    except ValueError:
        return _encode_json(_clear_not_finite(row)) + "\n"


def _clear_not_finite(value: Any) -> Any:
    """Return a copy with None for non-finite numbers, which JSON lacks."""
    if isinstance(value, dict):
        return {key: _clear_not_finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_clear_not_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Writer:
    """Writes rows one by one; the file appears under its name once all rows are written.

    A jsonl file is first written to `FILE.part`, which is kept if a command is interrupted or the disk is full, because
    the rows may have taken long to compute.

    Args:
        path: the file; its suffix determines the format.
        exact: write for programs, not for people: nested columns stay nested in parquet, and csv cells that look like
            formulas are not quoted against evaluation by a spreadsheet.

    Raises:
        UsageError: the file's suffix is not a known format.
    """

    def __init__(self, path: Path, exact: bool = False) -> None:
        self.path = path
        self.exact = exact
        self.part = path.with_name(f"{path.name}.part")
        self.rows: list[Row] = []
        require_suffix(path)
        self._lines: IO[str] | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.name.endswith(LINES):
                opened = gzip.open if path.name.endswith(".gz") else open
                self._lines = cast(IO[str], opened(self.part, "wt", encoding="utf-8"))
        except OSError as error:
            raise self._explain_unwritable(error) from error

    def __enter__(self) -> Writer:
        return self

    def add(self, row: Row) -> None:
        """Append a row."""
        if self._lines is None:
            self.rows.append(row)
        else:
            self.add_lines(encode_row(row))

    def add_lines(self, lines: str) -> None:
        """Append rows encoded by `encode_row`."""
        if self._lines is None:
            self.rows.extend(map(json.loads, lines.splitlines()))
            return
        try:
            self._lines.write(lines)
        except OSError as error:
            raise self._explain_unwritable(error, self._keep_rows()) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._lines is not None:
                self._lines.close()
            elif error is None:
                write = _encode_csv if self.path.suffix == ".csv" else _encode_parquet
                self.part.write_bytes(write(self.rows, self.exact))
            if error is None:
                self.part.replace(self.path)
        except OSError as failure:
            if error is None:
                raise self._explain_unwritable(failure, self._keep_rows()) from failure
        except (ValueError, TypeError) as failure:
            self.part.unlink(missing_ok=True)
            raise QedError(
                f"The rows do not fit into one table, which {self.path.name} needs: {failure}. Write jsonl instead."
            ) from failure

    def _keep_rows(self) -> str:
        """Return a sentence about the rows written so far; delete a partial file without rows, or of a table."""
        with suppress(OSError):
            if self._lines is not None and self.part.stat().st_size > 0:
                return f" The rows written so far are in {self.part}: delete it if you do not need them."
            self.part.unlink()
        return ""

    def _explain_unwritable(self, error: OSError, kept: str = "") -> QedError:
        return QedError(f"{self.path} cannot be written: {error.strerror or error}.{kept}")


def _encode_csv(rows: list[Row], exact: bool) -> bytes:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns)
    writer.writeheader()
    writer.writerows({name: _encode_cell(value, exact) for name, value in row.items()} for row in rows)
    return out.getvalue().encode("utf-8", "replace")


def _encode_cell(value: Any, exact: bool) -> Any:
    """Encode a value for a csv cell; unless `exact`, quote formulas so that no spreadsheet evaluates them."""
    if isinstance(value, dict | list):
        return json.dumps(value, default=str)
    if not exact and isinstance(value, str) and value.startswith(FORMULA) and not _is_number(value):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _encode_parquet(rows: list[Row], exact: bool) -> bytes:
    out = io.BytesIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {str(name): [row.get(name) for row in rows] for name in names}
    if not exact:
        columns = {name: _unify_column(list(map(_simplify_cell, values))) for name, values in columns.items()}
    load_datasets_library().Dataset.from_dict(columns).to_parquet(out)
    return out.getvalue()


def _simplify_cell(value: Any) -> Any:
    """Convert a cell for a table: dicts become JSON, because their keys vary, and lone surrogates become `?`."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return json.dumps(value, default=str) if isinstance(value, dict) else value


def _unify_column(values: list[Any]) -> list[Any]:
    """Return a column's cells unchanged if they have a common type, else as text."""
    import pyarrow  # noqa: PLC0415 -- heavy, and needed for this one format

    try:
        pyarrow.array(values)
    except (pyarrow.ArrowException, OverflowError, UnicodeError, RecursionError):
        return [
            value if value is None or isinstance(value, str) else json.dumps(value, default=str) for value in values
        ]
    return values
