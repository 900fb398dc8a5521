"""What the command and the workers of a run on a Ray cluster tell each other: an actor beside the command holds it.

A worker calls `exchange` a few times a second. So a signal reaches a process on another machine, and its output and its
exit code come back, without a connection of our own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qed.cluster.watch import LOST
from qed.config.arguments import drop_flags

RETRY, DONE = "retry", "done"  # what a worker does when its rank has ended
LOST_WORKER = "a worker was lost"


@dataclass(frozen=True)
class Job:
    """What every worker starts.

    Args:
        arguments: of `qed`, without --cluster.
        folder: of the run, as --out gives it.
        cwd: the folder that the command was started in.
        environment: variables of the command that its ranks need.
        failures: how often the ranks may be started again.
    """

    arguments: tuple[str, ...]
    folder: str
    cwd: str
    environment: Mapping[str, str]
    failures: int


@dataclass(frozen=True)
class RankState:
    """A rank of the current attempt: its exit code once it has ended, and its last error by `read_errors`.

    `lines` has the last error, `tail` the last lines where there is none. `place` is empty until it has started.
    """

    place: str = ""
    code: int | None = None
    lines: tuple[str, ...] = ()
    tail: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What has happened since the command asked last: output of rank 0, and the state of the ranks of an attempt."""

    attempt: int
    ranks: tuple[RankState, ...]
    out: bytes
    err: bytes


@dataclass(frozen=True)
class Start:
    """What a worker needs to start its rank.

    `reason` says why the attempt before this one ended. `first_folder` is the inode of the run's folder before the
    first attempt, 0 if there was none.
    """

    job: Job
    attempt: int
    reason: str
    first_folder: int


@dataclass(frozen=True)
class Orders:
    """What a worker must do: send these signals, each with whether to the whole group, and finish by the verdict."""

    signals: tuple[tuple[int, bool], ...]
    verdict: str


@dataclass
class Control:
    """The state of a run on a cluster; a method is called by the workers or by the command, one call at a time."""

    job: Job
    world: int
    attempt: int = 0
    first_folder: int | None = None
    reasons: dict[int, str] = field(default_factory=dict)  # why each attempt has ended
    verdict: str = ""
    ranks: list[RankState] = field(default_factory=list)
    signals: dict[int, list[tuple[int, bool]]] = field(default_factory=dict)
    out: bytes = b""
    err: bytes = b""

    # Called by Ray Train and its workers

    def begin(self) -> int:
        """Begin an attempt, and return its number; Ray Train has made a group of workers."""
        self.attempt += 1
        self.verdict = ""
        self.ranks = [RankState() for _ in range(self.world)]
        self.signals = {rank: [] for rank in range(self.world)}
        return self.attempt

    def join(self, rank: int, place: str) -> Start:
        """Say where a rank is about to start."""
        self.ranks[rank] = RankState(place)
        reason = self.reasons.get(self.attempt - 1, LOST_WORKER)
        return Start(self.job, self.attempt, reason, self.first_folder or 0)

    def remember_folder(self, inode: int) -> None:
        """Keep the inode that the run's folder had before the first attempt."""
        if self.first_folder is None:
            self.first_folder = inode

    def exchange(self, attempt: int, rank: int, state: RankState, out: bytes = b"", err: bytes = b"") -> Orders:
        """Take the state and the output of a rank, and return what its worker must do."""
        self.out += out
        self.err += err
        if attempt != self.attempt:
            return Orders((), RETRY)
        self.ranks[rank] = state
        signals, self.signals[rank] = tuple(self.signals[rank]), []
        return Orders(signals, self.verdict)

    # Called by the command

    def report(self) -> Report:
        """Return what has happened since the last call."""
        report = Report(self.attempt, tuple(self.ranks), self.out, self.err)
        self.out = self.err = b""
        return report

    def send(self, attempt: int, rank: int, number: int, group: bool) -> None:
        """Keep a signal for a rank until its worker asks."""
        if attempt == self.attempt:
            self.signals[rank].append((number, group))

    def settle(self, attempt: int, verdict: str, reason: str = "") -> None:
        """Say how the workers of an attempt end: DONE, or RETRY, which lets Ray Train make another group."""
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
        number: of the rank.
        attempt: that it belongs to.
        board: where its state is read.
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
            if self.board.over and self._last.code is None:
                self._last = replace(self._last, code=LOST)
        elif self._last.code is None:  # Ray has given up its worker, and has begun another attempt
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
        """Send a signal to the process, or to it and all that it has started."""
        self.control.send.remote(self.attempt, self.number, number, group)  # type: ignore[attr-defined]

    def read_errors(self, otherwise: int = 0) -> list[str]:
        """Return the last error in the rank's stderr with its traceback; without one, so many of the last lines."""
        state = self._read()
        return list(state.lines or state.tail[-otherwise:] if otherwise else state.lines)


def describe_end(ranks: Sequence[RemoteRank]) -> str:
    """Say in a few words which ranks have ended an attempt, those that were killed first."""
    killed = [rank for rank in ranks if (rank.code or 0) < 0]
    lost = [rank for rank in ranks if rank.code == LOST]
    return "; ".join(
        f"rank {rank.number} ({rank.place}) "
        + (f"was killed by signal {-(rank.code or 0)}" if rank in killed else "was lost")
        for rank in killed or lost
    )


def choose_arguments(start: Start) -> Sequence[str]:
    """Return the arguments of an attempt: those of the command, and from the second on those that resume its run.

    With --overwrite nothing is resumed while the folder is still the one to replace, or its run is not prepared.
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
