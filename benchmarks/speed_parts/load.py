"""What other processes take of the machine meanwhile, from /proc: figures taken on a busy machine say so."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
PROC = Path("/proc")
TICK = 1 / os.sysconf("SC_CLK_TCK")
BUSY = 0.15  # cores that others take; a machine that is left alone stays below a twentieth


class Watch:
    """What the machine does besides this process and those that it started.

    The processor time of others is that of the machine less that of this process's tree. Where /proc does not tell it,
    as on macOS, it is not known.

    Args:
        proc: the folder to read.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self.proc = proc
        self.restart()

    def restart(self) -> None:
        """Begin anew."""
        self._began = time.perf_counter()
        self._machine, self._own = read_machine(self.proc), read_tree(os.getpid(), self.proc)

    def lap(self) -> Figures:
        """What came about since the beginning or the last lap: `others`, in cores, `load` and the `elapsed` seconds."""
        machine, own = self._machine, self._own
        elapsed = time.perf_counter() - self._began
        self.restart()
        others = None
        if machine is not None and self._machine is not None:
            others = max(0.0, (self._machine - machine - (self._own - own)) / elapsed)
        return {"others": others, "load": os.getloadavg()[0], "elapsed": elapsed}


def read_machine(proc: Path = PROC) -> float | None:
    """Seconds that all cores have worked; None where that is not told."""
    try:
        first = (proc / "stat").read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guests are part of user.
    user, nice, system, _, _, irq, softirq, *_ = map(int, first[1:])
    return (user + nice + system + irq + softirq) * TICK or None


def read_tree(root: int, proc: Path = PROC) -> float:
    """Seconds that a process has worked, with all that it started, those included that have ended."""
    parents, seconds = {}, {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended since
            continue
        number = int(stat.parent.name)
        parents[number], seconds[number] = int(fields[1]), sum(map(int, fields[11:15])) * TICK
    total, found = 0.0, [root]
    while found:
        one = found.pop()
        total += seconds.get(one, 0.0)
        found += [child for child, parent in parents.items() if parent == one]
    return total


def sum_up(laps: Iterable[Figures]) -> Figures:
    """The verdict on the time in which figures were taken.

    Args:
        laps: of a `Watch`.

    Returns:
        `others`, the cores that others took on average, or None; `load`, the highest load average; and `busy`, None
        where it cannot be known.
    """
    told = [lap for lap in laps if lap.get("elapsed")]
    known = [lap for lap in told if lap["others"] is not None]
    if not known or len(known) < len(told):
        return {"others": None, "load": max((lap["load"] for lap in told), default=None), "busy": None}
    others = sum(lap["others"] * lap["elapsed"] for lap in known) / sum(lap["elapsed"] for lap in known)
    return {"others": others, "load": max(lap["load"] for lap in known), "busy": others > BUSY}


def describe_load(load: Figures) -> str:
    """A sentence about it, for people; nothing where the machine was left alone."""
    if load["busy"] is None:
        return "What other processes took of the machine is not known."
    if load["busy"]:
        return (
            f"The machine was busy: other processes took {load['others']:.1f} cores (load average {load['load']:.1f}). "
            "Take the ratios again on a quiet machine."
        )
    return ""
