"""Write files and folders atomically, overwriting existing ones only if `overwrite` is set."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qed.data.sources.rows import Row
from qed.data.sources.writing import Writer
from qed.data.tasks import MANIFEST
from qed.errors import QedError, UsageError


def require_free_path(path: Path, overwrite: bool) -> None:
    """Raise if a file already exists, unless `overwrite` is set."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file to write.")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} already exists; name another file, or replace it with --overwrite.")


def require_free_folder(path: Path, overwrite: bool) -> None:
    """Raise if a folder is not empty; even `overwrite` replaces only an earlier snapshot."""
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        if not overwrite:
            raise UsageError(f"{path} already exists; name another folder, or replace it with --overwrite.")
        if not (path / MANIFEST).is_file():
            raise UsageError(f"{path} is not a snapshot (it has no {MANIFEST}), so --overwrite does not replace it.")


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Write rows to a file, which appears once all of them are written; an interrupted command leaves no file."""
    with Writer(path, exact=True) as writer:
        try:
            for row in rows:
                writer.add(row)
        except BaseException:
            writer.part.unlink(missing_ok=True)
            raise


@contextmanager
def open_snapshot(path: Path, overwrite: bool) -> Iterator[Path]:
    """Yield a temporary folder to fill, which is moved to `path` at the end.

    Raises:
        UsageError: the path already exists. Even `overwrite` replaces only an earlier snapshot.
        QedError: the path cannot be written.
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
