"""The status of a run: live, done, stopped, failed or hung, from its events, its lock and its heartbeat."""

from __future__ import annotations

import fcntl
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from qed.report.numbers import read_number
from qed.report.record import find_ending
from qed.viewer.line_file import Row, parse_line

FRESH = 60.0  # seconds; a run writes its heartbeat every 5
IDLE = 120.0  # seconds without progress after which the status mentions it
PATIENCE = 1_800.0  # seconds; the default of run.watchdog
FORGOTTEN = 86_400.0  # seconds after which a silent run on another machine counts as dead
STATUSES = {"finished": "done", "interrupted": "stopped", "failed": "failed", "hung": "hung"}
OWNER = re.compile(r"process (\d{1,10}) on (\S{1,255})")


@dataclass(frozen=True)
class State:
    """The status of a run, and its reason."""

    status: str
    reason: str = ""


@dataclass(frozen=True)
class Heartbeat:
    """A run's last heartbeat: when (seconds since the epoch, None if never), and where the run was."""

    said: float | None = None
    idle: float = 0.0
    stage: str = ""
    step: int = 0

    @property
    def age(self) -> float | None:
        """The seconds since the heartbeat."""
        return None if self.said is None else max(0.0, time.time() - self.said)


def read_heartbeat(path: Path | None) -> Heartbeat:
    """Read a heartbeat.json; return an empty heartbeat if it is missing or damaged."""
    content: Row | None = None
    if path is not None:
        with suppress(OSError), path.open("rb") as file:
            content = parse_line(file.read(4_096))
    said = read_number((content or {}).get("time"))
    if content is None or said is None:
        return Heartbeat()
    step = read_number(content.get("step"))
    idle = read_number(content.get("idle_s")) or 0.0
    return Heartbeat(said, idle, str(content.get("stage", ""))[:40], int(step or 0))


def judge_state(lock: Path | None, beat: Heartbeat, events: Sequence[Row], changed: float, patience: float) -> State:
    """Return the status of a run.

    Args:
        lock: its lock file, if it has one.
        beat: its heartbeat.
        events: its last events.
        changed: when its metrics or events were last written, in seconds since the epoch.
        patience: the time limit of its watchdog in seconds; 0 if it has none.
    """
    ending = find_ending(events)
    if ending is not None and not _has_begun_again(ending, beat):
        return State(STATUSES[str(ending["event"])], _explain_ending(ending))
    owner = _read_owner(lock)
    if owner is not None and _is_here(owner) and not is_locked(lock):
        return State("failed", f"Its process ended without a word{_place(beat)}: killed, or the machine went down.")
    if owner is not None and _is_here(owner):
        return _judge_running(_drop_earlier(beat, lock))
    age = time.time() - changed if beat.age is None else beat.age
    if age < FRESH:
        return _judge_running(beat)
    return _judge_silent(age, beat, patience or PATIENCE)


def _judge_running(beat: Heartbeat) -> State:
    if beat.age is not None and beat.age >= FRESH:
        return State("hung", f"Its process exists, but has written no heartbeat for {_format_span(beat.age)}.")
    if beat.idle >= IDLE:
        return State("live", f"No progress for {_format_span(beat.idle)}{_place(beat)}.")
    return State("live")


def _judge_silent(age: float, beat: Heartbeat, patience: float) -> State:
    """Judge a silent run that no process of this machine writes."""
    if beat.age is None or age > FORGOTTEN:
        return State("unknown", f"It has not ended, and last wrote {_format_span(age)} ago{_place(beat)}.")
    if age > patience:
        return State("hung", f"Its last heartbeat is {_format_span(age)} old{_place(beat)}: hung, or killed.")
    return State("unknown", f"Its last heartbeat is {_format_span(age)} old{_place(beat)}.")


def is_locked(lock: Path | None) -> bool:
    """Return whether a process holds a lock file.

    If nobody holds it, the check takes a shared lock for a moment.
    """
    if lock is None:
        return False
    with suppress(OSError), lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _read_owner(lock: Path | None) -> tuple[int, str] | None:
    """Return the process and the machine that last held a lock file."""
    if lock is None:
        return None
    with suppress(OSError), lock.open("rb") as file:
        found = OWNER.match(file.read(400).decode("utf-8", "replace"))
        return (int(found[1]), found[2]) if found else None
    return None


def _is_here(owner: tuple[int, str]) -> bool:
    return owner[1] == socket.gethostname()


def _has_begun_again(ending: Row, beat: Heartbeat) -> bool:
    """Return whether the run's heartbeat continues after its end, because it is being resumed."""
    ended = read_number(ending.get("time"))
    return ended is not None and beat.said is not None and (beat.age or 0.0) < FRESH and beat.said > ended + FRESH


def _drop_earlier(beat: Heartbeat, lock: Path | None) -> Heartbeat:
    """Return the heartbeat, or an empty one if it is from an attempt before the lock was taken."""
    with suppress(OSError):
        if lock is not None and beat.said is not None and beat.said < lock.stat().st_mtime:
            return Heartbeat()
    return beat


def _explain_ending(ending: Row) -> str:
    if ending["event"] == "hung":
        seconds = read_number(ending.get("seconds")) or 0.0
        return f"No progress for {_format_span(seconds)} in stage '{str(ending.get('stage', ''))[:40]}'."
    return str(ending.get("reason", ""))[:500]


def _place(beat: Heartbeat) -> str:
    return f", in stage '{beat.stage}' of step {beat.step}" if beat.age is not None and beat.stage else ""


def _format_span(seconds: float) -> str:
    for name, length in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} s"
