"""The state that command and workers of a run on a Ray cluster exchange, held by an actor on the command's node.

A worker calls `exchange` a few times per second. So a signal reaches a process on another machine, and its output and
exit code come back, without a separate connection.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qed.cluster.watch import LOST
from qed.config.arguments import drop_flags

RETRY, DONE = "retry", "done"  # what a worker does when its rank has ended
LOST_WORKER = "a worker was lost"
SILENCE = 45.0  # seconds without a call after which a worker is lost; it calls five times per second


@dataclass(frozen=True)
class Job:
    """What every worker starts.

    Args:
        arguments: the arguments of `qed`, without --cluster.
        folder: the folder of the run, as given by --out.
        cwd: the folder in which the command was started.
        environment: variables of the command that its ranks need.
        failures: how often the ranks may be restarted.
    """

    arguments: tuple[str, ...]
    folder: str
    cwd: str
    environment: Mapping[str, str]
    failures: int


@dataclass(frozen=True)
class RankState:
    """A rank of the current attempt: its exit code once it has ended, and its last error by `read_errors`.

    `lines` has the last error, `tail` the last lines if there is none. `place` is empty until it has started, and
    `silent` is the seconds since its worker's last call.
    """

    place: str = ""
    code: int | None = None
    lines: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()
    silent: float = 0.0


@dataclass(frozen=True)
class Report:
    """What has happened since the command's last call: output of rank 0, and the state of the ranks of an attempt."""

    attempt: int
    ranks: tuple[RankState, ...]
    out: bytes
    err: bytes


@dataclass(frozen=True)
class Start:
    """What a worker needs to start its rank.

    `reason` says why the previous attempt ended. `first_folder` is the inode of the run's folder before the first
    attempt, 0 if there was none.
    """

    job: Job
    attempt: int
    reason: str
    first_folder: int


@dataclass(frozen=True)
class Orders:
    """What a worker must do: send these signals, each to the process or its whole group, and end by the verdict."""

    signals: tuple[tuple[int, bool], ...]
    verdict: str


@dataclass
class Control:
    """The state of a run on a cluster; the workers and the command call its methods, one call at a time."""

    job: Job
    world: int
    attempt: int = 0
    first_folder: int | None = None
    reasons: dict[int, str] = field(default_factory=dict)  # why each attempt has ended
    verdict: str = ""
    ranks: list[RankState] = field(default_factory=list)
    seen: dict[int, float] = field(default_factory=dict)  # when each rank's worker last called, by the monotonic clock
    signals: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    out: bytes = b""
    err: bytes = b""

    # Called by Ray Train and its workers

    def begin(self) -> int:
        """Start an attempt, for which Ray Train has created a group of workers, and return its number."""
        self.attempt += 1
        self.verdict = ""
        self.ranks = [RankState() for _ in range(self.world)]
        self.seen = dict.fromkeys(range(self.world), time.monotonic())
        self.signals = {rank: [] for rank in range(self.world)}
        return self.attempt

    def join(self, rank: int, place: str) -> Start:
        """Record where a rank is about to start, and return what its worker needs."""
        self.ranks[rank] = RankState(place)
        self.seen[rank] = time.monotonic()
        reason = self.reasons.get(self.attempt - 1, LOST_WORKER)
        return Start(self.job, self.attempt, reason, self.first_folder or 0)

    def remember_folder(self, inode: int) -> None:
        """Record the inode that the run's folder had before the first attempt."""
        if self.first_folder is None:
            self.first_folder = inode

    def exchange(self, attempt: int, rank: int, state: RankState, out: bytes = b"", err: bytes = b"") -> Orders:
        """Record the state and the output of a rank, and return what its worker must do."""
        self.out += out
        self.err += err
        if attempt != self.attempt:
            return Orders((), RETRY)
        self.ranks[rank] = state
        self.seen[rank] = time.monotonic()
        signals, self.signals[rank] = tuple(self.signals[rank]), []
        return Orders(signals, self.verdict)

    # Called by the command

    def report(self) -> Report:
        """Return what has happened since the last call."""
        now = time.monotonic()
        ranks = tuple(replace(state, silent=now - self.seen[rank]) for rank, state in enumerate(self.ranks))
        report = Report(self.attempt, ranks, self.out, self.err)
        self.out = self.err = b""
        return report

    def send(self, attempt: int, rank: int, number: int, group: bool) -> None:
        """Keep a signal for a rank until its worker's next call."""
        if attempt == self.attempt:
            self.signals[rank].append((number, group))

    def settle(self, attempt: int, verdict: str, reason: str = "") -> None:
        """Set how the workers of an attempt end: DONE, or RETRY, which makes Ray Train create another group."""
        if attempt == self.attempt:
            self.verdict = verdict
        self.reasons[attempt] = reason


@dataclass
class Board:
    """The last report, for the ranks that the command watches; `over` once Ray Train has ended."""

    report: Report
    over: bool = False


class RemoteRank:
    """A rank of an attempt, seen from the command.

    Args:
        number: the number of the rank.
        attempt: the attempt that it belongs to.
        board: where to read its state.
        control: the handle of the actor.
    """

    def __init__(self, number: int, attempt: int, board: Board, control: object) -> None:
        self.number, self.attempt, self.board, self.control = number, attempt, board, control
        self.ended_by_us = False
        self._last = RankState()

    def _read(self) -> RankState:
        report = self.board.report
        if report.attempt == self.attempt:
            self._last = report.ranks[self.number]
        # Ray has given up the worker and started another attempt, or the worker's node is gone.
        lost = report.attempt != self.attempt or self.board.over or self._last.silent > SILENCE
        if self._last.code is None and lost:
            self._last = replace(self._last, code=LOST, tail=(f"error: the worker of {self.place} was lost.",))
        return self._last

    @property
    def place(self) -> str:
        """The process id and the machine, for messages."""
        return self._last.place or "a process that has not started"

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._read().code

    def send(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or with `group` to its whole process group."""
        self.control.send.remote(self.attempt, self.number, number, group)  # type: ignore[attr-defined]

    def read_errors(self, otherwise: int = 0) -> list[str]:
        """Return the last error in the rank's stderr with its traceback; if none, the last `otherwise` lines."""
        state = self._read()
        last = state.tail[-otherwise:] if otherwise else ()
        return list(state.lines or last)


def describe_end(ranks: Sequence[RemoteRank]) -> str:
    """Describe briefly which ranks ended an attempt, those that were killed first."""
    killed = [rank for rank in ranks if (rank.code or 0) < 0]
    lost = [rank for rank in ranks if rank.code == LOST]
    return "; ".join(
        f"rank {rank.number} ({rank.place}) "
        + (f"was killed by signal {-(rank.code or 0)}" if rank in killed else "was lost")
        for rank in killed or lost
    )


def choose_arguments(start: Start) -> Sequence[str]:
    """Return the arguments of an attempt: those of the command, and from the second attempt on those to resume its run.

    With --overwrite nothing is resumed while the folder is still the one to replace, or the new run is not prepared.
    """
    job, folder = start.job, Path(start.job.cwd, start.job.folder)
    if start.attempt == 1:
        return job.arguments
    replaced = read_inode(job) == start.first_folder or not (folder / "metrics.jsonl").is_file()
    if len(drop_flags(job.arguments, "overwrite")) < len(job.arguments) and replaced:
        return job.arguments
    return [*drop_flags(job.arguments, "resume", "requeue", "overwrite"), "--requeue"]


def read_inode(job: Job) -> int:
    """Return the inode of the run's folder; 0 if there is none."""
    try:
        return Path(job.cwd, job.folder).stat().st_ino
    except OSError:
        return 0
