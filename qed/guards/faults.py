"""Fault injection for tests: QED_FAULT=point:kind or point:kind:n or point:kind:n:rank causes a fault at a named point.

The points are the arguments of `signals.check_signals`, and `save`, which every stage of a save passes; numbers pass
through `loss` and `reward`. The fault occurs when the point is passed for the n-th time, by default the first; with
several ranks on every one, or on the given one. Kinds: `kill`, a signal by its name such as `sigterm`, `error` for an
unexpected exception, `enospc`, `oom`, `sleep`, and `nan` for a number.
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
KINDS = (*SIGNALS, "error", "enospc", "oom", "sleep", "nan")
LONG = 3600.0  # seconds to sleep: until the test ends the process
Number = TypeVar("Number", float, "Tensor")
ARMED = os.environ.get(VARIABLE, "")  # read once, because points may be passed at every token
_passed: Counter[str] = Counter()


def hit(point: str) -> None:
    """Cause the fault of a point if it is due; does nothing outside of tests."""
    if ARMED:
        _inject_fault(point)


def pass_through(point: str, value: Number) -> Number:
    """Return a number or a tensor unchanged, or NaN if that fault is due at a point."""
    return value * math.nan if ARMED and _count_passing(point) == "nan" else value


def _inject_fault(point: str) -> None:
    kind = _count_passing(point)
    if kind in SIGNALS:
        os.kill(os.getpid(), signal.Signals[SIGNALS[kind]])
    elif kind == "error":
        raise RuntimeError(f"{VARIABLE}={ARMED}")
    elif kind == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    elif kind == "oom":
        raise MemoryError("out of memory, by QED_FAULT")
    elif kind == "sleep":
        time.sleep(LONG)


def _count_passing(point: str) -> str:
    """Count the passing of a point, and return the kind of fault that is due; empty for none.

    Raises:
        UsageError: the variable's value is invalid.
    """
    armed, kind, number, rank = [*ARMED.split(":"), "", "", ""][:4]
    if kind not in KINDS or not (number or "1").isdecimal():
        raise UsageError(f"{VARIABLE}={ARMED} is not a fault: expected point:kind:n:rank, with a kind of {KINDS}.")
    if armed != point or rank not in ("", os.environ.get("RANK", "0")):
        return ""
    _passed[point] += 1
    return kind if _passed[point] == int(number or 1) else ""
