"""Opens and locks a run's folder: new, resumed, or replacing another run; one process at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from qed.errors import UsageError
from qed.runs.manifest import list_checkpoints
from qed.runs.run import Launch

LOCK = ".lock"
# Files that a process creates before settings.yaml; a folder with only these is not yet a run.
BEFORE_SETTINGS = {LOCK, "logs", "events.jsonl", "heartbeat.json", ".heartbeat.json.part"}
REPLACED = ".replaced-"  # marks a run that is moved aside while its replacement is prepared
# The tables in a sweep's folder: one of trained runs, and one of evaluations with all figures.
RUNS_TABLE, CELLS_TABLE, CELLS_FIGURES = "runs.csv", "sweep.csv", "sweep.json"
NO_RUN = "{folder} holds no run to resume: it has no settings.yaml. Start one without --resume."


def open_folder(out: str, name: str, launch: Launch) -> tuple[Path, Path | None]:
    """Open the folder of a run: create a new one, resume, or replace an existing run.

    A folder counts as empty if its process was killed before it wrote settings.yaml.

    Args:
        out: the folder, or empty for a new one under runs/.
        name: the first part of the new folder's name.
        launch: whether an existing run is resumed or replaced.

    Returns:
        The folder, and where a run that it replaces was moved, or None.

    Raises:
        UsageError: the folder cannot be used; the message says why, and what to do.
    """
    if launch.resume:
        require_run(out)
    if not out:
        out = f"runs/{name}--{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder, aside = Path(out), None
    _require_unused(folder)
    _restore_replaced(folder)
    is_run = (folder / "settings.yaml").is_file()
    if launch.resume and not is_run:  # a replaced run cannot be restored into a folder in use
        raise UsageError(NO_RUN.format(folder=folder))
    if _is_occupied(folder) and not launch.resume:
        require_free(folder, launch)
        folder = _resolve(folder)
        aside = folder.with_name(f".{folder.name}{REPLACED}{secrets.token_hex(4)}")
    try:
        if aside is not None:
            folder.rename(aside)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _restore_replaced(folder)
        raise UsageError(f"The folder {folder} cannot be made or written: {error.strerror}.") from error
    return folder, aside


def require_free(folder: Path, launch: Launch) -> None:
    """Require that a new run can use the folder: it is empty or missing, or holds a run that may be replaced.

    Raises:
        UsageError: it cannot; the message says what to do.
    """
    is_run = (folder / "settings.yaml").is_file()
    if not _is_occupied(folder) or (launch.overwrite and is_run):
        return
    what = (
        "Continue it with --resume, or replace it with --overwrite."
        if _has_begun(folder)
        else "Its run has finished no step: replace it with --overwrite, or continue it with --resume."
        if is_run
        else "It is not a run; choose another folder."
    )
    raise UsageError(f"The folder {folder} already exists and is not empty. {what}")


def require_run(out: str) -> None:
    """Check that a folder has a run to resume, or one that a killed process moved aside in order to replace it.

    Raises:
        UsageError: it has none, no folder is named, or another process is writing to it.
    """
    if not out:
        raise UsageError("--resume needs the run's folder: add --out DIR.")
    folder = Path(out)
    _require_unused(folder)
    if not (folder / "settings.yaml").is_file() and not _list_replaced(_resolve(folder)):
        raise UsageError(NO_RUN.format(folder=folder))


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a run's folder against other processes until the block or this process ends.

    Raises:
        UsageError: another process writes it.
    """
    lock = _open_lock(folder)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _open_lock(folder: Path) -> IO[str] | None:
    """Open and lock the lock file; None if it cannot be written or the file system has no locks.

    Raises:
        UsageError: another process holds the lock.
    """
    try:
        lock = (folder / LOCK).open("a+", encoding="utf-8")
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        owner = lock.read().strip() or "another process"
        lock.close()
        raise UsageError(
            f"The run {folder} is being written by {owner}. Wait until it has ended, or end it first: two processes "
            "would corrupt the folder."
        ) from error
    except OSError:
        lock.close()
        return None
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    lock.flush()
    return lock


def _require_unused(folder: Path) -> None:
    """Raise UsageError if another process is writing to this folder."""
    if (folder / LOCK).is_file():
        with lock_folder(folder):
            pass


def _has_begun(folder: Path) -> bool:
    """Return whether a run has evaluated or trained anything."""
    metrics = folder / "metrics.jsonl"
    return (metrics.is_file() and metrics.stat().st_size > 0) or bool(list_checkpoints(folder))


def _is_occupied(folder: Path) -> bool:
    """Return whether the folder has files besides those in BEFORE_SETTINGS."""
    if not folder.is_dir():
        return folder.exists()
    return any(path.name not in BEFORE_SETTINGS for path in folder.iterdir())


def _resolve(folder: Path) -> Path:
    """Return a folder's absolute path, even if links form a cycle; creating the folder then fails."""
    return Path(os.path.realpath(folder))  # `Path.resolve` raises RuntimeError for such links before Python 3.13


def _restore_replaced(folder: Path) -> None:
    """Clean up after a process that was killed while preparing a run that replaces another.

    A fully prepared run has a metrics.jsonl, possibly empty. If there is one, delete the replaced run; otherwise
    restore it.
    """
    folder = _resolve(folder)
    asides = _list_replaced(folder)
    is_run = (folder / "settings.yaml").is_file()
    if not asides or (_is_occupied(folder) and not is_run):
        return
    asides.sort(key=lambda path: path.stat().st_mtime)
    with suppress(OSError):
        if not (folder / "metrics.jsonl").is_file():
            shutil.rmtree(folder, ignore_errors=True)
            asides.pop().rename(folder)
    for aside in asides:
        shutil.rmtree(aside, ignore_errors=True)


def _list_replaced(folder: Path) -> list[Path]:
    """Return the runs that were moved aside to be replaced by one in this folder, whose path is absolute."""
    try:
        return [path for path in folder.parent.iterdir() if path.name.startswith(f".{folder.name}{REPLACED}")]
    except OSError:  # the parent does not exist, or may not be listed
        return []


def drop_repeated(paths: Iterable[Path]) -> list[Path]:
    """Return the paths, each file or folder once, under the first of its names."""
    first: dict[Path, Path] = {}
    for path in paths:
        first.setdefault(path.resolve(), path)
    return list(first.values())


def drop_tables(paths: Sequence[Path]) -> list[Path]:
    """Return paths without a sweep's tables, which `FOLDER/*` matches besides its runs; all paths if none is left."""
    tables = (RUNS_TABLE, CELLS_TABLE, CELLS_FIGURES)
    return [path for path in paths if path.name not in tables or not path.is_file()] or list(paths)
