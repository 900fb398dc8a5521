"""Checkpoints that are whole or absent: written beside their place, named in a manifest with checksums, then renamed.

`hf/` loads with `from_pretrained`; `state.safetensors`, `state.json` and `answers.jsonl` hold what else a run needs to
go on. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qed import lora
from qed.errors import DataError, QedError
from qed.runs import Row, Run, read_json, read_lines

SCHEMA = 1


def save(
    run: Run,
    step: int,
    model: Any,
    tokenizer: Any,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    rows: Sequence[Row] = (),
) -> Path:
    """Write the checkpoint of a step, verified from then on by its manifest.

    Args:
        run: in whose folder it goes.
        step: of the run.
        model: is saved as it is.
        tokenizer: beside it.
        tensors: of the optimizer.
        state: what else is small.
        rows: answers that the run holds for later steps, one a line.

    Raises:
        QedError: the disk is full; earlier checkpoints stay as they are.
    """
    home = run.folder / "checkpoints"
    target, beside = home / f"step_{step:06d}", home / f".tmp-step_{step:06d}-{secrets.token_hex(4)}"
    replaced = home / f".tmp-replaced-{beside.name}"
    try:
        beside.mkdir(parents=True)
        save_model(model, tokenizer, beside / "hf")
        if lora.has_adapters(model):
            lora.save(model, beside / "adapter")
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, beside / "state.safetensors"
        )
        (beside / "state.json").write_text(json.dumps({"step": step, **state}, indent=1), encoding="utf-8")
        (beside / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        _write_manifest(beside)
        if target.exists():
            target.rename(replaced)  # the same step again, after a resume from an older one
        beside.rename(target)
        _sync(home)
        point(run, "LATEST", step)
    except (OSError, SafetensorError) as error:
        raise QedError(f"Cannot write the checkpoint {target}: {error}. Earlier checkpoints are whole.") from error
    finally:
        for leftover in (beside, replaced):
            shutil.rmtree(leftover, ignore_errors=True)
    return target


def tidy(run: Run) -> None:
    """Remove what a killed process left half written; called when a run is opened, before anything is saved."""
    for leftover in run.folder.glob("checkpoints/.tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer as `from_pretrained` reads them; what adapters have learned is merged into it."""
    model.save_pretrained(folder, **({"state_dict": lora.merged(model)} if lora.has_adapters(model) else {}))
    tokenizer.save_pretrained(folder)


def newest_whole(run: Run) -> Path | None:
    """The newest checkpoint whose files are all as its manifest says; each one passed over is noted, with the reason.

    Raises:
        DataError: there are checkpoints, and none of them is whole.
    """
    found = sorted((run.folder / "checkpoints").glob("step_*"), reverse=True)
    for folder in found:
        damage = verify(folder)
        if damage is None:
            return folder
        run.event("checkpoint_rejected", checkpoint=folder.name, reason=damage)
    if found:
        raise DataError(f"No checkpoint in {run.folder / 'checkpoints'} is whole; the newest: {verify(found[0])}.")
    return None


def verify(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None when it is whole."""
    try:
        manifest = json.loads((folder / "MANIFEST.json").read_text(encoding="utf-8"))
        for name, (size, digest) in manifest["files"].items():
            file = folder / name
            if not file.is_file() or file.stat().st_size != size or _digest(file) != digest:
                return f"{file} is {'damaged' if file.is_file() else 'missing'}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder / 'MANIFEST.json'} cannot be read ({type(error).__name__})"
    return None


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the rest of a checkpoint's state."""
    return load_file(folder / "state.safetensors"), read_json(folder / "state.json", {})


def read_rows(folder: Path) -> list[Row]:
    """The answers that a run held for later steps."""
    return read_lines(folder / "answers.jsonl")


def _write_manifest(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for file in files:
        _sync(file)
    listed = {str(file.relative_to(folder)): (file.stat().st_size, _digest(file)) for file in files}
    manifest = folder / "MANIFEST.json"
    manifest.write_text(json.dumps({"schema": SCHEMA, "files": listed}, indent=1), encoding="utf-8")
    _sync(manifest)
    _sync(folder)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def point(run: Run, pointer: str, step: int) -> None:
    """Make LATEST or BEST name the checkpoint of a step, by renaming."""
    place = run.folder / "checkpoints" / pointer
    beside = place.with_name(f".{pointer}.part")
    beside.write_text(f"step_{step:06d}\n", encoding="utf-8")
    beside.replace(place)
