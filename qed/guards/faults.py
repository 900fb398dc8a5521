"""Faults at named points of a run, armed by a test's environment variable alone: QED_FAULT=point:kind or point:kind:n.

The points are those that `signals.poll` is called with, and `save`, which every stage of a save passes; numbers go
through `loss` and `reward`. The n-th passing, the first by default, meets the fault: `kill`, a signal by its name such
as `sigterm`, `enospc`, `sleep`, and of a number `nan`.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

from qed.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

VARIABLE = "QED_FAULT"
SIGNALS = {"kill": "SIGKILL", **{name: name.upper() for name in ("sigterm", "sigint", "sighup", "sigusr1")}}
KINDS = (*SIGNALS, "enospc", "sleep", "nan")
LONG = 3600.0  # seconds that a sleep lasts: until somebody ends it
Number = TypeVar("Number", float, "Tensor")
ARMED = os.environ.get(VARIABLE, "")  # read once, because a point may lie between two tokens
_passed: Counter[str] = Counter()


def hit(point: str) -> None:
    """Pass a point; unarmed, which is always but in a test, nothing happens."""
    if ARMED:
        _act_out(point)


def pass_through(point: str, value: Number) -> Number:
    """A number, or a tensor of one, that goes through a point: as it is, or NaN where the point is armed for that."""
    return value * math.nan if ARMED and _is_due(point) == "nan" else value


def _act_out(point: str) -> None:
    kind = _is_due(point)
    if kind in SIGNALS:
        os.kill(os.getpid(), signal.Signals[SIGNALS[kind]])
    elif kind == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif kind == "sleep":
        time.sleep(LONG)


def _is_due(point: str) -> str:
    """The kind of fault that this passing of a point meets; empty for none.

    Raises:
        UsageError: the variable names no fault.
    """
    armed, kind, number = (*ARMED.split(":"), "1", "1")[:3]
    if kind not in KINDS or not number.isdecimal():
        raise UsageError(f"{VARIABLE}={ARMED} is no fault: give point:kind:n, a kind of {KINDS}.")
    if armed != point:
        return ""
    _passed[point] += 1
    return kind if _passed[point] == int(number) else ""
