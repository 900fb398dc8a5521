"""A watchdog: where nothing moves for too long, it writes down what every thread is doing, and ends the process.

Whatever makes progress calls `beat`; a thread counts the ticks in which nobody has. It counts ticks of its own and
reads no clock: while the process stands still, as on a laptop that sleeps or after Ctrl-Z, so does the count, and
nothing is taken for a hang that was a pause. A thread that never gives back Python's lock stops the watchdog too.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import signal
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qed.runs.run import Run

EXIT_CODE = 75  # of a failure that may pass, so that whoever started the run may start it again with --resume
LOAD = "load"
PATIENCE = {LOAD: 10}  # times as long as usual: a model may have to be fetched first
ADAPTED = 10  # times the median of a stage: none is taken for hung that is merely the longest of many
REMEMBERED = 20  # durations of a stage
TICK = 1.0  # seconds
HEARTBEAT = 5.0  # seconds between two heartbeats on the disk
WRITING = 5.0  # seconds in which the stacks of a hang are on the disk, or never will be
SHOW_CURSOR = b"\x1b[?25h"  # which the live line has hidden

_pulse = itertools.count()
# What makes progress calls this; it takes less than a microsecond.
beat: Callable[[], int] = _pulse.__next__


_watching: list[Watchdog] = []  # runs that are open, one within another; the last one is at work


@dataclass(frozen=True)
class Breach:
    """A deadline that has passed: in which step and stage, and after how many seconds without progress."""

    step: int
    stage: str
    seconds: float


class Watchdog:
    """Watches the stages of a run.

    Args:
        heartbeat: the file that says where the run is, a few seconds ago at most; None writes none.
        seconds: without progress, at least; 0 watches nothing.
    """

    def __init__(self, heartbeat: Path | None, seconds: float) -> None:
        self.heartbeat = heartbeat
        self.seconds = seconds
        self.tick = min(TICK, seconds / 4)
        self.step, self.stage, self.entered = 0, LOAD, time.monotonic()
        self.spent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._done = threading.Event()

    def enter(self, stage: str, step: int) -> None:
        """A stage of a step begins, and the one before it has ended."""
        now = time.monotonic()
        self.spent[self.stage].append(now - self.entered)
        self.step, self.stage, self.entered = step, stage, now
        beat()

    def deadline(self) -> float:
        """The seconds that the stage may go without progress."""
        spent = self.spent[self.stage]
        usual = median(spent) if spent else 0.0
        return max(self.seconds * PATIENCE.get(self.stage, 1), ADAPTED * usual)

    def watch(self, breached: Callable[[Breach], None]) -> None:
        """Count ticks until the run is done, or nothing has moved for too long."""
        last, idle, since = beat(), 0.0, HEARTBEAT
        while not self._done.wait(self.tick):
            now = beat()
            # A beat of our own is one; any further one is progress.
            idle = idle + self.tick if now == last + 1 else 0.0
            last, since = now, since + self.tick
            if since >= HEARTBEAT:
                self._write(idle)
                since = 0.0
            if idle >= self.deadline():
                breached(Breach(self.step, self.stage, idle))
                return

    def end(self) -> None:
        """The run is done."""
        self._done.set()

    def _write(self, idle: float) -> None:
        if self.heartbeat is None:
            return
        told = {"process": os.getpid(), "step": self.step, "stage": self.stage, "idle_s": idle, "time": time.time()}
        beside = self.heartbeat.with_name(f".{self.heartbeat.name}.part")
        with suppress(OSError):  # a disk that is full, or hangs on its way back, is not the heartbeat's matter
            beside.write_text(json.dumps(told) + "\n", encoding="utf-8")
            beside.replace(self.heartbeat)


@dataclass(frozen=True)
class HangReport:
    """What is told of a hang: the file of its stacks, how to go on, where to set the seconds, and who records it as an
    event."""

    stacks: Path
    advice: str
    setting: str
    event: Callable[..., None] | None = None


def watching_run(run: Run, seconds: float) -> AbstractContextManager[Watchdog]:
    """A run of training under watch, see `watching`."""
    advice = f"Go on from the last checkpoint with --resume --out {run.home}"
    told = HangReport(run.log.with_name("hang.txt"), advice, "run.watchdog", run.event)
    return watch(told, seconds, run.folder / "heartbeat.json")


@contextmanager
def watch(told: HangReport, seconds: float, heartbeat: Path | None = None) -> Iterator[Watchdog]:
    """Work under watch; where nothing moves any more, the process ends with exit code 75. See `Watchdog`."""
    dog = Watchdog(heartbeat, seconds)
    _watching.append(dog)
    if seconds > 0:
        threading.Thread(target=dog.watch, args=(partial(_end_process, told),), name="watchdog", daemon=True).start()
    try:
        yield dog
    finally:
        dog.end()
        _watching.remove(dog)


def enter_stage(stage: str, step: int) -> None:
    """A stage of a step begins in the run that was opened last."""
    for dog in _watching[-1:]:
        dog.enter(stage, step)


def _end_process(told: HangReport, breach: Breach) -> None:
    """Tell of a hang wherever that is possible, and end the process with all that it has started."""
    # The disk may be what hangs, and then whoever writes to it does too.
    writing = threading.Thread(target=_record, args=(told, breach), daemon=True)
    writing.start()
    writing.join(WRITING)
    said = (
        f"error: Nothing has moved for {breach.seconds:.0f} s while step {breach.step} was in its stage "
        f"'{breach.stage}'. What every thread was doing stands in {told.stacks}. {told.advice}; where a stage may take "
        f"longer, give {told.setting} more seconds, or 0.\n"
    )
    os.write(2, (SHOW_CURSOR if os.isatty(2) else b"") + b"\n" + said.encode())
    for number in (child["process"] for child in list_children()):
        with suppress(OSError):
            os.kill(number, signal.SIGKILL)
    os._exit(EXIT_CODE)


def _record(told: HangReport, breach: Breach) -> None:
    write_stacks(told.stacks, breach)
    if told.event is not None:
        told.event("hung", step=breach.step, stage=breach.stage, seconds=breach.seconds, stacks=str(told.stacks))


def write_stacks(file: Path, breach: Breach) -> None:
    """Write the stacks of all threads, and the processes that this one has started, to a file."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError), file.open("w", encoding="utf-8") as out:
        out.write(f"step {breach.step}, stage {breach.stage}: {breach.seconds:.0f} s without progress\n\n")
        out.flush()
        faulthandler.dump_traceback(out, all_threads=True)
        out.write("\nprocesses that it has started:\n")
        out.writelines(f"{json.dumps(child)}\n" for child in list_children())


def list_children(root: Path = Path("/proc")) -> list[dict[str, Any]]:
    """The processes that this one has started, and theirs: number, parent, state, command; on Linux alone."""
    found = {}
    for folder in root.glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # The name in brackets may hold anything, brackets among it.
            state, parent, *_ = (folder / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            found[int(folder.name)] = {"parent": int(parent), "state": state, "command": command[:200]}
    ours, known = {os.getpid()}, 0
    while len(ours) > known:
        known = len(ours)
        ours |= {number for number, one in found.items() if one["parent"] in ours}
    return [{"process": number, **found[number]} for number in sorted(ours - {os.getpid()})]
