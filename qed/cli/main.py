"""Run the command line: `qed quickstart | pipeline | <algorithm>` train; the folder `commands` has the other commands.

Each command imports its heavy dependencies itself, so that help and error messages appear immediately.
"""
# ruff: noqa: PLC0415, T201 -- late imports are the point here, and this is where results are printed

from __future__ import annotations

import importlib
import io
import os
import resource
import sys
import traceback
from collections.abc import Sequence

import qed
from qed import host
from qed.cli.overview import format_overview
from qed.cluster.environment import describe_idle_rank
from qed.config import plugins
from qed.config.user_code import find_users_line
from qed.console.unread import drop_unread
from qed.errors import (
    INTERRUPTED,
    DataError,
    QedError,
    UsageError,
    advise_space,
    describe_unexpected,
    follows_interrupt,
    is_out_of_memory,
)
from qed.guards.interpreter import require_usable_process
from qed.guards.parents import die_with_launcher
from qed.guards.ranks import claim_failure, forget_ranks
from qed.guards.redaction import redact, strip_control

MAX_NAME_LENGTH = 200  # the most characters of a path to print
BROKEN_PIPE = 141  # the exit code of a process that SIGPIPE ends, as usual for commands in a pipe


def main(argv: list[str] | None = None) -> None:
    """Run a command line and exit with its code."""
    die_with_launcher()
    forget_ranks()
    arguments = sys.argv[1:] if argv is None else argv
    _open_missing_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an ASCII terminal shows ? for other characters
    host.set_passive_waiting()
    host.make_products_reproducible()
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = _report_interrupt()
    except Exception as error:  # noqa: BLE001 -- without --debug, no error prints a traceback
        code = _report_error(error, debug="--debug" in arguments)
    raise SystemExit(code)


def _open_missing_streams() -> None:
    """Open the null device in place of a closed standard stream; `>&-` in a shell closes one.

    Otherwise the next files that are opened would get the file descriptors of the standard streams.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 -- as long as the process


def _report_interrupt() -> int:
    """Print that Ctrl-C ended the command, and return the exit code."""
    print("interrupted", file=sys.stderr)
    return INTERRUPTED


def _report_error(error: Exception, debug: bool) -> int:
    """Print an error message, and return the exit code."""
    if isinstance(error, BrokenPipeError):
        gone = [drop_unread(stream) for stream in (sys.stdout, sys.stderr)]
        if any(gone):  # otherwise the broken pipe is not one of our output streams
            return BROKEN_PIPE
    if debug:
        traceback.print_exception(error)
    if follows_interrupt(error):
        return _report_interrupt()
    if not claim_failure():
        return error.exit_code if isinstance(error, QedError) else 1
    if isinstance(error, QedError):
        print(strip_control(redact(f"error: {error}")), file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError) and (refusal := _explain_refusal(error)):
        print(strip_control(redact(f"error: {refusal}")), file=sys.stderr)
        return DataError.exit_code
    print(strip_control(redact(f"error: {_describe(error)}")), file=sys.stderr)
    return 1


def _describe(error: Exception) -> str:
    """Describe an unexpected error in one line: what it is, its likely cause, and where to find its traceback."""
    cause = "a bug in qed, or an unusual environment"
    if is_out_of_memory(error):
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        own = "" if limit == resource.RLIM_INFINITY else f"ulimit -v allows {limit / 2**30:.1f} GiB here: raise it, or "
        cause = f"out of memory: {own}use a smaller model, batch or length; qed doctor --fit measures what fits"
    return describe_unexpected(error, find_users_line(error) or cause)


def _explain_refusal(error: OSError) -> str:
    """Return a message for an error of the system on a path, or for lack of disk space; else an empty string."""
    if error.filename is not None:
        name = str(error.filename)
        shown = name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}…"
        return f"{shown!r} cannot be used: {error.strerror}."
    space = advise_space(error)
    return f"{error.strerror}. {space}, and run the command again." if space else ""


def _run(arguments: Sequence[str]) -> int:
    if not arguments:
        print(format_overview(), file=sys.stderr)
        return UsageError.exit_code
    command, rest = arguments[0], list(arguments[1:])
    if not command.startswith("-") and {"-h", "--help", "--help-all"}.isdisjoint(rest):
        require_usable_process()
    if command in ("-h", "--help", "--help-all"):
        print(format_overview())
    elif command == "--version":
        print(f"qed {qed.__version__}")
    elif command == "--completion":
        from qed.cli.completion import write_script

        print(write_script(rest[0] if rest else ""), end="")
    elif (name := command.replace("-", "_")) in plugins.list_leaves("commands"):
        leaf = importlib.import_module(f"qed.cli.commands.{name}")
        in_each_rank = getattr(leaf, "IN_EACH_RANK", False) or not {"-h", "--help"}.isdisjoint(rest)
        if not in_each_rank and (idle := describe_idle_rank(command)):
            print(idle, file=sys.stderr)
            return 0
        return int(leaf.run(rest))
    else:
        from qed.cli.training import run_training_command

        return run_training_command(command, rest, arguments)
    return 0
