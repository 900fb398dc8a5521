"""Run the command line: `qed quickstart | pipeline | <algorithm>` train; the shelf `commands` has the other commands.

Each command imports its heavy dependencies itself, so that help and error messages appear at once.
"""
# ruff: noqa: PLC0415, T201 -- late imports are the point here, and this is where results are printed

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import qed
from qed import host
from qed.cli.commands.base import resolve_training_command
from qed.cluster.environment import is_first_rank, map_slurm, must_launch
from qed.cluster.launch import run_ranks
from qed.cluster.sweep import run_point
from qed.config import plugins
from qed.config.arguments import drop_flags
from qed.config.fields import Table
from qed.config.help import format_command_help, format_overview
from qed.config.keys import list_origins
from qed.config.phases import PipelineSettings
from qed.config.resolve import Resolved, read_sources, resolve_settings
from qed.console.unread import drop_unread
from qed.errors import DataError, QedError, UsageError
from qed.guards.parents import build_child_command, die_with_launcher
from qed.guards.ranks import claim_failure, forget_ranks
from qed.guards.redaction import redact, strip_control

INTERRUPTED = 130
MAX_NAME_LENGTH = 200  # characters of a path that are shown
BROKEN_PIPE = 141  # the exit code of a process that SIGPIPE ends, as usual for commands in a pipe


def main(argv: list[str] | None = None) -> None:
    """Run a command line and exit with its code."""
    die_with_launcher()
    forget_ranks()
    arguments = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for other characters
    host.set_passive_waiting()
    host.make_products_reproducible()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except Exception as error:  # noqa: BLE001 -- without --debug, no error prints a traceback
        code = _report_error(error, debug="--debug" in arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    raise SystemExit(code)


def _report_error(error: Exception, debug: bool) -> int:
    """Print an error message, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        gone = [drop_unread(stream) for stream in (sys.stdout, sys.stderr)]
        if any(gone):  # else it is another pipe than that of our output
            return BROKEN_PIPE
    if debug:
        traceback.print_exception(error)
    if not claim_failure():
        return error.exit_code if isinstance(error, QedError) else 1
    if isinstance(error, QedError):
        print(strip_control(redact(f"error: {error}")), file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError) and error.filename is not None:
        # The system refuses a path that the user gave.
        name = str(error.filename)
        shown = name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
        print(strip_control(redact(f"error: {shown!r} cannot be used: {error.strerror}.")), file=sys.stderr)
        return DataError.exit_code
    log = getattr(error, "qed_log", None)
    where = f"the traceback is in {log}" if log else "run again with --debug for the traceback"
    text = " ".join(str(error).split())
    message = f"error: {type(error).__name__}: {text} (a bug in qed, or an unusual environment; {where})"
    print(strip_control(redact(message)), file=sys.stderr)
    return 1


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        print(format_overview(), file=sys.stderr)
        return UsageError.exit_code
    command, rest = arguments[0], list(arguments[1:])
    if command in ("-h", "--help", "--help-all"):
        print(format_overview())
    elif command == "--version":
        print(f"qed {qed.__version__}")
    elif command == "--completion":
        from qed.cli.completion import write_script

        print(write_script(rest[0] if rest else ""), end="")
    elif (name := command.replace("-", "_")) in plugins.list_leaves("commands"):
        return int(importlib.import_module(f"qed.cli.commands.{name}").run(rest))
    else:
        return _train(resolve_training_command(command), rest, arguments)
    return 0


def _train(command: str, rest: Sequence[str], arguments: Sequence[str]) -> int:
    """Run a training command, or each run of its sweep."""
    if {"-h", "--help", "--help-all"} & set(rest):
        print(format_command_help(_find_help_table(command, rest), everything="--help-all" in rest))
        return 0
    os.environ.update(map_slurm())
    resolved = resolve_settings(command, rest)
    launches = must_launch(resolved.flags.ranks) and not resolved.flags.dry_run
    if launches and command == "quickstart":
        raise UsageError("qed quickstart trains a small model in one process. Leave --ranks out.")
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


def _require_cluster_run(resolved: Resolved) -> None:
    """Refuse what does not run on a cluster.

    Raises:
        UsageError: the command is several runs, or trains in one process.
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
    if resolved.flags.dry_run:
        from qed.loops.dry_run import run_dry

        run_dry(resolved.settings, origins, resolved.flags.ranks)
        return {}
    from qed.loops.warm_start import warm_start
    from qed.runs.run import Launch

    flags = resolved.flags
    launch = Launch(
        command=("qed", *arguments),
        origins=origins,
        resume=_should_resume(resolved),
        requeue=flags.requeue,
        overwrite=flags.overwrite,
        home=home,
        json=flags.json,
        allow_change=flags.allow_change,
        fast=flags.fast,
    )
    if not isinstance(resolved.settings, PipelineSettings):
        from qed.loops.train import train

        return train(warm_start(resolved.settings, launch), launch)
    return _load_pipeline(resolved.command)(warm_start(resolved.settings, launch), launch)


def _should_resume(resolved: Resolved) -> bool:
    """Return whether to resume a run: with --resume, or with --requeue if its folder has settings."""
    out = resolved.settings.run.out
    if resolved.flags.requeue and not out:
        raise UsageError("--requeue needs the run's folder, to check whether the run has started: add --out DIR.")
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


def _run_sweep(command: str, rest: Sequence[str], arguments: Sequence[str], launches: bool) -> int:
    from qed.config import sweep

    def train(point: sweep.Point) -> dict[str, Any]:
        if launches:
            return run_point(command, point)
        return run_recipe(point.resolved, arguments, _find_sweep_folder(point.resolved))

    outcomes = sweep.run_points(sweep.list_points(command, rest), train)
    print(sweep.format_json(outcomes) if "--json" in rest else sweep.format_table(outcomes))
    return 1 if any(outcome.error for outcome in outcomes) else 0
