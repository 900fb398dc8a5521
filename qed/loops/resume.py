"""Resuming a run: finds the checkpoint, and checks that settings and data are still the same."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from qed.config.changes import list_changes
from qed.config.phases import PipelineSettings, Settings
from qed.config.reward_names import parse_reward
from qed.console.live import Console
from qed.errors import UsageError
from qed.loops.provisional import Provisional
from qed.randomness import hash_parts
from qed.runs.manifest import parse_step
from qed.runs.run import Launch, Row, Run, read_lines, write_bytes
from qed.training import checkpoints
from qed.training.best import read_scores
from qed.types import Problem


def find_checkpoint(settings: Settings | PipelineSettings, run: Run, console: Console, launch: Launch) -> Path | None:
    """Return the newest complete checkpoint of the run, after checking that the settings are the same.

    Raises:
        UsageError: the settings differ, or there is no checkpoint to resume from.
        DataError: a file of the run is damaged, or no checkpoint is complete.
    """
    for removed in _repair_records(run):
        console.say(f"The end of {removed.stem} could not be read, and has been put into {removed}.")
    changes, refused = list_changes(run.folder / "settings.yaml", settings, launch.allow_change)
    if refused:
        raise UsageError(
            f"{run.folder} cannot be resumed with other settings: {'; '.join(refused)}. Use those of its "
            "settings.yaml, start another run, or allow the change with --allow-change KEY."
        )
    for change in changes:
        console.say(f"Changed since the run began: {change}.")
    checkpoints.remove_leftovers(run)
    newest = checkpoints.find_newest_complete(run, console.say, launch.fast)
    recorded = {row["step"] for row in read_lines(run.folder / "metrics.jsonl")}
    if newest is None and recorded and not launch.requeue:
        raise UsageError(
            f"{run.folder} has no checkpoint to go on from, and resuming would erase what it recorded. Start "
            "again with --overwrite or --requeue, and set run.save_every next time."
        )
    if newest is not None and parse_step(newest.name) not in recorded | {0}:
        console.say(f"Warning: metrics.jsonl is incomplete: it ends before the step of {newest.name}.")
    run.event("resumed", attempt=run.attempt, changed=changes)
    if not any(phase.learner.epochs for phase in list_phases(settings)):
        # With epochs the boundaries are not known yet; the next checkpoint deletes what is not kept.
        provisional = Provisional.read(checkpoints.read_state(newest) if newest else {})
        provisional.prune(run, settings.run, read_scores(run.folder), list_boundaries(settings))
    return newest


def _repair_records(run: Run) -> list[Path]:
    """Remove an unreadable end of metrics.jsonl and events.jsonl, such as a power failure leaves.

    Returns:
        the files in the run's log folder that hold what was removed.
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
    """Return the boundary steps of a run's phases; later phases and controls start from their checkpoints."""
    return frozenset(accumulate((phase.learner.steps for phase in list_phases(settings)), initial=0))


def hash_problems(problems: Sequence[Problem]) -> str:
    """Return a hash of the training problems and their order."""
    lines = (
        f"{each.id} {each.question} {each.answer} {each.solution} {each.meta.get('chosen')} {each.meta.get('rejected')}"
        for each in problems
    )
    return f"{hash_parts(lines):016x}"


def require_same_problems(fingerprint: str, run: Run, launch: Launch) -> None:
    """Refuse to resume a run with other training problems, unless `--allow-change data.*` allows it.

    `fingerprint` is the result of `hash_problems` for those of this attempt.

    Raises:
        UsageError: the problems have changed.
    """
    before = _read_last_data(run)
    if before and before["fingerprint"] != fingerprint and not _may_change_data(launch):
        raise UsageError(
            f"The training problems have changed since {run.folder} began: a data file, what qed reads from it, or "
            "what is held out is different. Restore the data, start another run, or allow the change with "
            "--allow-change data.tasks."
        )


def hash_own_files(phases: Sequence[Settings], run: Run, launch: Launch) -> dict[str, str]:
    """Return a hash of each of the user's files that is a reward, a prompt or an environment, by its name.

    What a file imports is not looked at.

    Raises:
        UsageError: the run is resumed, a file has changed, and no `--allow-change data.*` allows it.
    """
    data = [phase.data for phase in phases]
    names = [parse_reward(text).source for each in data for text in each.reward]
    names += [name for each in data for name in (each.prompt, each.environment)]
    files = {name: Path(name) for name in names if name.endswith(".py")}
    hashes = {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items() if file.is_file()}
    before = _read_last_data(run).get("own_files", {}) if launch.resume else {}
    changed = [name for name, found in hashes.items() if before.get(name, found) != found]
    if changed and not _may_change_data(launch):
        raise UsageError(
            f"{changed[0]} has changed since {run.folder} began, so that one run would have two rewards, prompts or "
            "environments. Restore the file, start another run, or allow the change with --allow-change data.reward."
        )
    return hashes


def _read_last_data(run: Run) -> Row:
    """Return what the last attempt at a run has noted of its data; empty if there was none."""
    noted = [row for row in read_lines(run.folder / "events.jsonl") if row["event"] == "data"]
    return noted[-1] if noted else {}


def _may_change_data(launch: Launch) -> bool:
    return any("data" in key.split(".") for key in launch.allow_change)
