"""Going on with a run: from which checkpoint, and whether it is still the same run."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from qed.config.changes import list_changes
from qed.config.phases import PipelineSettings, Settings
from qed.console.live import Console
from qed.data.splits import LoadedProblems
from qed.errors import UsageError
from qed.randomness import derive_seed
from qed.runs.manifest import parse_step
from qed.runs.run import Launch, Run, read_lines, write_bytes
from qed.training import checkpoints
from qed.training.best import keep_best, read_scores


def find_checkpoint(settings: Settings | PipelineSettings, run: Run, console: Console, launch: Launch) -> Path | None:
    """The checkpoint to go on from, once it is sure that this is the same run.

    Raises:
        UsageError: it is another run, or nothing of it could be gone on with.
        DataError: a file of it is damaged, or no checkpoint is whole.
    """
    for cut_off in _repair_records(run):
        console.say(f"The end of {cut_off.stem} could not be read, and has been put into {cut_off}.")
    told, refused = list_changes(run.folder / "settings.yaml", settings, launch.allow_change)
    if refused:
        raise UsageError(
            f"{run.folder} cannot be resumed with other settings: {'; '.join(refused)}. Give those of its "
            "settings.yaml, begin another run, or say with --allow-change KEY that a change is meant."
        )
    for change in told:
        console.say(f"Changed since the run began: {change}.")
    checkpoints.remove_leftovers(run)
    found = checkpoints.find_newest_complete(run, console.say, launch.fast)
    recorded = {row["step"] for row in read_lines(run.folder / "metrics.jsonl")}
    if found is None and recorded and not launch.requeue:
        raise UsageError(
            f"{run.folder} has no checkpoint to go on from, and resuming would erase what it recorded. Begin "
            "again with --overwrite or --requeue, and set run.save_every next time."
        )
    if found is not None and parse_step(found.name) not in recorded | {0}:
        console.say(f"Warning: metrics.jsonl is incomplete: it ends before the step of {found.name}.")
    run.event("resumed", attempt=run.attempt, changed=told)
    keep_best(run, settings.run, read_scores(run.folder), list_boundaries(settings))
    return found


def _repair_records(run: Run) -> list[Path]:
    """Take off the end of metrics.jsonl and events.jsonl what is no row, as a machine leaves it that lost its power;
    the files in the run's log folder where that is kept."""
    kept = []
    for name in ("metrics.jsonl", "events.jsonl"):
        path, whole, at = run.folder / name, 0, 0
        content = path.read_bytes() if path.exists() else b""
        for line in content.split(b"\n")[:-1]:
            at += len(line) + 1
            with suppress(ValueError):
                json.loads(line)
                whole = at
        if whole < len(content):
            kept.append(run.log.with_name(f"{name}.cut"))
            write_bytes(kept[-1], content[whole:])
            os.truncate(path, whole)
    return kept


def list_phases(settings: Settings | PipelineSettings) -> list[Settings]:
    """The settings of each phase of a run."""
    return settings.phases() if isinstance(settings, PipelineSettings) else [settings]


def list_boundaries(settings: Settings | PipelineSettings) -> frozenset[int]:
    """The steps at which a run's phases begin and end: later phases and controls start from their checkpoints."""
    return frozenset(accumulate((phase.learner.steps for phase in list_phases(settings)), initial=0))


def hash_problems(loaded: LoadedProblems) -> str:
    """What tells the training problems from any others, in their order."""
    told = (
        f"{each.id} {each.question} {each.answer} {each.solution} {each.meta.get('chosen')} {each.meta.get('rejected')}"
        for each in loaded.problems
    )
    return f"{derive_seed(*told):016x}"


def require_same_problems(loaded: LoadedProblems, run: Run, launch: Launch) -> None:
    """Refuse to go on with other training problems than those that the run began with, unless that is meant.

    Raises:
        UsageError: they are others.
    """
    before = [row["fingerprint"] for row in read_lines(run.folder / "events.jsonl") if row["event"] == "data"]
    meant = any(key.startswith("data.") for key in launch.allow_change)
    if before and before[-1] != hash_problems(loaded) and not meant:
        raise UsageError(
            f"The training problems are others than when {run.folder} began: a data file, what qed reads from it, or "
            "what is held out has changed. Restore the data, begin another run, or say with --allow-change data.tasks "
            "that this is meant."
        )
