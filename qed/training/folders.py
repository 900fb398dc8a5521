"""Writes folders atomically: under a temporary name, then renamed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from qed.guards import faults
from qed.runs import manifest

ASIDE = ".replaced-"  # prefix of a folder that is being replaced
TEMPORARY = ".tmp-"  # prefix of a folder that is being written


@contextlib.contextmanager
def write_folder_atomically(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that replaces the target once all of its files are on disk; see `commit`."""
    temporary = name_temporary(target, secrets.token_hex(4))
    try:
        temporary.mkdir(parents=True)
        yield temporary
        commit(temporary, target)
    finally:
        discard(temporary, target)


def name_temporary(target: Path, token: str) -> Path:
    """Return the temporary folder of a target; several processes find the same one by the same token."""
    return target.with_name(f"{TEMPORARY}{target.name}-{token}")


def commit(temporary: Path, target: Path) -> None:
    """Replace the target with a temporary folder, with all files on disk.

    Whenever the process ends, the target is the new or the old folder. Between the two renames the old one has the
    prefix `ASIDE`, and `restore_replaced` restores it.
    """
    manifest.fsync_tree(temporary)
    faults.hit("save")
    if target.exists():
        target.rename(target.with_name(ASIDE + target.name))  # the same step is saved again after a resume
        faults.hit("save")
    temporary.rename(target)
    faults.hit("save")
    manifest.fsync(target.parent)


def discard(temporary: Path, target: Path) -> None:
    """Remove a temporary folder, and restore or delete the folder that the target was to replace."""
    remove(temporary)
    restore_replaced(target.with_name(ASIDE + target.name))


def restore_replaced(aside: Path) -> None:
    """Delete a replaced folder if the new one is in place, otherwise rename it back."""
    target = aside.with_name(aside.name.removeprefix(ASIDE))
    if target.exists():
        remove(aside)
    elif aside.exists():
        aside.rename(target)


def link_checkpoint(folder: Path, name: str, checkpoint: str) -> Path:
    """Link a name in the run's folder to a checkpoint; if links are not supported, copy its model.

    A copy of the model under that name, as made by `cp -L`, is replaced; anything else is kept.

    Returns:
        The link, or the checkpoint if something else has that name.
    """
    link, target = folder / name, folder / "checkpoints" / checkpoint
    is_copy = (link / "hf").is_dir() and not link.is_symlink()
    if link.exists() and not link.is_symlink() and not is_copy:
        return target
    if not target.is_dir():
        return link
    # Rename into place, so that the link always points to a checkpoint.
    temporary, aside = folder / f".{name}.part", folder / (ASIDE + name)
    temporary.unlink(missing_ok=True)
    try:
        temporary.symlink_to(Path("checkpoints") / checkpoint)
    except OSError:
        with write_folder_atomically(link) as copy:
            shutil.copytree(target / "hf", copy / "hf")
        return link
    try:
        if is_copy:
            link.rename(aside)
        temporary.replace(link)
    finally:
        restore_replaced(aside)
    return link


def remove(path: Path) -> None:
    """Delete a folder, file or link, and ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
