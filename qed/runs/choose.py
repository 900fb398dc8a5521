"""Choose a checkpoint of a run: the last, the best, or that of a step."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from qed.errors import ModelError, UsageError, suggest_nearest
from qed.runs import manifest

FINAL, LAST, BEST = "final", "last", "best"


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's folder."""
    return (folder / "settings.yaml").is_file()


def suggest_run(place: Path) -> str:
    """Return a sentence that suggests the run that contains a path, or one with a similar name; empty if none."""
    inside = next((parent for parent in place.absolute().parents if is_run(parent)), None) if place.exists() else None
    if inside is not None:
        return f" Did you mean '{os.path.relpath(inside)}'?"
    siblings: list[Path] = []
    with suppress(OSError):  # a folder may be accessible but not readable
        siblings = sorted(place.parent.iterdir())
    # Unlike `is_run`, `os.path.isfile` skips folders of other users without read permission.
    return suggest_nearest(str(place), [str(folder) for folder in siblings if os.path.isfile(folder / "settings.yaml")])


def choose_checkpoint(run_folder: Path, which: str) -> tuple[Path, int]:
    """Return the folder of a run's checkpoint that has a model, and its step.

    Args:
        run_folder: the folder of the run.
        which: `last` for the newest, `final` for that of a finished run, `best` for the best on the validation split,
            or the number of a step.

    Raises:
        UsageError: `which` is none of these.
        ModelError: the run has no such checkpoint.
    """
    if which not in (FINAL, LAST, BEST) and not (which.isdecimal() and which.isascii()):
        raise UsageError(f"A checkpoint is {LAST}, {BEST} or the number of a step, not '{which}'.")
    found = {step: path for step, path in manifest.list_checkpoints(run_folder).items() if (path / "hf").is_dir()}
    final = run_folder / FINAL
    if which == FINAL and (final / "hf").is_dir():
        # Where links are not supported, it is a folder, without a step in its name.
        return final, manifest.parse_step(final.resolve().name) or max(found, default=0)
    wanted = {
        FINAL: None,
        LAST: max(found, default=None),
        BEST: manifest.read_pointer(run_folder, "BEST"),
    }.get(which, int(which) if which.isdecimal() else None)
    if wanted is None or wanted not in found:
        missing = _explain_missing(which, wanted)
        raise ModelError(f"The run {run_folder} has {missing}. {_list_steps(sorted(found))}")
    return found[wanted], wanted


def _explain_missing(which: str, step: int | None) -> str:
    if step is not None:
        return f"no checkpoint of step {step}" + (", the best on its validation split" if which == BEST else "")
    return {
        FINAL: "no final model: it has not finished",
        LAST: "no checkpoint",
        BEST: "no best checkpoint: that needs evaluations on a validation split (data.validation_split)",
    }[which]


def _list_steps(steps: list[int]) -> str:
    if not steps:
        return "It has no checkpoint at all."
    return f"Its checkpoints are of step {', '.join(map(str, steps))}; name one of them."
