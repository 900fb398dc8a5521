"""Finds, verifies, reads, points to and deletes checkpoints of a run; `checkpoint_writer.py` writes them.

`hf/` loads with `from_pretrained`; `state.safetensors`, `state.json` and `answers.jsonl` hold the rest of what a run
needs to resume. Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from qed.errors import DataError, QedError
from qed.guards import faults
from qed.runs import manifest
from qed.runs.run import Row, Run, read_json, read_lines
from qed.training.folders import ASIDE, TEMPORARY, remove, restore_replaced
from qed.training.slices import Part, has_slices, read_slices

EXACT = "weights"  # name of the files with the exact weights, if `hf/` has a lower precision
STATE = "state"  # name of the files with the state's tensors


def delete_old(run: Run, keep_last: int, protected: Collection[int]) -> None:
    """Delete all checkpoints except the newest `keep_last`; 0 keeps all.

    Checkpoints that LATEST, BEST or `final` point to, those of `protected` steps, and any newer than LATEST are kept.
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
            delete(run, folder)


def delete(run: Run, folder: Path) -> None:
    """Delete a checkpoint; rename it first, so that nothing finds a partial one."""
    removed = folder.with_name(f"{TEMPORARY}removed-{folder.name}")
    try:
        faults.hit("save")
        folder.rename(removed)
        faults.hit("save")
    except OSError as error:  # the new checkpoint is complete, so the run continues
        run.event("checkpoint_not_removed", checkpoint=folder.name, reason=str(error))
    remove(removed)


def remove_leftovers(run: Run) -> None:
    """Remove partial folders of a killed process, and restore folders that it was replacing.

    Called when a run is opened, before anything is saved.
    """
    for home in ("checkpoints", "reference"):
        for aside in run.folder.glob(f"{home}/{ASIDE}*"):
            restore_replaced(aside)
        for leftover in run.folder.glob(f"{home}/{TEMPORARY}*"):
            remove(leftover)


def find_newest_complete(run: Run, say: Callable[[str], None], fast: bool = False) -> Path | None:
    """Find the newest checkpoint whose files match its manifest, and reset LATEST and BEST to its state.

    Args:
        run: the run.
        say: prints a line about each damaged checkpoint, with the damaged file.
        fast: compare file sizes only, not checksums.

    Raises:
        DataError: there are checkpoints, but none is complete.
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


def load_exact_weights(model: Any, checkpoint: Path) -> None:
    """Load a checkpoint's exact weights into its model if `hf/` has a lower precision; for a single process.

    Raises:
        DataError: a weight of the model is missing.
    """
    if not has_slices(checkpoint, EXACT):
        return
    tensors = read_slices(checkpoint, EXACT)
    missing = model.load_state_dict(tensors, strict=False).missing_keys
    weights = model.state_dict(keep_vars=True)
    loaded = {id(weights[name]) for name in tensors if name in weights}  # a weight shared by layers is saved once
    if absent := [name for name in missing if id(weights[name]) not in loaded]:
        raise DataError(f"{checkpoint} lacks exact weights of the model: {absent[0]}. Resume from another checkpoint.")


def read_state(folder: Path) -> dict[str, Any]:
    """Read the JSON part of a checkpoint's state."""
    state: dict[str, Any] = read_json(folder / "state.json", {})
    return state


def read_tensors(folder: Path, like: Mapping[str, Part] | None = None) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint's state, written by any number of ranks; see `read_slices` for `like`."""
    return read_slices(folder, STATE, like)


def read_rows(folder: Path) -> list[Row]:
    """Read the completions that a run has kept for later steps."""
    return read_lines(folder / "answers.jsonl")


def set_pointer(run: Run, pointer: str, step: int) -> None:
    """Point LATEST or BEST to the checkpoint of a step, atomically.

    Raises:
        QedError: it cannot be written, and keeps its old value.
    """
    path = run.folder / "checkpoints" / pointer
    temporary = path.with_name(f"{TEMPORARY}{pointer}")
    try:
        temporary.write_text(f"step_{step:06d}\n", encoding="utf-8")
        manifest.fsync(temporary)
        faults.hit("save")
        temporary.replace(path)
        faults.hit("save")
        manifest.fsync(path.parent)
    except OSError as error:
        remove(temporary)
        raise QedError(
            f"Cannot write {path}: {error}. The checkpoints themselves are complete; free some space and resume with "
            f"--resume --out {run.home}."
        ) from error


def name_folder(folder: Path, step: int) -> Path:
    """Return the folder of a step's checkpoint in a run's folder."""
    return folder / "checkpoints" / f"step_{step:06d}"


def has_checkpoint(folder: Path, step: int) -> bool:
    """Return whether a run's folder has a checkpoint of a step."""
    return name_folder(folder, step).is_dir()


def _reset_pointers(run: Run, step: int, best: int | None) -> None:
    """Set the pointers of a run that resumes from a step.

    They may be damaged, point to later steps, or not have been set yet when the process was killed.
    """
    set_pointer(run, "LATEST", step)
    if best is None:
        (run.folder / "checkpoints" / "BEST").unlink(missing_ok=True)
    else:
        set_pointer(run, "BEST", best)
