"""Resume a run: find its checkpoint, and check that its settings are unchanged."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from qed.config.changes import CANNOT_CHANGE, list_changes
from qed.config.phases import PipelineSettings, Settings
from qed.console.live import Console
from qed.errors import UsageError
from qed.loops.provisional import Provisional
from qed.runs.manifest import parse_step
from qed.runs.run import Launch, Run, read_lines, write_bytes
from qed.training import checkpoints
from qed.training.best import read_scores


def find_checkpoint(settings: Settings | PipelineSettings, run: Run, console: Console, launch: Launch) -> Path | None:
    """Return the newest complete checkpoint of the run, after checking that the settings are the same.

    Raises:
        UsageError: the settings differ, or there is no checkpoint to resume from.
        DataError: a file of the run is damaged, or no checkpoint is complete.
    """
    for removed in _repair_records(run):
        console.say(f"The end of {removed.stem} could not be read and was moved to {removed}.")
    changes, refused = list_changes(run.folder / "settings.yaml", settings, launch.allow_change)
    require_allowed(run.folder, refused)
    for change in changes:
        console.say(f"Changed since the run began: {change}.")
    learner = list_phases(settings)[-1].learner
    if (learner.schedule != "constant" or learner.warmup_ratio) and any(map(_changes_length, changes)):
        console.say("The learning rate continues as if the run had had its new length from the start.")
    checkpoints.remove_leftovers(run)
    newest = checkpoints.find_newest_complete(run, console.say, launch.fast)
    recorded = {row["step"] for row in read_lines(run.folder / "metrics.jsonl")}
    if newest is None and recorded and not launch.requeue:
        raise UsageError(
            f"{run.folder} has no checkpoint to resume from, and resuming would erase its records. Start "
            "it again with --overwrite or --requeue, and set run.save_every to have checkpoints."
        )
    if newest is not None and parse_step(newest.name) not in recorded | {0}:
        console.say(f"Warning: metrics.jsonl is incomplete: it ends before the step of {newest.name}.")
    run.event("resumed", attempt=run.attempt, changed=changes)
    if not any(phase.learner.epochs for phase in list_phases(settings)):
        # With epochs, the phase boundaries are not known yet; the next checkpoint does the pruning instead.
        provisional = Provisional.read(checkpoints.read_state(newest) if newest else {})
        provisional.prune(run, settings.run, read_scores(run.folder), list_boundaries(settings))
    return newest


def require_allowed(folder: Path, refused: Sequence[str]) -> None:
    """Raise UsageError if settings differ from those of the run in a way that resuming does not allow."""
    if refused:
        fixed = all(text.endswith(CANNOT_CHANGE) for text in refused)
        advice = "or start a new run" if fixed else "start a new run, or allow the change with --allow-change KEY"
        raise UsageError(
            f"{folder} cannot be resumed with different settings: {'; '.join(refused)}. Use those in its "
            f"settings.yaml, {advice}."
        )


def _changes_length(change: str) -> bool:
    """Return whether a change (`key: old -> new`) affects how long a phase trains."""
    return change.partition(":")[0].endswith(("learner.steps", "learner.epochs"))


def _repair_records(run: Run) -> list[Path]:
    """Cut off an unreadable end of metrics.jsonl and events.jsonl, as left by a power failure.

    Returns:
        The files in the run's log folder that hold what was cut off.
    """
    removed = []
    for name in ("metrics.jsonl", "events.jsonl"):
        path, valid_bytes, position = run.folder / name, 0, 0
        content = path.read_bytes() if path.exists() else b""
        for line in content.split(b"\n")[:-1]:
            position += len(line) + 1
            with suppress(ValueError):
                json.loads(line)
                valid_bytes = position
        if valid_bytes < len(content):
            removed.append(run.log.with_name(f"{name}.cut"))
            write_bytes(removed[-1], content[valid_bytes:])
            os.truncate(path, valid_bytes)
    return removed


def list_phases(settings: Settings | PipelineSettings) -> list[Settings]:
    """Return the settings of each phase of a run."""
    return settings.phases() if isinstance(settings, PipelineSettings) else [settings]


def list_boundaries(settings: Settings | PipelineSettings) -> frozenset[int]:
    """Return the steps at which phases begin or end; later phases and controls start from their checkpoints."""
    return frozenset(accumulate((phase.learner.steps for phase in list_phases(settings)), initial=0))
