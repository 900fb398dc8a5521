"""Run the points of a sweep whose runs have several ranks."""

from __future__ import annotations

import json
import tempfile
from typing import Any

from qed.cluster.launch import run_ranks
from qed.config.sweep import Point
from qed.errors import Interrupted, QedError
from qed.guards.parents import build_child_command
from qed.guards.signals import EXIT_CODES


def run_point(command: str, point: Point) -> dict[str, Any]:
    """Run one point of a sweep in several processes, and return its result.

    Raises:
        Interrupted: a signal stopped it, and thus the sweep.
        QedError: it failed; rank 0 has printed why.
    """
    ranks, arguments = point.resolved.flags.ranks, [command, *point.arguments, "--json"]
    with tempfile.TemporaryFile() as out:
        code = run_ranks(build_child_command(arguments), ranks, stdout=out)
        out.seek(0)
        lines = out.read().decode("utf-8", "replace").splitlines()
    if code in EXIT_CODES.values():
        raise Interrupted("The sweep was stopped. The same command with --resume continues it.", code)
    if code or not lines:
        raise QedError(f"the run in {point.resolved.settings.run.out} ended with exit code {code}; its error is above")
    result: dict[str, Any] = json.loads(lines[-1])
    return result
