"""Distributes requests evenly over servers, avoids lost ones, and has each request answered exactly once.

The thread that needs the answers schedules the requests; each request has its own thread that only waits for the reply.
A lost server is skipped, checked regularly, and used again once it is back.
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
CHECK_SECONDS = 20.0  # time limit of such a check


@dataclass
class Hooks(Generic[S]):
    """Callbacks of the balancer: when a server is lost (in a separate thread), and before it is used again."""

    on_lost: Callable[[S], None] = field(default=lambda server: None)
    on_return: Callable[[S], None] = field(default=lambda server: None)


class Balancer(Generic[S]):
    """Servers that share requests; `run` may be called from several threads.

    Args:
        servers: the servers.
        limit: largest number of concurrent requests per server.
        patience: seconds without any server after which the run ends.
        hooks: callbacks for lost and returning servers.
    """

    def __init__(self, servers: Sequence[S], limit: int, patience: float, hooks: Hooks[S]) -> None:
        self.slots = [Slot(server) for server in servers]
        self.limit, self.patience, self.hooks = limit, patience, hooks
        self.counts: Counter[str] = Counter()  # of retried requests and lost servers
        self._lock = threading.RLock()
        self._down_since: float | None = None  # when the last server was lost

    def replace(self, index: int, server: S) -> None:
        """Replace a server, for example after a restart at another address; the new one is checked before use."""
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
        """Do each job exactly once, on any server, and return the results in order.

        Args:
            jobs: each with its largest number of tokens.
            work: does a job on a server; called in a separate thread, with a function to report progress and a scope
            that
                cancels it. It raises `ServerLost` or `AskAgain` if the job must be retried.
            tick: called several times a second with whether there was progress; its exceptions end all jobs.

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
        """Reserve a slot for a job on the server with the fewest outstanding tokens; None if all are full or lost."""
        with self._lock:
            free = [slot for slot in self.slots if slot.lost is None and not slot.server.paused]
            free = [slot for slot in free if slot.running < self.limit]
            if not free:
                return None
            slot = min(free, key=lambda each: each.tokens)
            slot.running, slot.tokens = slot.running + 1, slot.tokens + tokens
            return slot

    def release(self, slot: Slot[S], tokens: int) -> None:
        """Release a slot that `choose` reserved."""
        with self._lock:
            slot.running, slot.tokens = slot.running - 1, slot.tokens - tokens

    def leave_out(self, slot: Slot[S], server: S, error: ServerLost) -> None:
        """Stop using a server until it is back."""
        with self._lock:
            if slot.lost is not None or slot.server is not server:
                return  # another request has already reported it
            now = time.monotonic()
            slot.lost, slot.since, slot.retry, slot.wait = str(error), now, now + FIRST_WAIT, FIRST_WAIT
            slot.reported = error.kind != "lost"  # busy servers, and those with old weights, need no restart
            server.healthy = False
            self.counts["servers_lost"] += 1
            if self._down_since is None and all(each.lost is not None for each in self.slots):
                self._down_since = now

    def _report_losses(self) -> None:
        """Call `on_lost` once for each server that died or hangs, in a thread; pause checks of it meanwhile."""
        with self._lock:
            due = [slot for slot in self.slots if slot.lost is not None and not slot.reported]
            for slot in due:
                slot.reported = slot.checking = slot.restarting = True
        for slot in due:
            threading.Thread(target=_call_on_lost, args=(slot, self.hooks.on_lost), daemon=True).start()

    def _settle_restarts(self) -> None:
        """Handle the results of finished `on_lost` calls; servers are checked before they are used again.

        Raises:
            QedError: a server cannot be restarted and there is no other, or any other error of `on_lost`.
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
        """Use servers again that passed a check, and schedule the next check of the others."""
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
        """Start checks of lost servers that are due."""
        now = time.monotonic()
        with self._lock:
            due = [slot for slot in self.slots if slot.lost is not None and slot.reported]
            due = [slot for slot in due if not slot.checking and slot.retry <= now]
            for slot in due:
                slot.checking = True
        for slot in due:
            threading.Thread(target=_check, args=(slot, slot.server), daemon=True).start()

    def _require_servers(self, call: Call[S, Any, Any]) -> None:
        """End the run if no server has been available for too long, or if all stay paused."""
        now = time.monotonic()
        restarting = any(slot.restarting for slot in self.slots)  # a restart has its own deadline
        if not restarting and self._down_since is not None and now - self._down_since > self.patience:
            lost = "; ".join(slot.describe() for slot in self.slots)
            raise ServersGone(
                f"All servers are lost, and none came back within {self.patience:g} s ({lost}). Check their logs, "
                "restart them, and resume the run; sampling.request_seconds sets how long it waits."
            )
        if not call.waits or any(not slot.server.paused for slot in self.slots):
            call.paused_since = now
        elif now - call.paused_since > self.patience:
            names = ", ".join(slot.server.url for slot in self.slots)
            raise QedError(f"The servers {names} have been paused for {self.patience:g} s, and nothing resumes them.")


def _call_on_lost(slot: Slot[S], on_lost: Callable[[S], None]) -> None:
    failure: BaseException | None = None
    try:
        on_lost(slot.server)
    except BaseException as error:  # noqa: BLE001 -- raised in the thread that waits for the answers
        failure = error
    slot.restarted = (failure,)


def _check(slot: Slot[S], server: S) -> None:
    outcome: BaseException | None = None
    try:
        server.alive(CHECK_SECONDS)
    except Exception as error:  # noqa: BLE001 -- after any error, the server is not back
        outcome = error
    slot.checked = (server, outcome)
