"""The folder that a run is to be written into: fresh, resumed, or in the place of another; one process at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from qed.errors import UsageError
from qed.runs.run import Launch

LOCK = ".lock"
# What a process has made in its folder before there are settings, which make the folder a run.
BEFORE_SETTINGS = {LOCK, "logs", "events.jsonl", "heartbeat.json", ".heartbeat.json.part"}
REPLACED = ".replaced-"  # in the name of a run that is put aside while another is prepared in its place


def open_folder(out: str, name: str, launch: Launch) -> tuple[Path, Path | None]:
    """The folder of a run: fresh, or resumed, or in the place of another when asked.

    A folder that a process left which was killed before its run had begun counts as empty.

    Args:
        out: the folder, or empty for a fresh one under runs/.
        name: the beginning of the fresh folder's name.
        launch: what may happen to a folder that exists.

    Returns:
        the folder, and where the run that it replaces has been put aside.

    Raises:
        UsageError: the folder cannot be taken; why, and what to do.
    """
    if not out:
        if launch.resume:
            raise UsageError("--resume needs the run's folder: add --out DIR.")
        out = f"runs/{name}--{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    folder, aside = Path(out), None
    _require_unused(folder)
    _restore_replaced(folder)
    is_run = (folder / "settings.yaml").is_file()
    if launch.resume and not is_run:
        raise UsageError(f"{folder} holds no run to resume: it has no settings.yaml. Begin one without --resume.")
    if _is_occupied(folder) and not launch.resume:
        if not (launch.overwrite and is_run):
            what = (
                "Continue it with --resume, or replace it with --overwrite."
                if is_run
                else "It is no run; choose another."
            )
            raise UsageError(f"The folder {folder} already exists and is not empty. {what}")
        folder = folder.resolve()
        aside = folder.with_name(f".{folder.name}{REPLACED}{secrets.token_hex(4)}")
    try:
        if aside is not None:
            folder.rename(aside)
        (folder / "logs").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made or written: {error.strerror}.") from error
    return folder, aside


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Keep every other process from writing a run's folder until the block, or this process, ends, however it ends.

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
    """The folder's lock; None where it cannot be written, or the disk knows no locks."""
    try:
        lock = (folder / LOCK).open("a+", encoding="utf-8")
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.seek(0)
        told = lock.read().strip() or "another process"
        lock.close()
        raise UsageError(
            f"The run {folder} is being written by {told}. Wait until it has ended, or end it first: two processes in "
            "one folder would spoil it."
        ) from error
    except OSError:
        lock.close()
        return None
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    lock.flush()
    return lock


def _require_unused(folder: Path) -> None:
    if (folder / LOCK).is_file():
        with lock_folder(folder):
            pass


def _is_occupied(folder: Path) -> bool:
    """Whether there is anything but what a process leaves that never came to write its settings."""
    if not folder.is_dir():
        return folder.exists()
    return any(path.name not in BEFORE_SETTINGS for path in folder.iterdir())


def _restore_replaced(folder: Path) -> None:
    """Undo what a process that was killed while it prepared a run in the place of another has left.

    A run that is prepared has its metrics, were they none; until then the run before it comes back, and from then on it
    is gone for good.
    """
    folder = folder.resolve()
    around = folder.parent.iterdir() if folder.parent.is_dir() else ()
    asides = [path for path in around if path.name.startswith(f".{folder.name}{REPLACED}")]
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
