"""Files and folders that are there as a whole or not at all, and that replace nothing unless they are told to."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qed.data.sources.rows import Row
from qed.data.sources.writing import Writer
from qed.data.tasks import MANIFEST
from qed.errors import QedError, UsageError


def require_free_path(path: Path, overwrite: bool) -> None:
    """Refuse a file that is there already."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file to write.")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} is there already; name another file, or replace it with --overwrite.")


def require_free_folder(path: Path, overwrite: bool) -> None:
    """Refuse a folder with something in it; even `overwrite` replaces nothing but an earlier snapshot."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        if not overwrite:
            raise UsageError(f"{path} is there already; name another folder, or replace it with --overwrite.")
        if not (path / MANIFEST).is_file():
            raise UsageError(f"{path} is no snapshot (it has no {MANIFEST}), so --overwrite does not replace it.")


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Rows to a file, which appears when all of them are written; an interrupted command leaves nothing of it."""
    with Writer(path, exact=True) as writer:
        try:
            for row in rows:
                writer.add(row)
        except BaseException:
            writer.part.unlink(missing_ok=True)
            raise


@contextmanager
def open_snapshot(path: Path, overwrite: bool) -> Iterator[Path]:
    """A folder to fill, which takes its place once all is in it.

    Raises:
        UsageError: something is there already. Even `overwrite` replaces nothing but an earlier snapshot.
        QedError: the place cannot be written to.
    """
    require_free_folder(path, overwrite)
    place = path.resolve()
    part, aside = place.with_name(f".{place.name}.part"), place.with_name(f".{place.name}.old")
    try:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            yield part
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        shutil.rmtree(aside, ignore_errors=True)
        if place.exists():
            place.rename(aside)
        part.rename(place)
        shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise QedError(f"{path} cannot be written: {error.strerror or error}.") from error


def hash_file(path: Path) -> str:
    """The hash of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
