"""A watchdog: if a run makes no progress for too long, it writes the stacks of all threads and ends the process.

Code that makes progress calls `beat`; a watchdog thread counts the ticks without a beat. It counts its own ticks and
reads no clock, so a suspended process (a sleeping laptop, Ctrl-Z) does not count as a hang. Limitation: a thread that
never releases Python's global interpreter lock blocks the watchdog too.
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import os
import shlex
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

EXIT_CODE = 75  # EX_TEMPFAIL: a scheduler may restart the run with --resume
LOAD = "load"
PATIENCE = {LOAD: 10}  # factors of stages' deadlines: a model may have to be downloaded first
ADAPTED = 10  # the deadline is at least this factor times the stage's median duration
REMEMBERED = 20  # durations of a stage, for the median
TICK = 1.0  # seconds
HEARTBEAT = 5.0  # seconds between two updates of the heartbeat file
WRITING = 5.0  # seconds to wait until the stacks of a hang are written
SHOW_CURSOR = b"\x1b[?25h"  # the live line hides the cursor

_pulse = itertools.count()
# Call it wherever progress is made; it takes less than a microsecond.
beat: Callable[[], int] = _pulse.__next__


_watching: list[Watchdog] = []  # of nested runs; the last one is the active run
# Functions that return sentences to add to the message of a hang, such as which rank is behind; empty for none.
explanations: list[Callable[[], str]] = []


@dataclass(frozen=True)
class Breach:
    """A missed deadline: the step, the stage, and the seconds without progress."""

    step: int
    stage: str
    seconds: float


class Watchdog:
    """Watches the stages of a run. While a run is nested in another one, only the inner run is watched.

    Args:
        heartbeat: a file that is updated every few seconds with the current step and stage; None writes none.
        seconds: the shortest deadline; 0 disables the watchdog.
        report: how to report a hang.
    """

    def __init__(self, heartbeat: Path | None, seconds: float, report: HangReport | None = None) -> None:
        self.heartbeat = heartbeat
        self.seconds = seconds
        self.report = report
        self.tick = min(TICK, seconds / 4)
        self.step, self.stage, self.entered = 0, LOAD, time.monotonic()
        self.spent: dict[str, deque[float]] = defaultdict(lambda: deque(maxlen=REMEMBERED))
        self._done = threading.Event()

    def enter(self, stage: str, step: int) -> None:
        """Enter a stage of a step, and leave the previous one."""
        now = time.monotonic()
        self.spent[self.stage].append(now - self.entered)
        self.step, self.stage, self.entered = step, stage, now
        beat()

    def deadline(self) -> float:
        """Return the seconds that the current stage may take without progress."""
        spent = self.spent[self.stage]
        usual = median(spent) if spent else 0.0
        return max(self.seconds * PATIENCE.get(self.stage, 1), ADAPTED * usual)

    def watch(self, breached: Callable[[Breach], None]) -> None:
        """Count ticks until the run ends; call `breached` and return if a deadline passes."""
        last, idle, since = beat(), 0.0, 0.0
        self._write_heartbeat(idle)  # so that a run shorter than a tick has one too
        while not self._done.wait(self.tick):
            since += self.tick
            if find_watchdog() in (None, self):  # of two watchdogs, each would take the other's `beat` for progress
                now = beat()
                # `beat` above counts one; any more come from progress.
                idle, last = (idle + self.tick if now == last + 1 else 0.0), now
            else:
                idle = 0.0
            if since >= HEARTBEAT:
                self._write_heartbeat(idle)
                since = 0.0
            if idle >= self.deadline():
                breached(Breach(self.step, self.stage, idle))
                return

    def end(self) -> None:
        """Stop watching."""
        self._done.set()

    def _write_heartbeat(self, idle: float) -> None:
        if self.heartbeat is None:
            return
        state = {"process": os.getpid(), "step": self.step, "stage": self.stage, "idle_s": idle, "time": time.time()}
        temporary = self.heartbeat.with_name(f".{self.heartbeat.name}.part")
        with suppress(OSError):  # a full disk must not end the run just for a heartbeat
            temporary.write_text(json.dumps(state) + "\n", encoding="utf-8")
            temporary.replace(self.heartbeat)


@dataclass(frozen=True)
class HangReport:
    """How to report a hang: the file for the stacks, how to resume, the deadline's setting, and an event writer."""

    stacks: Path
    advice: str
    setting: str
    event: Callable[..., None] | None = None


def watch_run(run: Run, seconds: float, is_first: bool = True) -> AbstractContextManager[Watchdog]:
    """Watch a training run, see `watch`; only the first rank writes the heartbeat file."""
    advice = f"Resume from the last checkpoint with --resume --out {shlex.quote(str(run.home))}"
    stacks = run.log.with_name("hang.txt" if is_first else f"{run.log.stem}.hang.txt")
    report = HangReport(stacks, advice, "run.watchdog", run.event)
    return watch(report, seconds, run.folder / "heartbeat.json" if is_first else None)


@contextmanager
def watch(report: HangReport, seconds: float, heartbeat: Path | None = None) -> Iterator[Watchdog]:
    """Watch the block; if it hangs, the process ends with exit code 75. See `Watchdog` for the arguments."""
    dog = Watchdog(heartbeat, seconds, report)
    _watching.append(dog)
    if seconds > 0:
        threading.Thread(
            target=dog.watch, args=(partial(_end_hung_process, report),), name="watchdog", daemon=True
        ).start()
    try:
        yield dog
    finally:
        dog.end()
        _watching.remove(dog)


def enter_stage(stage: str, step: int) -> None:
    """Enter a stage of a step in the active run."""
    for dog in _watching[-1:]:
        dog.enter(stage, step)


def find_watchdog() -> Watchdog | None:
    """Return the watchdog of the active run."""
    return _watching[-1] if _watching else None


def _end_hung_process(report: HangReport, breach: Breach) -> None:
    """Report a hang, and end the process with all its children."""
    reasons = []
    for explain in explanations:
        with suppress(Exception):  # nothing may prevent the process from ending
            reasons.append(explain())
    end_process(
        report,
        breach,
        f"No progress for {breach.seconds:.0f} s in stage '{breach.stage}' of step {breach.step}. "
        + "".join(f"{reason} " for reason in reasons if reason)
        + f"The stacks of all threads are in {report.stacks}. {report.advice}; if a stage may take longer, increase "
        f"{report.setting}, or set it to 0.",
    )


def end_process(report: HangReport, breach: Breach, message: str) -> None:
    """Write the stacks and an event to disk and a message to stderr; kill the children, and exit with code 75."""
    # In a thread, because writing blocks if the disk is the cause of the hang.
    writing = threading.Thread(target=_record, args=(report, breach), daemon=True)
    writing.start()
    writing.join(WRITING)
    with suppress(OSError):  # the terminal may be closed
        os.write(2, (SHOW_CURSOR if os.isatty(2) else b"") + f"\nerror: {message}\n".encode())
    for number in (child["process"] for child in list_children()):
        with suppress(OSError):
            os.kill(number, signal.SIGKILL)
    os._exit(EXIT_CODE)


def _record(report: HangReport, breach: Breach) -> None:
    write_stacks(report.stacks, breach)
    if report.event is not None:
        report.event("hung", step=breach.step, stage=breach.stage, seconds=breach.seconds, stacks=str(report.stacks))


def write_stacks(file: Path, breach: Breach) -> None:
    """Write the stacks of all threads, and the child processes, to a file."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError), file.open("w", encoding="utf-8") as out:
        out.write(f"step {breach.step}, stage {breach.stage}: {breach.seconds:.0f} s without progress\n\n")
        out.flush()
        faulthandler.dump_traceback(out, all_threads=True)
        out.write("\nprocesses that it has started:\n")
        out.writelines(f"{json.dumps(child)}\n" for child in list_children())


def list_children() -> list[dict[str, Any]]:
    """List the descendants of this process with process id, parent, state and command; on Linux only."""
    processes = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            # The process name in parentheses may contain anything, even parentheses.
            state, parent, *_ = (folder / "stat").read_text("utf-8", errors="replace").rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
            processes[int(folder.name)] = {"parent": int(parent), "state": state, "command": command[:200]}
    family, size = {os.getpid()}, 0
    while len(family) > size:
        size = len(family)
        family |= {number for number, process in processes.items() if process["parent"] in family}
    return [{"process": number, **processes[number]} for number in sorted(family - {os.getpid()})]
