"""Rewards that misbehave, for the tests of the judge: loaded in its workers by name."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from qed.grading.judge import serve
from qed.types import Grade, Rollout

MEBIBYTE = 1 << 20


def prepare(batched: bool = False) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """A reward that does what the answer's text says."""
    return {"batched": batched}, serve(lambda rollouts: [_graded(rollout, len(rollouts)) for rollout in rollouts])


def miscounted(count: int) -> tuple[dict[str, Any], Callable[[Any], Any]]:
    """A target that gives a fixed number of grades, however many answers there are."""
    return {
        "batched": True
    }, lambda question: [{"reward": 1.0, "correct": True, "format_ok": True, "extracted": None}] * count


def broken() -> None:
    """A target that cannot be loaded."""
    raise ValueError("no such model")


def slow_to_load() -> tuple[None, Callable[[str], Any]]:
    """A target whose libraries take a while."""
    time.sleep(0.5)
    return None, str


def sealed() -> tuple[None, Callable[[str], Any]]:
    """Runs what it is told, to see what a sealed child refuses."""
    return None, lambda code: str(eval(code, {"os": os, "subprocess": subprocess, "sys": sys}))


def _graded(rollout: Rollout, together: int) -> Grade:
    deeds: dict[str, Callable[[], Any]] = {
        "hang": _spin,
        "sleep": lambda: time.sleep(60),
        "raise": lambda: [][1],
        "exit": lambda: sys.exit(3),
        "die": lambda: ctypes.string_at(0),
        "grow": lambda: [bytearray(16 * MEBIBYTE) for _ in range(1000)],
        "alarm": lambda: signal.alarm(0),
        "print": lambda: os.write(1, b"noise on stdout"),
        "pid": os.getpid,
    }
    told = deeds.get(rollout.text, lambda: together)()
    return Grade(float(rollout.text == rollout.problem.answer), False, True, str(told), {"together": together})


def _spin() -> None:
    while True:
        pass


def standing() -> tuple[None, Callable[[str], Any]]:
    """Tells with how many threads and at which niceness the process runs."""
    return None, lambda name: os.environ[name] if name else os.nice(0)
