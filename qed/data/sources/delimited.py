"""Read delimited text: csv with commas, semicolons or tabs, and tsv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from qed.data.sources.rows import Row, describe_duplicates
from qed.errors import DataError

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab"}
# MMLU's files have no header; their names start with the subject: anatomy_test.csv.
MMLU_HEADER = ("question", "A", "B", "C", "D", "answer")


def parse_table(file: Path, text: str) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a csv or tsv file with their numbers from 1.

    Raises:
        DataError: a quote is not closed, a row has the wrong number of cells, or two columns have the same name.
    """
    for number, row in check_table(file, text):
        if isinstance(row, DataError):
            raise row
        yield number, row


def check_table(file: Path, text: str) -> Iterator[tuple[int, Row | DataError]]:
    """Yield the rows of a csv or tsv file, with an error instead of each row that has the wrong number of cells.

    Raises:
        DataError: a quote is not closed, or two columns have the same name.
    """
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    delimiter = "\t" if ".tsv" in file.name.lower() else _find_delimiter(text)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True, delimiter=delimiter)
    try:
        first = next(reader, [])
        if len(first) == len(MMLU_HEADER) and first[-1] in MMLU_HEADER[1:-1]:
            subject = file.stem.removesuffix("_test").removesuffix("_dev").removesuffix("_val")
            for number, row in _read_cells(file, MMLU_HEADER, chain([first], reader), delimiter):
                yield number, row if isinstance(row, DataError) else {**row, "subject": subject}
        else:
            yield from _read_cells(file, first, reader, delimiter)
    except csv.Error as error:
        raise DataError(
            f"{file}, line {reader.line_num}: not readable as csv ({error}). Close every quote, and double a quote "
            "inside quotes."
        ) from error


def _find_delimiter(text: str) -> str:
    """Return the delimiter of a csv file: other than a comma only if the header has no comma between cells."""
    for delimiter in DELIMITERS:
        try:
            header = next(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), [])
        except csv.Error:
            continue
        if len(header) > 1:
            return delimiter
    return ","


def _read_cells(
    file: Path, names: Sequence[str], lines: Iterable[list[str]], delimiter: str
) -> Iterator[tuple[int, Row | DataError]]:
    """Yield rows as dicts, or errors; empty rows are skipped, and empty cells after the last column are ignored."""
    if duplicates := describe_duplicates(names):
        raise DataError(f"{file}: {duplicates}")
    for number, cells in enumerate(filter(None, lines), 1):
        if len(cells) < len(names) or any(cells[len(names) :]):
            yield (
                number,
                DataError(
                    f"{file}, row {number}: {len(cells)} cells under {len(names)} columns. A cell with a "
                    f"{DELIMITERS[delimiter]} or a line break needs quotes around it."
                ),
            )
        else:
            yield number, dict(zip(names, cells, strict=False))
