"""Checkpoints that are whole or absent: written beside their place, named in a manifest with checksums, then renamed.

`hf/` loads with `from_pretrained`; `state.safetensors`, `state.json` and `answers.jsonl` hold what else a run needs to
go on. Nothing is pickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qed.errors import DataError, QedError
from qed.guards import faults
from qed.models import lora, qlora
from qed.runs import disk, manifest
from qed.runs.run import Row, Run, read_json, read_lines
from qed.training.checkpoint_size import checkpoint_bytes

ASIDE = ".replaced-"  # before the name of a folder whose successor is about to take its place


def save_checkpoint(
    run: Run,
    step: int,
    model: Any,
    tokenizer: Any,
    tensors: Mapping[str, Tensor],
    state: Mapping[str, Any],
    rows: Sequence[Row] = (),
) -> Path:
    """Write the checkpoint of a step, verified from then on by its manifest, and make LATEST name it.

    Args:
        run: in whose folder it goes.
        step: of the run.
        model: is saved as it is.
        tokenizer: beside it.
        tensors: of the optimizer.
        state: what else is small.
        rows: answers that the run holds for later steps, one a line.

    Raises:
        QedError: the disk is full or cannot be written; earlier checkpoints stay as they are.
    """
    target = run.folder / "checkpoints" / f"step_{step:06d}"
    answers = "".join(json.dumps(row) + "\n" for row in rows)
    with _explain_disk_errors(run, target):
        run.sync()
        disk.require_space(
            run, checkpoint_bytes(model, sum(tensor.nbytes for tensor in tensors.values()) + len(answers))
        )
        with write_folder_atomically(target) as beside:
            faults.hit("save")
            save_model(model, tokenizer, beside / "hf")
            faults.hit("save")
            if lora.has_adapters(model):
                lora.save_adapters(model, beside / "adapter")
            moved = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            save_file(moved, beside / "state.safetensors")
            faults.hit("save")
            (beside / "state.json").write_text(json.dumps({"step": step, **state}, indent=1), encoding="utf-8")
            (beside / "answers.jsonl").write_text(answers, encoding="utf-8")
            faults.hit("save")
            manifest.write_manifest(beside, step, run.folder / "settings.yaml")
    set_pointer(run, "LATEST", step)
    return target


def save_reference(run: Run, step: int, model: Any, tokenizer: Any, target: Path) -> None:
    """Write a model alone, as it stands at a step, verified from then on by its manifest.

    Raises:
        QedError: the disk is full or cannot be written.
    """
    with _explain_disk_errors(run, target):
        disk.require_space(run, checkpoint_bytes(model, 0))
        with write_folder_atomically(target) as beside:
            save_model(model, tokenizer, beside)
            manifest.write_manifest(beside, step, run.folder / "settings.yaml")


@contextlib.contextmanager
def _explain_disk_errors(run: Run, target: Path) -> Iterator[None]:
    """What keeps a folder from being written is told as an error of the user's disk."""
    try:
        yield
    except Exception as error:
        # A full disk is an OSError, a SafetensorError, or a bare Exception of the library of tokenizers.
        if not isinstance(error, OSError | SafetensorError) and type(error) is not Exception:
            raise
        raise QedError(
            f"Cannot write {target}: {error}. Earlier checkpoints are whole. Free some space, or mend "
            f"what is wrong with the folder, and go on with --resume --out {run.home}."
        ) from error


@contextlib.contextmanager
def write_folder_atomically(target: Path) -> Iterator[Path]:
    """A folder to fill, which takes the target's place once everything in it is on the disk.

    Whenever the process ends, the target is the new folder, or what it was; between the two renames what was stands
    aside, from where `tidy` brings it back.
    """
    beside = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    aside = target.with_name(ASIDE + target.name)
    try:
        beside.mkdir(parents=True)
        yield beside
        manifest.fsync_tree(beside)
        faults.hit("save")
        if target.exists():
            target.rename(aside)  # the same step again, after a resume from an older one
            faults.hit("save")
        beside.rename(target)
        faults.hit("save")
        manifest.fsync(target.parent)
    finally:
        _remove(beside)
        _settle_replaced(aside)


def delete_old(run: Run, keep_last: int, spared: Collection[int]) -> None:
    """Delete the checkpoints behind the newest `keep_last`; 0 keeps all.

    Never deleted are those that LATEST, BEST or `final` name, those of the steps to be spared, and any later than
    LATEST. A folder loses its name before its files, so that no half of a checkpoint is ever found.
    """
    latest = read_pointer(run.folder, "LATEST")
    if not keep_last or latest is None:
        return
    final = run.folder / "final"
    named = {latest, read_pointer(run.folder, "BEST"), manifest.parse_step(final.resolve().name), *spared}
    older = [(step, folder) for step, folder in manifest.list_checkpoints(run.folder).items() if step <= latest]
    for step, folder in older[keep_last:]:
        if step not in named:
            gone = folder.with_name(f".tmp-removed-{folder.name}")
            try:
                faults.hit("save")
                folder.rename(gone)
                faults.hit("save")
            except OSError as error:  # the new checkpoint is whole, and no reason to end the run
                run.event("checkpoint_not_removed", checkpoint=folder.name, reason=str(error))
            _remove(gone)


def remove_leftovers(run: Run) -> None:
    """Remove what a killed process left half written, and put back what it had only put aside; called when a run is
    opened, before anything is saved."""
    for home in ("checkpoints", "reference"):
        for aside in run.folder.glob(f"{home}/{ASIDE}*"):
            _settle_replaced(aside)
        for leftover in run.folder.glob(f"{home}/.tmp-*"):
            _remove(leftover)


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write a model and its tokenizer as `from_pretrained` reads them; what adapters have learned is merged into it."""
    if lora.has_adapters(model):
        qlora.is_plain(model).save_pretrained(folder, state_dict=lora.merge_adapters(model))
    else:
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def find_newest_complete(run: Run, say: Callable[[str], None], fast: bool = False) -> Path | None:
    """The newest checkpoint whose files are all as its manifest says; LATEST and BEST name from then on what they named
    when it was written.

    Args:
        run: whose checkpoints they are.
        say: gets a line about each checkpoint that is passed over, with the file that is the reason.
        fast: compare sizes alone, and not checksums.

    Raises:
        DataError: there are checkpoints, and none of them is whole.
    """
    newest = ""
    for step, folder in manifest.list_checkpoints(run.folder).items():
        damage = "; ".join(manifest.list_damage(folder, fast))
        if not damage:
            _reset_pointers(run, step, read_json(folder / "state.json", {}).get("best"))
            return folder
        say(f"The checkpoint {folder.name} is passed over: {damage}.")
        run.event("checkpoint_rejected", checkpoint=folder.name, reason=damage)
        newest = newest or damage
    if newest:
        raise DataError(
            f"No checkpoint in {run.folder / 'checkpoints'} is whole; the newest: {newest}. Restore its files from a "
            "copy, or begin again with --overwrite."
        )
    return None


def read_state(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the rest of a checkpoint's state."""
    return load_file(folder / "state.safetensors"), read_json(folder / "state.json", {})


def read_rows(folder: Path) -> list[Row]:
    """The answers that a run held for later steps."""
    return read_lines(folder / "answers.jsonl")


def set_pointer(run: Run, pointer: str, step: int) -> None:
    """Make LATEST or BEST name the checkpoint of a step, by renaming.

    Raises:
        QedError: it cannot be written; what it named before it still names.
    """
    place = run.folder / "checkpoints" / pointer
    beside = place.with_name(f".tmp-{pointer}")
    try:
        beside.write_text(f"step_{step:06d}\n", encoding="utf-8")
        manifest.fsync(beside)
        faults.hit("save")
        beside.replace(place)
        faults.hit("save")
        manifest.fsync(place.parent)
    except OSError as error:
        _remove(beside)
        raise QedError(
            f"Cannot write {place}: {error}. The checkpoints themselves are whole; free some space and go on with "
            f"--resume --out {run.home}."
        ) from error


def read_pointer(folder: Path, pointer: str) -> int | None:
    """The step that LATEST or BEST of a run's folder names; None where there is none, or it is damaged."""
    try:
        return manifest.parse_step((folder / "checkpoints" / pointer).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        return None


def has_checkpoint(folder: Path, step: int) -> bool:
    """Whether a run's folder holds a checkpoint of a step."""
    return (folder / "checkpoints" / f"step_{step:06d}").is_dir()


def _reset_pointers(run: Run, step: int, best: int | None) -> None:
    """Set the pointers of a run that goes on from a step: they may be damaged, of steps that are forgotten, or not yet
    set when the process was killed."""
    set_pointer(run, "LATEST", step)
    if best is None:
        (run.folder / "checkpoints" / "BEST").unlink(missing_ok=True)
    else:
        set_pointer(run, "BEST", best)


def _settle_replaced(aside: Path) -> None:
    """A folder that was put aside goes where another has taken its place, and goes back where none has."""
    target = aside.with_name(aside.name.removeprefix(ASIDE))
    if target.exists():
        _remove(aside)
    elif aside.exists():
        aside.rename(target)


def _remove(path: Path) -> None:
    """Delete a folder, file or link as far as that is possible; what cannot be deleted is no reason to fail."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
