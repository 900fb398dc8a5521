"""Watch the ranks of a run: each writes a heartbeat to a common store, and reads those of the others.

So a rank that died or hangs is named, a signal to one rank reaches all, and only one rank prints an error that all
raise. Time is counted in ticks, not read from a clock, so that no rank counts as dead after a machine was suspended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from qed.errors import Interrupted, NothingTrained, RankLost, is_out_of_memory
from qed.guards import watchdog
from qed.guards.heartbeats import Beat, Missing, Store
from qed.guards.signals import Stop
from qed.guards.watchdog import Breach, HangReport

TICK = 1.0  # seconds
SILENCE = 30.0  # seconds without a heartbeat after which a rank is lost, if run.watchdog is not shorter
FAREWELL = 5.0  # seconds that rank 0, which may hold the store, waits at the end for the others to leave
MAX_REASON = 300  # characters
GONE = "gone"  # reported by a rank that ended as all ranks do: the run is complete, stopped, or has trained nothing


class RankMonitor:
    """Exchanges heartbeats with the other ranks in the background.

    Args:
        store: the store that all ranks share.
        rank: the rank of this process.
        world: the number of ranks.
        stop: the flags of signals, which are shared with all ranks. Ranks see a flag at different times, so a loop has
            to agree with the others before it acts on one.
        seconds: the time without a heartbeat, capped at 30 s, after which a rank is lost: this process then ends with
            exit code 75, even if it is blocked in a collective. A rank that is loading gets ten times as long. With 0
            no rank is ever lost.
        record: writes an event to the run's events.jsonl; called on the lowest remaining rank.
        tick: seconds between two heartbeats.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        world: int,
        stop: Stop,
        seconds: float,
        record: Callable[..., None] | None = None,
        tick: float = TICK,
    ) -> None:
        self.store, self.rank, self.world, self.stop = store, rank, world, stop
        self.patience = min(seconds, SILENCE)
        self.record = record
        self.tick = tick
        self.beats = {other: Beat() for other in range(world) if other != rank}
        self.silent = dict.fromkeys(self.beats, 0.0)  # seconds since each rank's heartbeat last changed
        self.unanswered = 0.0  # seconds since the store last answered
        self._rounds = self._counted = 0  # exchanges with the store, and how many of them `check` has seen
        self._waiting, self._sequence, self._left = "", 0, ""
        self._shared_stop, self._saves, self._save_known = False, 0, False
        self._claimed: bool | None = None
        self._done = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True, name="ranks") for run in (self._talk, self._watch)]

    # Called by the training loop

    def start(self) -> None:
        """Start the heartbeats."""
        watchdog.explanations.append(self.explain_wait)
        for thread in self._threads:
            thread.start()

    def is_open(self) -> bool:
        """Return whether heartbeats are being exchanged."""
        return not self._done.is_set()

    def close(self, error: BaseException | None = None) -> None:
        """Tell the others that this rank ends, with an error or without, and stop the heartbeats."""
        self.end_with(error)
        self._done.set()
        with suppress(ValueError):
            watchdog.explanations.remove(self.explain_wait)
        # A later signal ends a run at once.
        for thread in self._threads if not isinstance(error, KeyboardInterrupt) else ():
            thread.join(FAREWELL)

    def end_with(self, error: BaseException | None) -> None:
        """Record for the last heartbeat how this rank ends, and settle whether it prints its error."""
        if error is not None:
            claim_failure()
        agreed = error is None or isinstance(error, Interrupted | NothingTrained)
        self._left = GONE if agreed else f"has ended with {type(error).__name__}: {error}"[:MAX_REASON]

    def enter(self, name: str) -> None:
        """Record that this rank enters a collective."""
        self._sequence += 1
        self._waiting = name

    def leave(self) -> None:
        """Record that the collective is over."""
        self._waiting = ""

    def claim_failure(self) -> bool:
        """Return whether this rank prints an error: the first rank to ask does; the answer never changes."""
        if self._claimed is None:
            try:
                self._claimed = self.store.add("failed", 1) == 1
            except Exception:  # noqa: BLE001 -- without the store, better two messages than none
                self._claimed = True
        return self._claimed

    def find_missing(self, patience: float) -> list[Missing]:
        """Return the ranks that have ended, are silent for `patience` seconds, or are behind this one's collective."""
        waiting, sequence = self._waiting, self._sequence
        found = []
        for rank, beat in self.beats.items():
            behind = bool(waiting) and beat.sequence < sequence
            why = ""
            if beat.left:
                why = "has ended" if behind and beat.left == GONE else beat.left.removeprefix(GONE)
            elif self._find_silence(rank) >= patience:
                why = self._describe_silence(rank)
            elif behind:
                why = f"has not entered collective '{waiting}' #{sequence}"
            if why:
                found.append(Missing(rank, beat.host, beat.process, beat.step, beat.stage, why))
        return found

    def _find_silence(self, rank: int) -> float:
        """Return the seconds since a rank's last heartbeat; for rank 0, which usually holds the store, the store's."""
        return max(self.silent[rank], self.unanswered if rank == 0 else 0.0)

    def _describe_silence(self, rank: int) -> str:
        if self.silent[rank] < self._find_silence(rank):
            return f"the store of the ranks, which it holds, has not answered for {self.unanswered:.0f} s"
        never = "" if self.beats[rank].count else ", nor any before"
        return f"no heartbeat for {self.silent[rank]:.0f} s{never}"

    def explain_wait(self) -> str:
        """Return sentences that name the ranks for which this one waits; empty if there are none."""
        missing = self.find_missing(self.patience or SILENCE)
        if not missing:
            return f"All ranks have entered collective '{self._waiting}'." if self._waiting else ""
        return (
            f"Rank {self.rank} waits in '{self._waiting or 'no collective'}' for " + "; ".join(map(str, missing)) + "."
        )

    def find_lost(self, seconds: float = 5.0) -> RankLost | None:
        """Return the error for a collective that failed because a rank is missing; None if none is missing.

        Args:
            seconds: how long to wait to find out which one, because a killed rank is noticed only after a while.
        """
        patience, gone = 2 * self.tick, list[Missing]()
        for _ in range(int(seconds / self.tick)):
            missing = self.find_missing(patience)
            gone = [one for one in missing if self.beats[one.rank].left or self._find_silence(one.rank) >= patience]
            if gone:
                break
            time.sleep(self.tick)
        return RankLost(self._describe_loss(gone)) if gone else None

    # The two threads: talking to the store may block, while watching continues

    def _talk(self) -> None:
        """Exchange heartbeats until `close`, and once more."""
        count = 0
        while True:
            last = self._done.is_set()
            count += 1
            with suppress(Exception):  # an error of the store counts as no answer
                self.exchange(count)
            if last:
                break
            self._done.wait(self.tick)
        waited = 0.0
        while self.rank == 0 and waited < FAREWELL and not all(beat.left for beat in self.beats.values()):
            time.sleep(self.tick / 10)
            waited += self.tick / 10
            with suppress(Exception):
                self._read_beats(0.0)

    def exchange(self, count: int) -> None:
        """Write heartbeat number `count`, and read those of the others and the signals."""
        self.write_beat(count)
        self._share_stop()
        self._share_save()
        self._read_beats(self.tick)
        self._rounds += 1

    def write_beat(self, count: int) -> None:
        """Write heartbeat number `count`."""
        dog = watchdog.find_watchdog()
        seen = {"step": dog.step, "stage": dog.stage} if dog is not None else {}
        own = Beat(count, os.getpid(), socket.gethostname(), waiting=self._waiting, sequence=self._sequence)
        self.store.set(f"beat/{self.rank}", json.dumps({**asdict(own), **seen, "left": self._left}))

    def _share_stop(self) -> None:
        if self._shared_stop:
            return
        if self.stop.received is not None:
            self.store.set("stop", self.stop.received.name)
        elif self.store.check(["stop"]):
            self.stop.received = signal.Signals[self.store.get("stop").decode()]
        self._shared_stop = self.stop.received is not None

    def _share_save(self) -> None:
        """Share requests for a checkpoint; requests of several ranks before it is saved count as one."""
        asked = self.store.add("save", 0)
        if asked > self._saves:
            self._saves, self._save_known, self.stop.save = asked, True, True
        elif self.stop.save and not self._save_known:
            self._saves, self._save_known = self.store.add("save", 1), True
        self._save_known = self._save_known and self.stop.save

    def _read_beats(self, seconds: float) -> None:
        """Read the heartbeats of the others, `seconds` after the previous reading."""
        for rank, before in self.beats.items():
            key = f"beat/{rank}"
            beat = Beat(**json.loads(self.store.get(key))) if before.count or self.store.check([key]) else before
            self.silent[rank] = self.silent[rank] + seconds if beat.count == before.count else 0.0
            self.beats[rank] = beat
            # Waiting for a rank that is alive is not a hang: that rank has its own watchdog.
            if self._waiting and beat.sequence < self._sequence and not beat.left and not self.silent[rank]:
                watchdog.beat()

    def _watch(self) -> None:
        while not self._done.wait(self.tick):
            lost = self.check()
            if lost:
                self._end(lost)

    def check(self) -> list[Missing]:
        """Count a tick, and return the ranks that are lost."""
        rounds, before, self._counted = self._rounds, self._counted, self._rounds
        self.unanswered = self.unanswered + self.tick if rounds == before else 0.0
        if self.patience <= 0:
            return []
        return [missing for missing in self.find_missing(self.patience) if self._is_lost(missing.rank)]

    def _is_lost(self, rank: int) -> bool:
        beat = self.beats[rank]
        # While a model is loaded from a slow disk, no Python thread may run for a while.
        factor = 1 if beat.left else watchdog.PATIENCE.get(beat.stage, 1)
        return self._find_silence(rank) >= self.patience * factor

    # Ending the process

    def _describe_loss(self, missing: list[Missing]) -> str:
        dog = watchdog.find_watchdog()
        report: HangReport | None = dog.report if dog is not None else None
        advice = report.advice if report is not None else "Resume from the last checkpoint with --resume --out DIR"
        names = "; ".join(map(str, missing)) or "it is not known which one, because all have sent a heartbeat recently"
        where = f"Rank {self.rank}" + (f", in '{self._waiting}'," if self._waiting else "")
        return f"{where} has lost another rank: {names}. {advice}."

    def _end(self, missing: list[Missing]) -> None:
        """End this process, which may be blocked in a collective, because ranks are lost."""
        dog = watchdog.find_watchdog()
        message = self._describe_loss(missing)
        lost = {each.rank for each in missing}
        first = min(rank for rank in range(self.world) if rank not in lost)
        step, stage = (dog.step, dog.stage) if dog is not None else (0, watchdog.LOAD)
        breach = Breach(step, stage, max(map(self._find_silence, lost)))
        report = dog.report if dog is not None and dog.report is not None else HangReport(Path(os.devnull), "", "")
        record = self.record if self.rank == first else None

        def event(_: str, **details: object) -> None:
            if record is not None:
                record("rank_lost", message=message, lost=[asdict(each) for each in missing], **details)

        watchdog.end_process(replace(report, event=event), breach, message)


_active: list[RankMonitor] = []  # the latest monitor of this process, even after it is closed
_assigned: list[bool] = []  # whether this rank prints the error that all ranks raise; empty until assigned


@contextmanager
def watch_ranks(monitor: RankMonitor) -> Iterator[RankMonitor]:
    """Exchange heartbeats while the block runs; see `RankMonitor`."""
    forget_ranks()
    _active.append(monitor)
    monitor.start()
    try:
        yield monitor
    except BaseException as error:
        monitor.close(error)
        raise
    else:
        monitor.close()


@contextmanager
def in_collective(name: str) -> Iterator[None]:
    """Record that this rank waits for the others while the block runs.

    Raises:
        RankLost: the operation failed before the ranks started to watch each other.
    """
    for monitor in _active:
        monitor.enter(name)
    try:
        yield
    except RuntimeError as error:  # what torch.distributed raises
        of_this_rank = isinstance(error, RecursionError | NotImplementedError) or is_out_of_memory(error)
        if of_this_rank or any(monitor.is_open() for monitor in _active):
            raise
        raise build_early_loss(error) from error
    for monitor in _active:
        monitor.leave()


def build_early_loss(error: RuntimeError) -> RankLost:
    """Build the error for an operation that failed while a run was opened, before the ranks watch each other."""
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:MAX_REASON]
    return RankLost(
        f"Rank {os.environ.get('RANK', '?')} cannot reach another rank, which has probably ended while the run was "
        f"opened ({reason}). Start the same command again; resume a run that has a checkpoint with --resume."
    )


def assign_failure(prints: bool) -> None:
    """Set whether this rank prints the error that all ranks are about to raise."""
    _assigned[:] = [prints]


def forget_ranks() -> None:
    """Forget the ranks of an earlier run in this process, which must not affect the errors of the next one."""
    _active.clear()
    _assigned.clear()


def claim_failure() -> bool:
    """Return whether this process prints its error.

    If all ranks raise it, the assigned one prints it; otherwise the first to ask; without ranks, always this process.
    """
    return all(_assigned) if _assigned else all(monitor.claim_failure() for monitor in _active)
