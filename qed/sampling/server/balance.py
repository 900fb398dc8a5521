"""Spread requests over servers: evenly, around those that are lost, and so that each is answered exactly once.

The thread that wants the answers schedules; each request has a thread of its own that only waits for its reply. A lost
server is left out, asked now and then whether it is back, and taken back when it is.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from qed.errors import Interrupted, QedError
from qed.net.deadlines import CancelScope
from qed.sampling.server.dialect import AskAgain, ServerLost

POLL = 0.05  # seconds between two looks at what other threads may have changed
FIRST_WAIT, LONGEST_WAIT = 0.25, 15.0  # seconds between two checks of a lost server; the wait doubles
CHECK_SECONDS = 20.0  # for a lost server to show that it is back
MOST_ATTEMPTS = 25  # of a request, over all servers


class Target(Protocol):
    """What the balancer needs of a server."""

    url: str
    healthy: bool
    paused: bool

    def alive(self, seconds: float) -> None:
        """Raise `ServerLost` unless the server answers in time."""
        ...


S = TypeVar("S", bound=Target)
J = TypeVar("J")
R = TypeVar("R")


@dataclass
class Slot(Generic[S]):
    """A server's place: what it is doing, and why it is left out, if it is."""

    server: S
    running: int = 0
    tokens: int = 0
    lost: str | None = None  # why it is left out
    since: float = 0.0  # on the monotonic clock
    retry: float = 0.0  # when it is checked again
    wait: float = FIRST_WAIT
    reported: bool = True  # whether `on_lost` was called for this loss, or need not be
    checking: bool = False  # whether it is being restarted or checked
    checked: tuple[S, BaseException | None] | None = None  # the outcome of a check that nobody has looked at yet
    finished: int = 0  # requests

    def describe(self) -> str:
        """Return which server is lost, since when and why."""
        return f"{self.server.url} for {time.monotonic() - self.since:.0f} s: {self.lost}"


@dataclass(frozen=True)
class _Event(Generic[S]):
    """What a thread reports: the outcome of a job, or that the server has advanced (`index` None)."""

    server: S
    index: int | None = None
    outcome: Any = None


@dataclass
class Hooks(Generic[S]):
    """What the balancer calls in the thread that wants answers: when a server is lost, and before it is used again."""

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
        call = _Call(self, jobs, work)
        try:
            while len(call.results) < len(jobs):
                self._report_losses()
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
            slot.running, slot.tokens, slot.finished = slot.running - 1, slot.tokens - tokens, slot.finished + 1

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
        """Call `on_lost` for servers that died or hang, once each; nobody checks them meanwhile."""
        with self._lock:
            due = [slot for slot in self.slots if slot.lost is not None and not slot.reported]
            for slot in due:
                slot.reported = slot.checking = True
        for slot in due:
            try:
                self.hooks.on_lost(slot.server)
            except Interrupted:
                raise
            except (QedError, ServerLost) as failure:  # it cannot be restarted, and the others go on without it
                if self._down_since is not None:
                    raise
                slot.lost = f"{slot.lost}; {failure}"
            finally:
                with self._lock:
                    slot.checking, slot.retry = False, 0.0
                    if self._down_since is not None:
                        self._down_since = time.monotonic()  # a restart may take its time

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

    def _require_servers(self, call: _Call[S, Any, Any]) -> None:
        """End the run if no server has been there for too long, or if all are paused for good."""
        now = time.monotonic()
        if self._down_since is not None and now - self._down_since > self.patience:
            lost = "; ".join(slot.describe() for slot in self.slots)
            raise QedError(
                f"All servers are lost, and none came back within {self.patience:g} s ({lost}). Look at their logs, "
                "start them again, and resume the run; sampling.request_seconds is how long it waits."
            )
        if not call.waits or any(not slot.server.paused for slot in self.slots):
            call.paused_since = now
        elif now - call.paused_since > self.patience:
            names = ", ".join(slot.server.url for slot in self.slots)
            raise QedError(f"The servers {names} are paused for {self.patience:g} s, and nothing resumes them.")


def _check(slot: Slot[S], server: S) -> None:
    outcome: BaseException | None = None
    try:
        server.alive(CHECK_SECONDS)
    except Exception as error:  # noqa: BLE001 -- whatever it is, the server is not back
        outcome = error
    slot.checked = (server, outcome)


class _Call(Generic[S, J, R]):
    """The state of a call of `Balancer.run`."""

    def __init__(
        self,
        balancer: Balancer[S],
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
        """Whether jobs wait for a server and none is under way."""
        return bool(self.waiting) and not self.running

    def start_jobs(self) -> None:
        """Start as many jobs as the servers take."""
        while self.waiting:
            index = self.waiting[0]
            slot = self.balancer.choose(self.jobs[index][1])
            if slot is None:
                return
            self.waiting.popleft()
            self.running += 1
            threading.Thread(target=self._do, args=(slot, slot.server, index), daemon=True).start()

    def handle_events(self) -> bool:
        """Wait a moment for threads to report, handle what they do, and return whether there was progress."""
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
        except BaseException as error:  # noqa: BLE001 -- the thread that schedules raises it
            outcome = error
        if isinstance(outcome, ServerLost):
            self.balancer.leave_out(slot, server, outcome)
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
        """Put a lost job first in the queue, so that it is done next."""
        index = event.index
        assert index is not None
        self.attempts[index] += 1
        self.balancer.counts["asked_again"] += 1
        if self.attempts[index] >= MOST_ATTEMPTS:
            raise QedError(
                f"A request was lost {MOST_ATTEMPTS} times, the last time at {event.server.url}: "
                f"{event.outcome or 'it was paused in the middle'}. Look at the logs of the servers."
            )
        self.waiting.appendleft(index)
