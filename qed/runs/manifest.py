"""What a checkpoint's files were when they were written: a manifest of sizes and checksums, and what differs from it.

Needs no torch, so that a checkpoint can be verified on any machine.
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
WORLD_SIZE = 1  # processes whose state a checkpoint holds


def parse_step(name: str) -> int | None:
    """The step in a checkpoint's name such as step_000010; None for any other name."""
    found = re.fullmatch(r"step_(\d{6,12})", name, re.ASCII)
    return int(found[1]) if found else None


def list_checkpoints(run_folder: Path) -> dict[int, Path]:
    """The checkpoints of a run by step, newest first, whole or not; what has another name is none."""
    found = {
        step: path for path in run_folder.glob("checkpoints/step_*") if (step := parse_step(path.name)) is not None
    }
    return dict(sorted(found.items(), reverse=True))


def write_manifest(folder: Path, step: int, settings: Path) -> None:
    """Bring a checkpoint's files onto the disk, and then the manifest of them.

    Args:
        folder: of the checkpoint, under any name.
        step: that the checkpoint is of.
        settings: the file of the run's settings, whose checksum stands in the manifest where it exists.
    """
    fsync_tree(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    told = {
        "schema": SCHEMA,
        "step": step,
        "world_size": WORLD_SIZE,
        "settings": _hash_file(settings) if settings.is_file() else None,
        "files": {file.relative_to(folder).as_posix(): [file.stat().st_size, _hash_file(file)] for file in files},
    }
    manifest = folder / NAME
    manifest.write_text(json.dumps({**told, "sha256": _hash_manifest(told)}, indent=1), encoding="utf-8")
    fsync(manifest)
    fsync(folder)


def list_damage(folder: Path, fast: bool = False) -> list[str]:
    """What is wrong with a checkpoint, naming each file; empty when it is whole.

    A file that the manifest does not list damages nothing: see `extra`.

    Args:
        folder: of the checkpoint.
        fast: compare sizes alone, and read no file but the manifest.
    """
    try:
        links = [path for path in (folder, *folder.rglob("*")) if path.is_symlink()]
        if links:
            return [f"{path} is a link" for path in links]
        told = json.loads((folder / NAME).read_text(encoding="utf-8"))
        complaint = _check_manifest(told, parse_step(folder.name))
        if complaint:
            return [f"{folder / NAME} {complaint}"]
        files: dict[str, tuple[int, str]] = told["files"]
    except FileNotFoundError:
        return [f"{folder / NAME} is missing"]
    except OSError as error:
        return [f"{folder / NAME} cannot be read ({error.strerror})"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"{folder / NAME} is damaged"]
    complaints = {name: _check_file(folder / name, size, "" if fast else sha) for name, (size, sha) in files.items()}
    return [f"{folder / name} {wrong}" for name, wrong in complaints.items() if wrong]


def list_extra_files(folder: Path) -> list[str]:
    """The files of a whole checkpoint that its manifest does not list."""
    listed = {NAME, *json.loads((folder / NAME).read_text(encoding="utf-8"))["files"]}
    files = sorted(path for path in folder.rglob("*") if not path.is_dir())
    return [f"{path} is not in the manifest" for path in files if path.relative_to(folder).as_posix() not in listed]


def fsync_tree(folder: Path) -> None:
    """Bring a folder and everything in it onto the disk."""
    for path in (*folder.rglob("*"), folder):
        fsync(path)


def fsync(path: Path) -> None:
    """Bring a file's content, or a folder's names, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_manifest(told: Mapping[str, Any], step: int | None) -> str | None:
    """What is wrong with a manifest itself."""
    if told["schema"] != SCHEMA:
        return f"is of schema {told['schema']}, and this version of qed reads schema {SCHEMA}"
    if told["world_size"] != WORLD_SIZE:
        return f"is of a run of {told['world_size']} processes, and this one has {WORLD_SIZE}"
    if told["sha256"] != _hash_manifest({key: value for key, value in told.items() if key != "sha256"}):
        return "is damaged"
    if told["step"] != step:
        return f"is of step {told['step']}"
    return None


def _check_file(file: Path, size: int, sha: str) -> str | None:
    """What is wrong with one file; without a checksum its size decides."""
    try:
        found = file.stat().st_size
        if found != size:
            return f"is damaged: it has {found:,} bytes and had {size:,}"
        return None if not sha or _hash_file(file) == sha else "is damaged: its checksum is another"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _hash_file(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _hash_manifest(told: Mapping[str, Any]) -> str:
    """The checksum of a manifest's own content."""
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
