"""The folders through which inference servers get new weights: marked when complete, pruned, and removed at the end.

A version is written under a temporary name, synced to disk, marked as complete and renamed, so a server never reads a
partial one. All versions of a run are in one folder that no other run uses. A small separate process removes it if the
run ends without doing so, for example after SIGKILL; anything still left over is removed by the next run here.
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
OWNER = ".owner"  # locked while the run is alive
TEMPORARY = ".part-"
SHARE = 0.5  # largest share of the free memory that kept versions may take
REMOVER = 'cat >/dev/null; rm -rf -- "$1"'  # reads a pipe that closes when the run ends for any reason

Format = Literal["full", "adapter"]


class Writes(Protocol):
    """Writes a version's files into a folder on rank 0; other ranks only take part in gathering."""

    def __call__(self, folder: Path, rank: int) -> None:
        """Write the files, or take part in gathering."""
        ...


def name_version(version: int) -> str:
    """Return the name of a version's folder, as `WeightsFolder.list_versions` finds it."""
    return f"step_{version:06d}"


def write_full(model: Any, tokenizer: Any, dtype: str) -> Writes:
    """Return a writer of complete weights with config and tokenizer; an empty `dtype` keeps the weights' own."""
    return lambda folder, rank: ModelFiles(model, dtype).write(folder, tokenizer, rank)


def write_base(model: Any, tokenizer: Any, dtype: str) -> Writes:
    """Return a writer of a model's weights without its adapters."""
    return lambda folder, rank: ModelFiles(model, dtype, merge=False).write(folder, tokenizer, rank)


def write_adapter(model: Any) -> Writes:
    """Return a writer of a model's adapters, in peft's layout."""

    def write(folder: Path, rank: int) -> None:
        tensors = lora.gather_adapters(model)
        if rank == 0:
            lora.save_adapters(model, folder, tensors)

    return write


class WeightsFolder:
    """Holds the versions of a run's weights for its servers; exists only on rank 0.

    Args:
        place: folder in which this run creates its own folder.
        keep: number of newest versions to keep.
    """

    def __init__(self, place: Path, keep: int = 2) -> None:
        self.keep = keep
        self.pinned: set[str] = set()  # names of versions that are still to be loaded and must be kept
        self._made = None if place.exists() else place
        remove_leftovers(place)
        try:
            self.root, self._lock = _make_root(place)
        except OSError as error:
            raise _explain(place, error) from error
        # In its own session, so that a signal to the run's process group does not end it first.
        self._remover = subprocess.Popen(
            ["sh", "-c", REMOVER, "sh", str(self.root)], stdin=subprocess.PIPE, start_new_session=True
        )

    def write(self, name: str, version: int, kind: Format, files: Writes) -> Path:
        """Write a version on rank 0, delete old ones, and return the new version's folder once it is complete.

        Args:
            name: name of the folder; an existing one is overwritten.
            version: step that produced the weights.
            kind: full weights or adapters.
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
        """Return the complete versions, oldest first, without the base weights of adapters."""
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
    """Choose the folder for a run's versions.

    Args:
        wanted: `sampling.weights_folder`.
        run: the run's folder.
        needed: bytes of all versions that exist at the same time.
        local: whether all servers are on this machine and can use its shared memory.
    """
    if wanted:
        return Path(wanted)
    if local and MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and needed <= SHARE * _read_free():
        return MEMORY
    return run / "weights"


def remove_leftovers(place: Path) -> None:
    """Remove the folders of runs that ended without removing them."""
    for folder in place.glob(f"{PREFIX}*"):
        with suppress(OSError), (folder / OWNER).open("r") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the run is alive
            shutil.rmtree(folder, ignore_errors=True)


def _read_free() -> int:
    """Return the free bytes for files in memory."""
    free = shutil.disk_usage(MEMORY).free
    with suppress(OSError, KeyError):
        return min(free, host.read_memory()[1])
    return free


def _make_root(place: Path) -> tuple[Path, IO[str]]:
    """Create a folder and lock it; it gets its final name last, so that no other run takes it for a leftover."""
    place.mkdir(parents=True, exist_ok=True)
    name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    hidden = place / f".{name}"
    # All users of the machine share the memory; a folder on disk may be meant for a server of another user.
    hidden.mkdir(mode=0o700 if place == MEMORY else 0o755)
    lock = (hidden / OWNER).open("w", encoding="utf-8")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return hidden.rename(place / name), lock


def _explain(place: Path, error: Exception) -> QedError:
    reason = getattr(error, "strerror", None) or error
    return QedError(
        f"The weights for the inference servers cannot be written to {place}: {reason}. Free some "
        "space there, or set sampling.weights_folder to a folder that the servers can read."
    )
