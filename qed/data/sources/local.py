"""Read local data: jsonl, json, csv and parquet files, plain or gzipped, and folders, also of the datasets library."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from qed.data.sources.hub import SAVED, HubDataset, load_datasets_library, load_folder
from qed.data.sources.rows import Place, Row, Rows
from qed.errors import DataError

PLAIN = (".jsonl", ".json", ".csv", ".jsonl.gz", ".json.gz", ".csv.gz")
BOM = b"\xef\xbb\xbf"  # some editors write it before UTF-8 text
# MMLU's files have no header; their names start with the subject: anatomy_test.csv.
MMLU_HEADER = ("question", "A", "B", "C", "D", "answer")


def read_rows(path: str, split: str, hub: HubDataset | None = None) -> Rows:
    """Yield the rows of a file, or of a split of a folder; `hub` has the split's name in a copy of a hub dataset.

    Raises:
        DataError: the file does not exist or is broken; the message names file and row.
    """
    place = Path(path)
    if place.is_dir():
        yield from _list_split_files(place, split, hub or HubDataset(path, split))
    elif place.is_file():
        yield from _read_file(place)
    else:
        raise DataError(f"There is no data file {path}.")


def _list_split_files(folder: Path, split: str, hub: HubDataset) -> Rows:
    """Yield the rows of a folder's split: from its subfolder, else from files with its name, else from all files.

    Only csv and json files are read here; folders with parquet or Arrow files are read by the datasets library.
    """
    inner = folder / split if split and (folder / split).is_dir() else folder
    described = inner / "dataset_infos.json"  # metadata in older repositories of the hub
    plain = sorted(path for path in inner.iterdir() if path.name.lower().endswith(PLAIN) and path != described)
    if not plain or any((inner / name).is_file() for name in (*SAVED, "README.md")):
        yield from load_folder(folder, hub.split, hub.configs)
        return
    named = [path for path in plain if split and split in re.split(r"[-_.]", path.name)]
    for path in named or plain:
        yield from _read_file(path)


def _read_file(file: Path) -> Rows:
    name = file.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        numbered = _read_parquet(file)
    elif name.endswith(".jsonl"):
        numbered = _read_jsonl(file, _read_text(file))
    elif name.endswith(".csv"):
        numbered = _read_csv(file, _read_text(file))
    elif name.endswith(".json"):
        numbered = enumerate(_read_json_list(file, _read_text(file)), 1)
    else:
        raise DataError(f"{file} is not a .jsonl, .json, .csv or .parquet file.")
    for number, row in numbered:
        yield Place(str(file), number), row


def _read_bytes(file: Path) -> bytes:
    try:
        return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


def _read_text(file: Path) -> str:
    raw = _read_bytes(file)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{file}, line {line}: not UTF-8 text ({error.reason}). Save the file as UTF-8.") from error


def _read_jsonl(file: Path, text: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield number, _parse_line(Place(str(file), number), line)


def _parse_line(place: Place, line: str) -> Row:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{place}: broken JSON ({error.msg} at column {error.colno}): {line[:80]}") from error
    except RecursionError as error:
        raise DataError(f"{place}: nested too deeply: {line[:80]}") from error
    except ValueError as error:
        raise DataError(f"{place}: a number with too many digits ({error}).") from error
    if not isinstance(row, dict):
        raise DataError(f"{place}: expected an object with columns, found {type(row).__name__}.")
    return row


def check_rows(file: Path) -> Iterator[tuple[Place, Row | DataError]]:
    """Yield the rows of a file, with an error in place of each row that cannot be read.

    The lines of a jsonl file are checked one by one; an error in another format concerns the whole file.
    """
    number = 0
    try:
        if not file.name.lower().removesuffix(".gz").endswith(".jsonl"):
            for place, row in read_rows(str(file), ""):
                number = place.number
                yield place, row
            return
        for number, raw in enumerate(_read_bytes(file).removeprefix(BOM).split(b"\n"), 1):
            place = Place(str(file), number)
            try:
                if raw.strip():
                    yield place, _parse_line(place, raw.decode("utf-8"))
            except UnicodeDecodeError as error:
                yield place, DataError(f"{place}: not UTF-8 text ({error.reason} at byte {error.start}).")
            except DataError as error:
                yield place, error
    except DataError as error:
        yield Place(str(file), number + 1), error


def _read_csv(file: Path, text: str) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        first = next(reader, [])
        if len(first) == len(MMLU_HEADER) and first[-1] in MMLU_HEADER[1:-1]:
            subject = file.stem.removesuffix("_test").removesuffix("_dev").removesuffix("_val")
            for number, row in _read_cells(file, MMLU_HEADER, chain([first], reader)):
                yield number, {**row, "subject": subject}
        else:
            yield from _read_cells(file, first, reader)
    except csv.Error as error:
        raise DataError(
            f"{file}, line {reader.line_num}: not readable as csv ({error}). An open quote must be closed, and a quote "
            "inside quotes must be doubled."
        ) from error


def _read_cells(file: Path, names: Sequence[str], lines: Iterable[list[str]]) -> Iterator[tuple[int, Row]]:
    """Yield rows as dicts; empty rows are skipped, and empty cells after the last column are ignored."""
    duplicates = sorted({name for name in names if name and names.count(name) > 1})
    if duplicates:
        raise DataError(f"{file}: two columns have the name {duplicates[0]}, so one would hide the other. Rename one.")
    for number, cells in enumerate(filter(None, lines), 1):
        if len(cells) < len(names) or any(cells[len(names) :]):
            raise DataError(
                f"{file}, row {number}: {len(cells)} cells under {len(names)} columns. A cell with a comma or a line "
                "break needs quotes around it."
            )
        yield number, dict(zip(names, cells, strict=False))


def _read_json_list(file: Path, text: str) -> list[Row]:
    try:
        rows = json.loads(text) if text.strip() else []
    except json.JSONDecodeError as error:
        raise DataError(f"{file}, line {error.lineno}: broken JSON ({error.msg} at column {error.colno}).") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{file} is nested too deeply, or has a number with too many digits: {error}.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{file}: expected a list of objects.")
    return rows


def _read_parquet(file: Path) -> Iterator[tuple[int, Row]]:
    try:
        table = load_datasets_library().Dataset.from_parquet(str(file), keep_in_memory=True)
    except Exception as error:
        raise DataError(f"{file} cannot be read as parquet: {error}") from error
    yield from enumerate(table, 1)
