"""The training commands: `qed quickstart | pipeline | <algorithm>`."""
# ruff: noqa: PLC0415, T201 -- torch is imported after the settings are checked, and this prints results

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from qed.cluster.environment import describe_separate_tasks, is_first_rank, map_slurm, must_launch, read_world
from qed.cluster.launch import run_ranks
from qed.cluster.sweep import run_point
from qed.config.arguments import drop_flags
from qed.config.fields import Table
from qed.config.help import format_command_help
from qed.config.keys import list_origins
from qed.config.phases import PipelineSettings
from qed.config.resolve import Resolved, read_sources, resolve_settings
from qed.config.training_commands import resolve_training_command
from qed.errors import QedError, UsageError, describe_unexpected, follows_interrupt
from qed.guards.parents import build_child_command
from qed.guards.redaction import redact, strip_control


def run_training_command(command: str, rest: Sequence[str], arguments: Sequence[str]) -> int:
    """Run a training command, or each run of its sweep, and return the exit code.

    Args:
        command: the command as given.
        rest: the arguments after it.
        arguments: the complete command line.

    Raises:
        UsageError: there is no such command.
    """
    command = resolve_training_command(command)
    if {"-h", "--help", "--help-all"} & set(rest):
        print(format_command_help(_find_help_table(command, rest), everything="--help-all" in rest))
        return 0
    sys.stderr.write(describe_separate_tasks())
    os.environ.update(map_slurm())
    resolved = resolve_settings(command, rest)
    launches = must_launch(resolved.flags.ranks) and not resolved.flags.dry_run
    if command == "quickstart":
        _require_one_process(launches)
    if resolved.flags.cluster:
        _require_cluster_run(resolved)
    if resolved.flags.sweep:
        return _run_sweep(command, rest, arguments, launches)
    if launches:
        _should_resume(resolved)  # which checks the flags
        return run_ranks(build_child_command(drop_flags(arguments, "ranks")), resolved.flags.ranks)
    if resolved.flags.cluster and not resolved.flags.dry_run:
        from qed.cluster.ray_train import run_on_cluster

        _should_resume(resolved)  # which checks the flags
        return run_on_cluster(resolved, arguments)
    result = run_recipe(resolved, arguments)
    if resolved.flags.json and is_first_rank():
        print(json.dumps(result, default=str))
    return 0


def _require_one_process(launches: bool) -> None:
    """Require that the quickstart has one rank, because several would write the same files.

    Raises:
        UsageError: there are several ranks, or the command would start several (`launches`).
    """
    if launches:
        raise UsageError("qed quickstart trains a small model in one process. Leave --ranks out.")
    world = read_world()
    if world is not None and world[1] > 1:
        raise UsageError(
            f"qed quickstart trains a small model in one process, but torchrun, srun or another launcher has started "
            f"{world[1]} processes (RANK and WORLD_SIZE are set). Start it without the launcher."
        )


def _require_cluster_run(resolved: Resolved) -> None:
    """Require a command that can run on a cluster.

    Raises:
        UsageError: the command starts ranks itself or several runs, or trains in one process.
    """
    if resolved.command == "quickstart":
        raise UsageError("qed quickstart trains a small model in one process. Leave --cluster out.")
    if resolved.flags.ranks > 1:
        raise UsageError("--ranks is for this machine. On a cluster, cluster.learners is the number of processes.")
    if resolved.flags.sweep:
        raise UsageError("A sweep does not run on a cluster. Start one command with --cluster for each of its runs.")


def _find_help_table(command: str, rest: Sequence[str]) -> Table:
    """Return the settings to explain: those of the chosen algorithms, or of the default ones if `rest` is invalid."""
    try:
        return read_sources(command, rest).table
    except UsageError:
        return read_sources(command, []).table


def run_recipe(resolved: Resolved, arguments: Sequence[str], home: str = "") -> dict[str, Any]:
    """Run the recipe of a command with its settings; `home` is the folder of --out if the run is inside it."""
    origins = list_origins(resolved.settings, resolved.origins)
    if resolved.flags.dry_run and resolved.flags.json:
        raise UsageError("--dry-run prints text, and there is no result to print as JSON: leave --json out.")
    flags, resume = resolved.flags, _should_resume(resolved)  # before the slow imports
    from qed.loops.warm_start import warm_start
    from qed.runs.run import Launch

    launch = Launch(
        command=("qed", *arguments),
        origins=origins,
        resume=resume,
        requeue=flags.requeue,
        overwrite=flags.overwrite,
        home=home,
        json=flags.json,
        allow_change=flags.allow_change,
        fast=flags.fast,
    )
    if flags.dry_run:
        from qed.loops.dry_run import run_dry

        run_dry(resolved.settings, launch, flags.ranks)
        return {}
    if not isinstance(resolved.settings, PipelineSettings):
        from qed.loops.train import train

        return train(warm_start(resolved.settings, launch), launch)
    return _load_pipeline(resolved.command)(warm_start(resolved.settings, launch), launch)


def _should_resume(resolved: Resolved) -> bool:
    """Return whether to resume a run: with --resume, or with --requeue if its folder has settings.

    Raises:
        UsageError: a folder is missing, or has no run to resume.
    """
    out = resolved.settings.run.out
    if resolved.flags.requeue and not out:
        raise UsageError("--requeue needs the run's folder, to check whether the run has started: add --out DIR.")
    if resolved.flags.resume and read_world() is None:
        from qed.runs.folder import require_run

        # Report a mistake before torch is imported. Ranks report it together when the run is opened: one that exited
        # earlier would leave the others waiting.
        require_run(out)
    return resolved.flags.resume or (resolved.flags.requeue and (Path(out) / "settings.yaml").is_file())


def _load_pipeline(command: str) -> Callable[[PipelineSettings, Any], dict[str, Any]]:
    if command == "quickstart":
        from qed.loops.quickstart import run_quickstart

        return run_quickstart
    from qed.loops.train import run_pipeline

    return run_pipeline


def _find_sweep_folder(point: Resolved) -> str:
    """Return the folder of the sweep that a run belongs to."""
    return str(Path(point.settings.run.out).parent)


def _explain(error: Exception, debug: bool) -> str:
    """Describe an unexpected error in one line, with the place of its traceback; `debug` prints that too."""
    if debug:
        traceback.print_exception(error)
    return strip_control(redact(describe_unexpected(error)))


def _ends_sweep(error: Exception) -> bool:
    """Return whether to raise an error unchanged: it explains itself, or is more than the failure of one run."""
    if isinstance(error, QedError | BrokenPipeError):  # a broken pipe: nobody reads the output any more
        return True
    return follows_interrupt(error) or read_world() is not None  # other ranks may wait for this one


def _run_sweep(command: str, rest: Sequence[str], arguments: Sequence[str], launches: bool) -> int:
    from qed.config import sweep
    from qed.runs.folder import RUNS_TABLE
    from qed.runs.run import write_whole

    def train(point: sweep.Point) -> dict[str, Any]:
        if launches:
            return run_point(command, point)
        try:
            return run_recipe(point.resolved, arguments, _find_sweep_folder(point.resolved))
        except Exception as error:
            if _ends_sweep(error):
                raise
            raise QedError(_explain(error, "--debug" in rest)) from error

    points = sweep.list_points(command, rest)
    table = Path(_find_sweep_folder(points[0].resolved)) / RUNS_TABLE

    sweep.encode_table([], table)  # raises before the first run if the file exists but is not a sweep's table

    def record(outcomes: Sequence[sweep.Outcome]) -> None:
        if is_first_rank():
            write_whole(table, sweep.encode_table(outcomes, table))

    outcomes = sweep.run_points(points, train, record)
    if is_first_rank():
        print(sweep.format_json(outcomes) if "--json" in rest else sweep.format_table(outcomes))
    return 1 if any(outcome.error for outcome in outcomes) else 0
