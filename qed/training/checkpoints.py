"""Atomic checkpoints: written to a temporary folder with a manifest of checksums, then renamed.

`hf/` loads with `from_pretrained`; `state.safetensors`, `state.json` and `answers.jsonl` hold the rest of what a run
needs to resume. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from safetensors.torch import load_model as load_weights
from safetensors.torch import save_model as save_weights
from torch import Tensor

from qed.errors import DataError, QedError
from qed.guards import faults
from qed.models import lora, qlora
from qed.runs import disk, manifest
from qed.runs.run import Row, Run, read_json, read_lines
from qed.training.checkpoint_size import checkpoint_bytes

EXACT = "weights.safetensors"  # the exact weights, where `hf/` has a lower precision
ASIDE = ".replaced-"  # the prefix of a folder that is being replaced


def save_checkpoint(  # noqa: PLR0913 -- a checkpoint has many parts
    run: Run,
    step: int,
    model: Any,
    tokenizer: Any,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    rows: Sequence[Row] = (),
    dtype: str = "float32",
) -> Path:
    """Write the checkpoint of a step with a manifest, and point LATEST to it.

    Args:
        run: the run, in whose folder the checkpoint is written.
        step: the step of the run.
        model: the model; adapters are merged in `hf/`, and also saved separately.
        tokenizer: saved with the model.
        tensors: the optimizer's state.
        state: other small values, as JSON.
        rows: completions that the run holds for later steps, one per line.
        dtype: of the weights in `hf/`. Below that of the model the exact weights are in `weights.safetensors`, to
            resume from; with adapters, `adapter/` has what is trained.

    Raises:
        QedError: the disk is full or cannot be written; earlier checkpoints are unchanged.
    """
    exact_too = _rounds(model.parameters(), dtype) and not lora.has_adapters(model)
    target = run.folder / "checkpoints" / f"step_{step:06d}"
    answers = "".join(json.dumps(row) + "\n" for row in rows)
    with _explain_disk_errors(run, target):
        run.sync()
        others = sum(tensor.nbytes for tensor in tensors.values()) + len(answers)
        disk.require_space(run, checkpoint_bytes(model, others, copies=int(exact_too)))
        with write_folder_atomically(target) as temporary:
            faults.hit("save")
            save_model(model, tokenizer, temporary / "hf", dtype)
            if exact_too:
                save_weights(model, str(temporary / EXACT))
            faults.hit("save")
            if lora.has_adapters(model):
                lora.save_adapters(model, temporary / "adapter")
                tokenizer.save_pretrained(temporary / "adapter")  # with its chat template: the adapter is a model too
            on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(on_cpu, temporary / "state.safetensors")
            faults.hit("save")
            (temporary / "state.json").write_text(json.dumps({"step": step, **state}, indent=1), encoding="utf-8")
            (temporary / "answers.jsonl").write_text(answers, encoding="utf-8")
            faults.hit("save")
            manifest.write_manifest(temporary, step, run.folder / "settings.yaml")
    set_pointer(run, "LATEST", step)
    return target


def save_reference(run: Run, step: int, model: Any, tokenizer: Any, target: Path) -> None:
    """Write the current model alone, with a manifest.

    Raises:
        QedError: the disk is full or cannot be written.
    """
    with _explain_disk_errors(run, target):
        disk.require_space(run, checkpoint_bytes(model, 0))
        with write_folder_atomically(target) as temporary:
            save_model(model, tokenizer, temporary)
            manifest.write_manifest(temporary, step, run.folder / "settings.yaml")


@contextlib.contextmanager
def _explain_disk_errors(run: Run, target: Path) -> Iterator[None]:
    """Turn an error while writing a folder into a QedError about the disk."""
    try:
        yield
    except Exception as error:
        # A full disk raises an OSError, a SafetensorError, or a bare Exception from tokenizers.
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
            raise
        raise QedError(
            f"Cannot write {target}: {error}. Earlier checkpoints are complete. Free some space, or fix "
            f"the folder, and continue with --resume --out {run.home}."
        ) from error


@contextlib.contextmanager
def write_folder_atomically(target: Path) -> Iterator[Path]:
    """Provide a temporary folder that replaces the target once all of its files are on the disk.

    Whenever the process ends, the target is the new folder or the old one. Between the two renames the old one has the
    prefix `ASIDE`, and `remove_leftovers` restores it.
    """
    temporary = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    aside = target.with_name(ASIDE + target.name)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        manifest.fsync_tree(temporary)
        faults.hit("save")
        if target.exists():
            target.rename(aside)  # the same step is saved again after a resume from an older one
            faults.hit("save")
        temporary.rename(target)
        faults.hit("save")
        manifest.fsync(target.parent)
    finally:
        _remove(temporary)
        _restore_replaced(aside)


def delete_old(run: Run, keep_last: int, protected: Collection[int]) -> None:
    """Delete all checkpoints except the newest `keep_last`; 0 keeps all.

    Those that LATEST, BEST or `final` point to, those of `protected` steps, and any newer than LATEST stay. A folder is
    renamed before its files are deleted, so that nothing finds a partial checkpoint.
    """
    latest = manifest.read_pointer(run.folder, "LATEST")
    if not keep_last or latest is None:
        return
    final = run.folder / "final"
    referenced = {
        latest,
        manifest.read_pointer(run.folder, "BEST"),
        manifest.parse_step(final.resolve().name),
        *protected,
    }
    older = [(step, folder) for step, folder in manifest.list_checkpoints(run.folder).items() if step <= latest]
    for step, folder in older[keep_last:]:
        if step not in referenced:
            removed = folder.with_name(f".tmp-removed-{folder.name}")
            try:
                faults.hit("save")
                folder.rename(removed)
                faults.hit("save")
            except OSError as error:  # the new checkpoint is complete, so the run continues
                run.event("checkpoint_not_removed", checkpoint=folder.name, reason=str(error))
            _remove(removed)


def remove_leftovers(run: Run) -> None:
    """Remove partial folders of a killed process, and restore those that it was replacing.

    Called when a run is opened, before anything is saved.
    """
    for home in ("checkpoints", "reference"):
        for aside in run.folder.glob(f"{home}/{ASIDE}*"):
            _restore_replaced(aside)
        for leftover in run.folder.glob(f"{home}/.tmp-*"):
            _remove(leftover)


def _rounds(weights: Iterable[Tensor], dtype: str) -> bool:
    """Whether a precision is not enough for some weights of a model."""
    kind: torch.dtype = getattr(torch, dtype)
    return any(torch.promote_types(weight.dtype, kind) != kind for weight in weights)


def save_model(model: Any, tokenizer: Any, folder: Path, dtype: str = "") -> None:
    """Write a model and its tokenizer for `from_pretrained`, with adapters merged into the weights.

    `dtype` is the highest precision of the weights in the folder; empty keeps theirs.
    """
    merged = lora.merge_adapters(model) if lora.has_adapters(model) else None
    if merged is not None:
        model = qlora.build_unquantized_shell(model)
    weights = model.state_dict() if merged is None else merged
    if not dtype or not _rounds(weights.values(), dtype):
        model.save_pretrained(folder, state_dict=merged)
    else:
        kind: torch.dtype = getattr(torch, dtype)
        # Tied weights share their memory, and stay tied.
        cast = {tensor.data_ptr(): tensor.to(kind) for tensor in weights.values() if tensor.is_floating_point()}
        cast_weights = {name: cast.get(tensor.data_ptr(), tensor) for name, tensor in weights.items()}
        model.save_pretrained(folder, state_dict=cast_weights)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (folder / "config.json").write_text(json.dumps(config | {"dtype": dtype}, indent=2), encoding="utf-8")
    tokenizer.save_pretrained(folder)


def load_exact_weights(model: Any, checkpoint: Path) -> None:
    """Load the exact weights of a checkpoint into its model, if its `hf/` has a lower precision."""
    if (checkpoint / EXACT).is_file():
        load_weights(model, checkpoint / EXACT)


def find_newest_complete(run: Run, say: Callable[[str], None], fast: bool = False) -> Path | None:
    """Find the newest checkpoint whose files match its manifest, and set LATEST and BEST as they were then.

    Args:
        run: the run.
        say: receives a line about each damaged checkpoint, with the damaged file.
        fast: compare file sizes only, not checksums.

    Raises:
        DataError: there are checkpoints, and none of them is complete.
    """
    newest_damage = ""
    for step, folder in manifest.list_checkpoints(run.folder).items():
        damage = "; ".join(manifest.list_damage(folder, fast))
        if not damage:
            _reset_pointers(run, step, read_json(folder / "state.json", {}).get("best"))
            return folder
        say(f"The checkpoint {folder.name} is damaged and skipped: {damage}.")
        run.event("checkpoint_rejected", checkpoint=folder.name, reason=damage)
        newest_damage = newest_damage or damage
    if newest_damage:
        raise DataError(
            f"No checkpoint in {run.folder / 'checkpoints'} is complete; the newest: {newest_damage}. Restore its "
            "files from a copy, or start over with --overwrite."
        )
    return None


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the JSON part of a checkpoint's state."""
    return load_file(folder / "state.safetensors"), read_json(folder / "state.json", {})


def read_rows(folder: Path) -> list[Row]:
    """Read the completions that a run held for later steps."""
    return read_lines(folder / "answers.jsonl")


def set_pointer(run: Run, pointer: str, step: int) -> None:
    """Point LATEST or BEST to the checkpoint of a step, atomically.

    Raises:
        QedError: it cannot be written; it keeps its old value.
    """
    path = run.folder / "checkpoints" / pointer
    temporary = path.with_name(f".tmp-{pointer}")
    try:
        temporary.write_text(f"step_{step:06d}\n", encoding="utf-8")
        manifest.fsync(temporary)
        faults.hit("save")
        temporary.replace(path)
        faults.hit("save")
        manifest.fsync(path.parent)
    except OSError as error:
        _remove(temporary)
        raise QedError(
            f"Cannot write {path}: {error}. The checkpoints themselves are complete; free some space and continue with "
            f"--resume --out {run.home}."
        ) from error


def has_checkpoint(folder: Path, step: int) -> bool:
    """Whether a run's folder has a checkpoint of a step."""
    return (folder / "checkpoints" / f"step_{step:06d}").is_dir()


def _reset_pointers(run: Run, step: int, best: int | None) -> None:
    """Set the pointers of a run that resumes from a step.

    They may be damaged, point to steps after it, or not have been set yet when the process was killed.
    """
    set_pointer(run, "LATEST", step)
    if best is None:
        (run.folder / "checkpoints" / "BEST").unlink(missing_ok=True)
    else:
        set_pointer(run, "BEST", best)


def _restore_replaced(aside: Path) -> None:
    """Delete a replaced folder if the new one is in place, else rename it back."""
    target = aside.with_name(aside.name.removeprefix(ASIDE))
    if target.exists():
        _remove(aside)
    elif aside.exists():
        aside.rename(target)


def _remove(path: Path) -> None:
    """Delete a folder, file or link, and ignore errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
