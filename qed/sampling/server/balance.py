"""Spread requests over servers: evenly, around those that are lost, and so that each is answered exactly once.

The thread that wants the answers schedules; each request has a thread of its own that only waits for its reply. A lost
server is left out, asked now and then whether it is back, and taken back when it is.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

from qed.errors import Interrupted, QedError, ServersGone
from qed.net.deadlines import CancelScope
from qed.sampling.server.calls import Call
from qed.sampling.server.dialect import ServerLost
from qed.sampling.server.slots import FIRST_WAIT, J, R, S, Slot

LONGEST_WAIT = 15.0  # seconds between two checks of a lost server; the wait doubles
CHECK_SECONDS = 20.0  # for a lost server to show that it is back


@dataclass
class Hooks(Generic[S]):
    """What the balancer calls: when a server is lost, in a thread of its own, and before it is used again."""

    on_lost: Callable[[S], None] = field(default=lambda server: None)
    on_return: Callable[[S], None] = field(default=lambda server: None)


class Balancer(Generic[S]):
    """Servers that share requests; `run` may be called from several threads.

    Args:
        servers: the servers.
        limit: the most requests that one has at the same time.
        patience: seconds without any server after which the run ends.
        hooks: what is called when a server is lost or back.
    """

    def __init__(self, servers: Sequence[S], limit: int, patience: float, hooks: Hooks[S]) -> None:
        self.slots = [Slot(server) for server in servers]
        self.limit, self.patience, self.hooks = limit, patience, hooks
        self.counts: Counter[str] = Counter()  # of requests that were asked again, and of losses
        self._lock = threading.RLock()
        self._down_since: float | None = None  # when the last server was lost

    def replace(self, index: int, server: S) -> None:
        """Put another server in a place, for example after a restart at another address; it is checked before use."""
        with self._lock:
            slot = self.slots[index]
            slot.server, slot.retry, slot.wait = server, 0.0, FIRST_WAIT
            if slot.lost is not None:
                server.healthy = False

    def run(
        self,
        jobs: Sequence[tuple[J, int]],
        work: Callable[[S, J, Callable[[], None], CancelScope], R],
        tick: Callable[[bool], None],
    ) -> list[R]:
        """Do each job exactly once, on whatever server, and return the results in order.

        Args:
            jobs: each with the most tokens that it takes.
            work: does a job on a server; it is called in a thread of its own, with a function to call at progress and
                a scope that ends it. It raises `ServerLost` or `AskAgain` where the job is to be done again.
            tick: called several times a second, with whether there was progress; its exceptions end all jobs.

        Raises:
            QedError: all servers are lost for too long, or a job was lost too often.
        """
        call = Call(self, jobs, work)
        try:
            while len(call.results) < len(jobs):
                self._report_losses()
                self._settle_restarts()
                self._take_back()
                self._start_checks()
                call.start_jobs()
                tick(call.handle_events())
                self._require_servers(call)
        finally:
            call.scope.cancel()
        return [call.results[index] for index in range(len(jobs))]

    def choose(self, tokens: int) -> Slot[S] | None:
        """Reserve a place for a job on the server with the fewest outstanding tokens; None if all are full or lost."""
        with self._lock:
            free = [slot for slot in self.slots if slot.lost is None and not slot.server.paused]
            free = [slot for slot in free if slot.running < self.limit]
            if not free:
                return None
            slot = min(free, key=lambda each: each.tokens)
            slot.running, slot.tokens = slot.running + 1, slot.tokens + tokens
            return slot

    def release(self, slot: Slot[S], tokens: int) -> None:
        """Give up a place that `choose` reserved."""
        with self._lock:
            slot.running, slot.tokens = slot.running - 1, slot.tokens - tokens

    def leave_out(self, slot: Slot[S], server: S, error: ServerLost) -> None:
        """Use a server no more until it is back."""
        with self._lock:
            if slot.lost is not None or slot.server is not server:
                return  # another request has said so
            now = time.monotonic()
            slot.lost, slot.since, slot.retry, slot.wait = str(error), now, now + FIRST_WAIT, FIRST_WAIT
            slot.reported = error.kind != "lost"  # a busy one, or one with old weights, needs no restart
            server.healthy = False
            self.counts["servers_lost"] += 1
            if self._down_since is None and all(each.lost is not None for each in self.slots):
                self._down_since = now

    def _report_losses(self) -> None:
        """Call `on_lost` for servers that died or hang, once each, in a thread; nobody checks them meanwhile."""
        with self._lock:
            due = [slot for slot in self.slots if slot.lost is not None and not slot.reported]
            for slot in due:
                slot.reported = slot.checking = slot.restarting = True
        for slot in due:
            threading.Thread(target=_call_on_lost, args=(slot, self.hooks.on_lost), daemon=True).start()

    def _settle_restarts(self) -> None:
        """Look at how calls of `on_lost` have ended; the server is checked before it is used again.

        Raises:
            QedError: a server cannot be restarted, and there is no other; or whatever else `on_lost` raised.
        """
        with self._lock:
            due = [(slot, slot.restarted[0]) for slot in self.slots if slot.restarted is not None]
            for slot, failure in due:
                slot.restarted, slot.checking, slot.restarting, slot.retry = None, False, False, 0.0
                if isinstance(failure, QedError | ServerLost):
                    slot.lost = f"{slot.lost}; {failure}"
            alone = self._down_since is not None
            if due and alone:
                self._down_since = time.monotonic()  # a restart may take its time
        for _, failure in due:
            goes_on = isinstance(failure, ServerLost) or (isinstance(failure, QedError) and not alone)
            if failure is not None and (isinstance(failure, Interrupted) or not goes_on):
                raise failure

    def _take_back(self) -> None:
        """Use servers again that have passed a check, and plan the next check of the others."""
        with self._lock:
            due = [(slot, slot.checked) for slot in self.slots if slot.checked is not None]
            for slot, _ in due:
                slot.checked = None
        for slot, (server, outcome) in due:
            if outcome is None and slot.server is server:
                try:
                    self.hooks.on_return(server)
                except ServerLost as error:
                    outcome = error
                except BaseException:
                    slot.checking = False
                    raise
            with self._lock:
                slot.checking = False
                if slot.server is not server:
                    slot.retry = 0.0
                elif outcome is None:
                    slot.lost, server.healthy, self._down_since = None, True, None
                else:
                    slot.lost = str(outcome)
                    slot.wait = min(LONGEST_WAIT, 2 * slot.wait)
                    slot.retry = time.monotonic() + slot.wait

    def _start_checks(self) -> None:
        """Ask lost servers whose time has come whether they are back."""
        now = time.monotonic()
        with self._lock:
            due = [slot for slot in self.slots if slot.lost is not None and slot.reported]
            due = [slot for slot in due if not slot.checking and slot.retry <= now]
            for slot in due:
                slot.checking = True
        for slot in due:
            threading.Thread(target=_check, args=(slot, slot.server), daemon=True).start()

    def _require_servers(self, call: Call[S, Any, Any]) -> None:
        """End the run if no server has been there for too long, or if all are paused for good."""
        now = time.monotonic()
        restarting = any(slot.restarting for slot in self.slots)  # which has a deadline of its own
        if not restarting and self._down_since is not None and now - self._down_since > self.patience:
            lost = "; ".join(slot.describe() for slot in self.slots)
            raise ServersGone(
                f"All servers are lost, and none came back within {self.patience:g} s ({lost}). Look at their logs, "
                "start them again, and resume the run; sampling.request_seconds is how long it waits."
            )
        if not call.waits or any(not slot.server.paused for slot in self.slots):
            call.paused_since = now
        elif now - call.paused_since > self.patience:
            names = ", ".join(slot.server.url for slot in self.slots)
            raise QedError(f"The servers {names} are paused for {self.patience:g} s, and nothing resumes them.")


def _call_on_lost(slot: Slot[S], on_lost: Callable[[S], None]) -> None:
    failure: BaseException | None = None
    try:
        on_lost(slot.server)
    except BaseException as error:  # noqa: BLE001 -- raised in the thread that wants the answers
        failure = error
    slot.restarted = (failure,)


def _check(slot: Slot[S], server: S) -> None:
    outcome: BaseException | None = None
    try:
        server.alive(CHECK_SECONDS)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the server is not back
        outcome = error
    slot.checked = (server, outcome)
