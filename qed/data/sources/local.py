"""Read local data: jsonl, json, csv, tsv and parquet files, folders of them, and folders of the datasets library.

The first four formats may be compressed (gz, bz2, xz, zst).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from qed.config.task_names import (
    COMPRESSIONS,
    DATA_SUFFIXES,
    TEXT_SUFFIXES,
    explain_pattern,
    explain_start,
    strip_suffix,
)
from qed.console.progress import say_on_stderr
from qed.data.sources.delimited import check_table, parse_table
from qed.data.sources.hub import (
    SAVED,
    HubDataset,
    explain_cause,
    find_unread_columns,
    list_folder_splits,
    load_datasets_library,
    load_folder,
    name_type,
)
from qed.data.sources.json_files import has_part, parse_json, parse_line, parse_lines
from qed.data.sources.rows import Place, Row, Rows, decode_texts, describe_duplicates
from qed.data.sources.texts import guess_encoding, read_bytes, read_text
from qed.errors import DataError

BOM = b"\xef\xbb\xbf"  # some editors write it before UTF-8 text
# Folders with these names hold a split, which is read when that split is requested.
SPLITS = ("train", "training", "validation", "valid", "val", "dev", "test", "testing", "eval", "evaluation")


def read_rows(path: str, split: str, hub: HubDataset | None = None) -> Rows:
    """Yield the rows of a split of a file or folder; `hub` gives the split's name in a copy of a hub dataset.

    A file has splits only if it is json with a list per split; an empty split reads everything.

    Raises:
        DataError: the file does not exist or is broken; the message names the file and the row.
    """
    place = Path(path)
    if place.is_dir():
        files, _ = _find_split_files(place, split)
        for file in files:
            yield from _read_file(file, split)
        if not files:
            yield from load_folder(place, hub.split if hub else split, hub.configs if hub else ())
    elif place.is_file():
        yield from _read_file(place, split)
    else:
        raise DataError(f"There is no data file {path}.{explain_pattern(path) or explain_start(path)}")


def has_split(path: str, split: str, configs: Sequence[str] = ()) -> bool:
    """Return whether a file or folder has a split of this name, and rows outside of it."""
    place = Path(path)
    if not place.is_dir():
        return _find_kind(place) == ".json" and has_part(read_text(place), split)
    files, is_own = _find_split_files(place, split)
    if files:
        return is_own or all(has_split(str(file), split) for file in files)
    with suppress(DataError):  # where the files of another split are text, the library may fail
        return split in list_folder_splits(place, configs)
    return False


def _find_split_files(folder: Path, split: str) -> tuple[list[Path], bool]:
    """Return the files of a split (those in its subfolder, those with its name, or all), and whether there are others.

    Folders with text files are read here, including their parquet files, except one with the same name as a text file,
    which most likely has the same rows. Folders with only parquet or Arrow files are read by the datasets library.
    """
    inner = folder / split if split and (folder / split).is_dir() else folder
    found = sorted(filter(_is_data, inner.iterdir()))
    texts = {strip_suffix(path.name): path for path in found if path.name.lower().endswith(TEXT_SUFFIXES)}
    if not texts or any((inner / name).is_file() for name in (*SAVED, "README.md")):
        return [], False
    parquet = {path: strip_suffix(path.name) for path in found if path.name.lower().endswith(".parquet")}
    copies = {path: texts[name] for path, name in parquet.items() if name in texts}
    for copy, text in copies.items():
        _report_skipped_file(copy, text)
    _report_unread_folders(inner, bool(split))
    if inner != folder:
        _report_unread_files(folder, inner)
    files = [path for path in found if path not in copies]
    named = [path for path in files if split and split.lower() in re.split(r"[-_.]", path.name.lower())]
    return named or files, inner != folder or 0 < len(named) < len(files)


@cache
def _report_skipped_file(file: Path, text: Path) -> None:
    reason = f"{text.name} has the same name, so probably the same rows"
    say_on_stderr(f"{file} is skipped: {reason}. To read both, rename one.")


@cache
def _report_unread_folders(folder: Path, has_splits: bool) -> None:
    """Report subfolders with data that is not read in addition to the folder's own files.

    They are not read because they may hold anything: another format of the same rows, or answers of a model.

    Args:
        folder: the folder.
        has_splits: whether one split is read, so that subfolders named like other splits are not part of it.
    """
    splits = SPLITS if has_splits else ()
    unread = [
        inner
        for inner in sorted(folder.iterdir())
        if inner.name[0] != "." and inner.name.lower() not in splits and _holds_data(inner)
    ]
    if unread:
        names = ", ".join(inner.name for inner in unread)
        say_on_stderr(
            f"{folder} has files of its own, so those in its subfolders are not read: {names}. To read them too, name "
            f"them as well, such as {unread[0]}."
        )


@cache
def _report_unread_files(folder: Path, inner: Path) -> None:
    """Report files next to a split's own subfolder that are not read, except those named like a split."""
    files = (path for path in sorted(folder.iterdir()) if _is_data(path) and path.is_file())
    unread = [path.name for path in files if not {*re.split(r"[-_.]", path.name.lower())} & {*SPLITS}]
    if unread:
        say_on_stderr(f"The split is read from {inner}; files next to that folder are not read: {', '.join(unread)}.")


def _holds_data(folder: Path) -> bool:
    """Return whether a subfolder, or one inside it, has a file named like a data file.

    Hidden or unreadable folders, and links to a parent folder, do not count.
    """
    for inside, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        if any(_is_data(Path(inside, name)) for name in names if not name.startswith(".")):
            outer = folder.parent.resolve()
            return folder.resolve() not in (outer, *outer.parents)
    return False


def _is_data(path: Path) -> bool:
    """Return whether a path in a folder has the name of a data file, and not that of hub metadata."""
    return path.name.lower().endswith(DATA_SUFFIXES) and path.name != "dataset_infos.json"


def list_files(place: Path) -> list[Path]:
    """Return the data files of a folder and its subfolders, without hidden ones; for a file, the file itself.

    Raises:
        DataError: there is no such file or folder, or the folder has no file of a supported format.
    """
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise DataError(f"There is no file {place} to validate.{explain_pattern(str(place))}")
    files = sorted(
        path
        for path in place.rglob("*")
        if _is_data(path) and path.is_file() and not any(part[0] == "." for part in path.relative_to(place).parts)
    )
    if not files or any((place / name).is_file() for name in SAVED):
        raise DataError(
            f"The folder {place} has no .jsonl, .json, .csv, .tsv or .parquet files of its own to check row by row. "
            "`qed data inspect` also reads folders saved by the datasets library."
        )
    return files


def require_file(path: Path, purpose: str, one_of: bool = False) -> None:
    """Require that a path is a file; `purpose` says what for, such as "to grade".

    The message for a folder proposes all its files of a kind, or with `one_of` its first data file.

    Raises:
        DataError: it is a folder, or there is nothing.
    """
    if path.is_dir():
        first = next((inner for inner in sorted(path.iterdir()) if _is_data(inner)), None)
        name = first.name.lower() if first else ".jsonl"
        pattern = f"*{next(suffix for suffix in DATA_SUFFIXES if name.endswith(suffix))}"
        named = f"one file in it, such as {first}" if one_of and first else f"the files in it, such as {path / pattern}"
        raise DataError(f"{path} is a folder. Name {named}.")
    if not path.is_file():
        raise DataError(f"There is no file {path} {purpose}.")


def _read_file(file: Path, split: str) -> Rows:
    kind = _find_kind(file)
    if kind == ".parquet":
        numbered = _read_parquet(file)
    elif kind == ".jsonl":
        numbered = parse_lines(file, read_text(file))
    elif kind in (".csv", ".tsv"):
        numbered = parse_table(file, read_text(file))
    elif kind == ".json":
        numbered = parse_json(file, read_text(file), split)
    else:
        raise DataError(
            f"{file} is not a .jsonl, .json, .csv, .tsv or .parquet file; the first four may end in "
            f"{', '.join(COMPRESSIONS)}."
        )
    name = str(file)
    for number, row in numbered:
        yield Place(name, number), row


def has_lines(file: Path) -> bool:
    """Return whether a file is JSON Lines by its name; it may be compressed."""
    return _find_kind(file) == ".jsonl"


def _find_kind(file: Path) -> str:
    """Return the suffix that determines how a file is read, without that of its compression."""
    suffixes = [suffix.lower() for suffix in file.suffixes]
    if suffixes and suffixes[-1] in COMPRESSIONS:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def check_rows(file: Path) -> Iterator[tuple[Place, Row | DataError]]:
    """Yield the rows of a file, with an error instead of each row that cannot be read.

    The lines of a jsonl file and the rows of a csv or tsv file are checked one by one; any other error ends the file,
    and its place is the whole file unless it names the row.
    """
    number = 0
    try:
        for place, row in _check_parts(file):
            number = place.number
            yield place, row
    except DataError as error:
        place = Place(str(file), number + 1)
        yield place if str(error).startswith(f"{place}: ") else Place(str(file), 0), error


def _check_parts(file: Path) -> Iterator[tuple[Place, Row | DataError]]:
    kind = _find_kind(file)
    if kind in (".csv", ".tsv"):
        yield from ((Place(str(file), number), row) for number, row in check_table(file, read_text(file)))
    elif kind != ".jsonl" or guess_encoding(raw := read_bytes(file)) != "utf-8-sig":
        yield from read_rows(str(file), "")
    else:
        yield from _check_lines(file, raw)


def _check_lines(file: Path, raw: bytes) -> Iterator[tuple[Place, Row | DataError]]:
    for number, line in enumerate(raw.removeprefix(BOM).split(b"\n"), 1):
        place = Place(str(file), number)
        try:
            if line.strip():
                yield place, parse_line(place, line.decode("utf-8"))
        except UnicodeDecodeError as error:
            yield place, DataError(f"{place}: not UTF-8 text ({error.reason} at byte {error.start}).")
        except DataError as error:
            yield place, error


def _read_parquet(file: Path) -> Iterator[tuple[int, Row]]:
    from pyarrow.parquet import read_metadata  # noqa: PLC0415 -- heavy, and needed for this one format

    try:
        metadata = read_metadata(file)
        if metadata.num_rows == 0:  # the library cannot make a table of it
            return
        schema = metadata.schema.to_arrow_schema()
        if duplicates := describe_duplicates(schema.names):
            raise DataError(f"{file}: {duplicates}")
        chosen = _choose_columns(file, schema)
        table = load_datasets_library().Dataset.from_parquet(str(file), keep_in_memory=True, **chosen)
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"{file} cannot be read as parquet: {explain_cause(error)}") from error
    yield from enumerate(map(decode_texts, table), 1)


def _choose_columns(file: Path, schema: Any) -> dict[str, Any]:
    """Return the arguments of `from_parquet` that skip the columns it cannot read, and report these."""
    unread = find_unread_columns(schema)
    columns = [column for column in schema if column not in unread]
    if not unread or not columns:
        return {}
    _report_unread_columns(file, ", ".join(f"{column.name} ({name_type(column)})" for column in unread))
    for column in unread:
        schema = schema.remove(schema.get_field_index(column.name))
    features = load_datasets_library().Features.from_arrow_schema(schema)
    return {"columns": [column.name for column in columns], "features": features}


@cache
def _report_unread_columns(file: Path, names: str) -> None:
    say_on_stderr(
        f"{file}: columns of these types cannot be read and are skipped: {names}. Convert the ones that you need to "
        "text, numbers, lists or structs."
    )
