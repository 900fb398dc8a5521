"""CPU use of other processes, from /proc: figures measured on a busy machine are marked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
PROC = Path("/proc")
TICK = 1 / os.sysconf("SC_CLK_TCK")
BUSY = 0.15  # cores used by others; an idle machine stays below a twentieth


class Watch:
    """The machine's load besides this process and its children.

    The CPU time of others is the machine's minus that of this process's tree. If /proc does not provide it,
    as on macOS, it is unknown.

    Args:
        proc: folder to read.
    """

    def __init__(self, proc: Path = PROC) -> None:
        self.proc = proc
        self.restart()

    def restart(self) -> None:
        """Restart the measurement."""
        self._began = time.perf_counter()
        self._machine, self._own = read_machine(self.proc), read_tree(os.getpid(), self.proc)

    def lap(self) -> Figures:
        """Return the load since the beginning or the last lap: `others`, in cores, `load` and the `elapsed` seconds."""
        machine, own = self._machine, self._own
        elapsed = time.perf_counter() - self._began
        self.restart()
        others = None
        if machine is not None and self._machine is not None:
            others = max(0.0, (self._machine - machine - (self._own - own)) / elapsed)
        return {"others": others, "load": os.getloadavg()[0], "elapsed": elapsed}


def read_machine(proc: Path = PROC) -> float | None:
    """Return the busy seconds of all cores; None if they are unknown."""
    try:
        first = (proc / "stat").read_text().splitlines()[0].split()
    except (OSError, IndexError):
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user.
    user, nice, system, _, _, irq, softirq, *_ = map(int, first[1:])
    return (user + nice + system + irq + softirq) * TICK or None


def read_tree(root: int, proc: Path = PROC) -> float:
    """Return the CPU seconds of a process and all of its children, including ended ones."""
    parents, seconds = {}, {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
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
    """Summarise the machine's load while figures were measured.

    Args:
        laps: laps of a `Watch`.

    Returns:
        `others`, the average cores used by others, or None; `load`, the highest load average; and `busy`, None
        if unknown.
    """
    told = [lap for lap in laps if lap.get("elapsed")]
    known = [lap for lap in told if lap["others"] is not None]
    if not known or len(known) < len(told):
        return {"others": None, "load": max((lap["load"] for lap in told), default=None), "busy": None}
    others = sum(lap["others"] * lap["elapsed"] for lap in known) / sum(lap["elapsed"] for lap in known)
    return {"others": others, "load": max(lap["load"] for lap in known), "busy": others > BUSY}


def describe_load(load: Figures) -> str:
    """Describe the load in a sentence; return an empty string if the machine was idle."""
    if load["busy"] is None:
        return "What other processes took of the machine is not known."
    if load["busy"]:
        return (
            f"The machine was busy: other processes took {load['others']:.1f} cores (load average {load['load']:.1f}). "
            "Take the ratios again on a quiet machine."
        )
    return ""
