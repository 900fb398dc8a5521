"""The folders through which inference servers get new weights: complete with a marker, few kept, removed at the end.

A version is written under a temporary name, synced to disk, marked as complete and renamed, so a server never reads a
half of it. All versions of a run lie in one folder that no other run uses. A small process outside of the run removes
it when the run ends without doing so, as after SIGKILL; what is left over even then is removed by the next run here.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from qed import host
from qed.errors import QedError
from qed.models import lora
from qed.models.save import ModelFiles, is_disk_error
from qed.models.weights_folder import MARKER, read_marker
from qed.runs import manifest

MEMORY = Path("/dev/shm")  # a file system in memory
PREFIX = "qed-weights-"
OWNER = ".owner"  # locked as long as the run lives
TEMPORARY = ".part-"
SHARE = 0.5  # of the memory that is free, which the kept versions may take
REMOVER = 'cat >/dev/null; rm -rf -- "$1"'  # reads a pipe that closes when the run ends, however it ends

Format = Literal["full", "adapter"]


class Writes(Protocol):
    """Writes the files of a version into a folder on rank 0; other ranks take part in gathering."""

    def __call__(self, folder: Path, rank: int) -> None:
        """Write, or take part."""
        ...


def write_full(model: Any, tokenizer: Any, dtype: str) -> Writes:
    """Return what writes complete weights with config and tokenizer; an empty `dtype` keeps the bits of the weights."""
    return lambda folder, rank: ModelFiles(model, dtype).write(folder, tokenizer, rank)


def write_base(model: Any, tokenizer: Any, dtype: str) -> Writes:
    """Return what writes the weights of a model without its adapters."""
    return lambda folder, rank: ModelFiles(model, dtype, merge=False).write(folder, tokenizer, rank)


def write_adapter(model: Any) -> Writes:
    """Return what writes the adapters of a model, in peft's layout."""

    def write(folder: Path, rank: int) -> None:
        tensors = lora.gather_adapters(model)
        if rank == 0:
            lora.save_adapters(model, folder, tensors)

    return write


class WeightsFolder:
    """The versions of a run's weights for its servers; only rank 0 has one.

    Args:
        place: the folder in which this run gets a folder of its own.
        keep: the number of newest versions that stay.
    """

    def __init__(self, place: Path, keep: int = 2) -> None:
        self.keep = keep
        self.pinned: set[str] = set()  # the names of versions that are still to be loaded, which stay
        self._made = None if place.exists() else place
        remove_leftovers(place)
        try:
            self.root, self._lock = _make_root(place)
        except OSError as error:
            raise _explain(place, error) from error
        # In a session of its own: what ends the run's processes by group must not end it before its work.
        self._remover = subprocess.Popen(
            ["sh", "-c", REMOVER, "sh", str(self.root)], stdin=subprocess.PIPE, start_new_session=True
        )

    def write(self, name: str, version: int, kind: Format, files: Writes) -> Path:
        """Write a version on rank 0, and return its folder once it is complete; older ones than the newest are deleted.

        Args:
            name: of the folder; it begins with the format, and is written again if it exists.
            version: the step that made the weights.
            kind: what it holds.
            files: writes the files.

        Raises:
            QedError: the folder cannot be written.
        """
        target, temporary = self.root / name, self.root / f"{TEMPORARY}{name}"
        try:
            self._prune(self.keep - 1)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
        except OSError as error:
            files(temporary, 1)  # the other ranks are gathering
            raise _explain(self.root, error) from error
        try:
            files(temporary, 0)
            manifest.fsync_tree(temporary)
            (temporary / MARKER).write_text(json.dumps({"version": version, "format": kind}), encoding="utf-8")
            manifest.fsync(temporary / MARKER)
            manifest.fsync(temporary)
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            manifest.fsync(self.root)
        except Exception as error:
            if not is_disk_error(error):
                raise
            raise _explain(self.root, error) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return target

    def find(self, name: str) -> Path | None:
        """Return the folder of a complete version; None if there is none."""
        return self.root / name if (self.root / name / MARKER).is_file() else None

    def list_versions(self) -> list[Path]:
        """Return the complete versions, oldest first; a base of adapters is none."""
        found = [folder for folder in self.root.glob("step_*") if (folder / MARKER).is_file()]
        return sorted(found, key=lambda folder: (read_marker(folder)[0], folder.name))

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.root, ignore_errors=True)
        with suppress(OSError):
            if self._remover.stdin is not None:
                self._remover.stdin.close()
        self._remover.wait()
        self._lock.close()
        if self._made is not None:
            with suppress(OSError):  # another run may use it
                self._made.rmdir()

    def _prune(self, keep: int) -> None:
        for folder in self.list_versions()[: -keep or None]:
            if folder.name not in self.pinned:
                shutil.rmtree(folder, ignore_errors=True)


def choose_place(wanted: str, run: Path, needed: int, local: bool) -> Path:
    """Choose where the versions of a run lie.

    Args:
        wanted: `sampling.weights_folder`.
        run: the run's folder.
        needed: the bytes of all versions that exist at the same time.
        local: whether all servers are on this machine, and so see its memory.
    """
    if wanted:
        return Path(wanted)
    if local and MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and needed <= SHARE * _read_free():
        return MEMORY
    return run / "weights"


def remove_leftovers(place: Path) -> None:
    """Remove the folders of runs that have ended without doing so."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / OWNER).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the run lives
            shutil.rmtree(folder, ignore_errors=True)


def _read_free() -> int:
    """Return the bytes that files in memory may take."""
    free = shutil.disk_usage(MEMORY).free
    with suppress(OSError, KeyError):
        return min(free, host.read_memory()[1])
    return free


def _make_root(place: Path) -> tuple[Path, IO[str]]:
    """Make a folder and lock it; it gets its name last, so that no other run takes it for a leftover."""
    place.mkdir(parents=True, exist_ok=True)
    name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    hidden = place / f".{name}"
    # Memory is shared with all users of the machine; a folder on a disk may be there for a server of another user.
    hidden.mkdir(mode=0o700 if place == MEMORY else 0o755)
    lock = (hidden / OWNER).open("w", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return hidden.rename(place / name), lock


def _explain(place: Path, error: Exception) -> QedError:
    reason = getattr(error, "strerror", None) or error
    return QedError(
        f"The weights for the inference servers cannot be written to {place}: {reason}. Free some "
        "space there, or choose a folder that the servers see with sampling.weights_folder."
    )
