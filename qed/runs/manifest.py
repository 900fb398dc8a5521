"""Writes and verifies the manifest of a checkpoint: the sizes and checksums of its files.

It needs no torch, so that a checkpoint can be verified on any machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

NAME = "MANIFEST.json"
SCHEMA = 2


def parse_step(name: str) -> int | None:
    """Return the step in a name such as step_000010; None for any other name."""
    match = re.fullmatch(r"step_(\d{6,12})", name, re.ASCII)
    return int(match[1]) if match else None


def list_checkpoints(run_folder: Path) -> dict[int, Path]:
    """Return the checkpoints of a run by step, newest first, complete or not."""
    checkpoints = {
        step: path for path in run_folder.glob("checkpoints/step_*") if (step := parse_step(path.name)) is not None
    }
    return dict(sorted(checkpoints.items(), reverse=True))


def read_pointer(folder: Path, pointer: str) -> int | None:
    """Read the step that LATEST or BEST points to; None if the pointer is missing or damaged."""
    try:
        return parse_step((folder / "checkpoints" / pointer).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None


def write_manifest(folder: Path, step: int, settings: Path, world_size: int = 1) -> None:
    """Sync a checkpoint's files to disk, then write and sync their manifest.

    Args:
        folder: the folder of the checkpoint, under any name.
        step: the step of the checkpoint.
        settings: the run's settings.yaml; its checksum is recorded if it exists.
        world_size: the number of processes that wrote the checkpoint; any number can read it.
    """
    fsync_tree(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    content = {
        "schema": SCHEMA,
        "step": step,
        "world_size": world_size,
        "settings": hash_file(settings) if settings.is_file() else None,
        "files": {file.relative_to(folder).as_posix(): [file.stat().st_size, hash_file(file)] for file in files},
    }
    manifest = folder / NAME
    manifest.write_text(json.dumps({**content, "sha256": _hash_manifest(content)}, indent=1), encoding="utf-8")
    fsync(manifest)
    fsync(folder)


def list_damage(folder: Path, fast: bool = False) -> list[str]:
    """List what is wrong with a checkpoint, naming each file; empty if it is complete.

    Files that the manifest does not list are ignored, see `list_extra_files`.

    Args:
        folder: the folder of the checkpoint.
        fast: compare only sizes, and read no file but the manifest.
    """
    try:
        links = [path for path in (folder, *folder.rglob("*")) if path.is_symlink()]
        if links:
            return [f"{path} is a link" for path in links]
        content = json.loads((folder / NAME).read_text(encoding="utf-8"))
        damage = _check_manifest(content, parse_step(folder.name))
        if damage:
            return [f"{folder / NAME} {damage}"]
        files: dict[str, tuple[int, str]] = content["files"]
    except FileNotFoundError:
        return [f"{folder / NAME} is missing"]
    except OSError as error:
        return [f"{folder / NAME} cannot be read ({error.strerror})"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{folder / NAME} is damaged"]
    damages = {name: _check_file(folder / name, size, "" if fast else sha) for name, (size, sha) in files.items()}
    return [f"{folder / name} {damage}" for name, damage in damages.items() if damage]


def list_extra_files(folder: Path) -> list[str]:
    """List the files of a complete checkpoint that its manifest does not list."""
    listed = {NAME, *json.loads((folder / NAME).read_text(encoding="utf-8"))["files"]}
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return [f"{path} is not in the manifest" for path in files if path.relative_to(folder).as_posix() not in listed]


def fsync_tree(folder: Path) -> None:
    """Sync a folder and everything in it to disk."""
    for path in (*folder.rglob("*"), folder):
        fsync(path)


def fsync(path: Path) -> None:
    """Sync a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_manifest(content: Mapping[str, Any], step: int | None) -> str | None:
    """Return what is wrong with the manifest itself, or None."""
    if content["schema"] != SCHEMA:
        return f"has schema {content['schema']}, but this version of qed reads schema {SCHEMA}"
    if content["sha256"] != _hash_manifest({key: value for key, value in content.items() if key != "sha256"}):
        return "is damaged"
    if content["step"] != step:
        return f"is of step {content['step']}"
    return None


def _check_file(file: Path, size: int, sha: str) -> str | None:
    """Return what is wrong with a file, or None; without a checksum, compare only its size."""
    try:
        actual_size = file.stat().st_size
        if actual_size != size:
            return f"is damaged: it has {actual_size:,} bytes instead of {size:,}"
        return None if not sha or hash_file(file) == sha else "is damaged: its checksum is different"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def hash_file(file: Path) -> str:
    """Return the SHA-256 hash of a file's bytes."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _hash_manifest(content: Mapping[str, Any]) -> str:
    """Compute the checksum of a manifest's own content."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
