"""One call of a balancer: its jobs, the waiting ones, and reports of the threads that wait for replies."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from qed.errors import QedError
from qed.net.deadlines import CancelScope
from qed.sampling.server.dialect import AskAgain, ServerLost
from qed.sampling.server.slots import J, R, S, Slot

POLL = 0.05  # seconds between checks of what other threads may have changed
MOST_ATTEMPTS = 25  # of a request, over all servers


class Slots(Protocol[S]):
    """The part of a balancer that a call uses."""

    counts: Counter[str]

    def choose(self, tokens: int) -> Slot[S] | None:
        """Reserve a slot for a job."""
        ...

    def release(self, slot: Slot[S], tokens: int) -> None:
        """Release a slot."""
        ...

    def leave_out(self, slot: Slot[S], server: S, error: ServerLost) -> None:
        """Stop using a server until it is back."""
        ...


@dataclass(frozen=True)
class _Event(Generic[S]):
    """A thread's report: the outcome of a job, or progress of the server (`index` None)."""

    server: S
    index: int | None = None
    outcome: Any = None


class Call(Generic[S, J, R]):
    """The state of a call of `Balancer.run`; see there for the arguments."""

    def __init__(
        self,
        balancer: Slots[S],
        jobs: Sequence[tuple[J, int]],
        work: Callable[[S, J, Callable[[], None], CancelScope], R],
    ) -> None:
        self.balancer, self.jobs, self.work = balancer, jobs, work
        self.waiting = deque(range(len(jobs)))
        self.results: dict[int, R] = {}
        self.attempts: Counter[int] = Counter()
        self.events: queue.SimpleQueue[_Event[S]] = queue.SimpleQueue()
        self.scope = CancelScope()
        self.running = 0
        self.paused_since = time.monotonic()

    @property
    def waits(self) -> bool:
        """Whether jobs wait for a server and none is running."""
        return bool(self.waiting) and not self.running

    def start_jobs(self) -> None:
        """Start as many jobs as the servers accept."""
        while self.waiting:
            index = self.waiting[0]
            slot = self.balancer.choose(self.jobs[index][1])
            if slot is None:
                return
            self.waiting.popleft()
            self.running += 1
            threading.Thread(target=self._do, args=(slot, slot.server, index), daemon=True).start()

    def handle_events(self) -> bool:
        """Wait briefly for reports of threads, handle them, and return whether there was progress."""
        progress = False
        try:
            event = self.events.get(timeout=POLL)
            while True:
                progress |= self._handle(event)
                event = self.events.get_nowait()
        except queue.Empty:
            return progress

    def _do(self, slot: Slot[S], server: S, index: int) -> None:
        job, tokens = self.jobs[index]
        outcome: Any
        try:
            outcome = self.work(server, job, lambda: self.events.put(_Event(server)), self.scope)
        except BaseException as error:  # noqa: BLE001 -- the scheduling thread raises it
            outcome = error
        if isinstance(outcome, ServerLost):
            self.balancer.leave_out(slot, server, outcome)
        slot.finished += not isinstance(outcome, BaseException)
        self.balancer.release(slot, tokens)
        self.events.put(_Event(server, index, outcome))

    def _handle(self, event: _Event[S]) -> bool:
        if event.index is None:
            return True
        self.running -= 1
        if isinstance(event.outcome, ServerLost | AskAgain):
            self._ask_again(event)
            return False
        if isinstance(event.outcome, BaseException):
            raise event.outcome
        self.results[event.index] = event.outcome
        return True

    def _ask_again(self, event: _Event[S]) -> None:
        """Put a lost job at the front of the queue, so that it is done next."""
        index = event.index
        assert index is not None
        self.attempts[index] += 1
        self.balancer.counts["asked_again"] += 1
        if self.attempts[index] >= MOST_ATTEMPTS:
            raise QedError(
                f"A request was lost {MOST_ATTEMPTS} times, the last time at {event.server.url}: "
                f"{event.outcome or 'it was paused in the middle'}. Check the servers' logs."
            )
        self.waiting.appendleft(index)
