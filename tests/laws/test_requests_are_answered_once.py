"""Requests to several servers: each is answered exactly once, whatever the servers do, and none hangs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.errors import Interrupted, QedError
from qed.net.deadlines import CancelScope
from qed.sampling.server import balance, calls
from qed.sampling.server.balance import Balancer, Hooks
from qed.sampling.server.dialect import AskAgain, ServerLost

FAILURES: dict[str, Callable[[], Exception]] = {
    "lost": lambda: ServerLost("it died"),
    "busy": lambda: ServerLost("it is busy", "busy"),
    "stale": lambda: ServerLost("it has old weights", "stale"),
    "paused": AskAgain,
}
PLANS = st.lists(st.sampled_from(["ok", "ok", *FAILURES]), max_size=8)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "POLL", 0.001)
    monkeypatch.setattr(balance, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(balance, "LONGEST_WAIT", 0.002)


class Simulated:
    """A server whose next replies and signs of life are planned; when the plan ends, it is well."""

    def __init__(self, url: str, replies: list[str], lives: list[bool]) -> None:
        self.url, self.replies, self.lives = url, list(replies), list(lives)
        self.healthy, self.paused = True, False
        self.lock, self.running, self.most, self.answered = threading.Lock(), 0, 0, Counter[int]()

    def alive(self, seconds: float) -> None:
        with self.lock:
            if self.lives and not self.lives.pop(0):
                raise ServerLost("it is still down")

    def answer(self, job: int, on_progress: Callable[[], None], scope: CancelScope) -> int:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
            plan = self.replies.pop(0) if self.replies else "ok"
        try:
            on_progress()
            if plan != "ok":
                raise FAILURES[plan]()
            self.answered[job] += 1
            return job * 7
        finally:
            with self.lock:
                self.running -= 1


def run(balancer: Balancer[Simulated], count: int, tick: Callable[[bool], None] = lambda progress: None) -> list[Any]:
    return balancer.run([(job, 1 + job % 3) for job in range(count)], Simulated.answer, tick)


@given(plans=st.lists(st.tuples(PLANS, st.lists(st.booleans(), max_size=4)), min_size=1, max_size=4), data=st.data())
@settings(max_examples=60)
def test_every_request_is_answered_once(plans: list[tuple[list[str], list[bool]]], data: st.DataObject) -> None:
    servers = [Simulated(f"server {number}", *plan) for number, plan in enumerate(plans)]
    limit, count = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 25))
    lost, returned = list[str](), list[str]()
    hooks = Hooks[Simulated](lambda server: lost.append(server.url), lambda server: returned.append(server.url))
    balancer = Balancer(servers, limit, 30.0, hooks)
    assert run(balancer, count) == [7 * job for job in range(count)]
    total = sum((server.answered for server in servers), Counter())
    assert total == Counter(range(count))  # a finished one is never asked again
    assert all(server.most <= limit for server in servers)
    assert all(slot.running == slot.tokens == 0 for slot in balancer.slots)
    failed = [
        plan for server, (replies, _) in zip(servers, plans, strict=True) for plan in server_past(server, replies)
    ]
    assert balancer.counts["asked_again"] == sum(plan != "ok" for plan in failed)
    assert len(lost) <= failed.count("lost")
    assert all(server.healthy == (slot.lost is None) for server, slot in zip(servers, balancer.slots, strict=True))


def server_past(server: Simulated, replies: list[str]) -> list[str]:
    """The planned replies that a server has given."""
    return replies[: len(replies) - len(server.replies)]


@given(calls=st.lists(st.integers(0, 9), min_size=2, max_size=4), plans=st.lists(PLANS, min_size=1, max_size=3))
@settings(max_examples=20)
def test_calls_of_several_threads_share_the_servers(calls: list[int], plans: list[list[str]]) -> None:
    servers = [Simulated(str(number), plan, []) for number, plan in enumerate(plans)]
    balancer = Balancer(servers, 2, 30.0, Hooks[Simulated]())
    results: dict[int, list[Any]] = {}
    threads = [
        threading.Thread(target=lambda number=number, count=count: results.update({number: run(balancer, count)}))
        for number, count in enumerate(calls)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {number: [7 * job for job in range(count)] for number, count in enumerate(calls)}
    assert all(server.most <= 2 for server in servers)


def test_work_goes_to_the_server_with_the_fewest_outstanding_tokens() -> None:
    servers = [Simulated(str(number), [], []) for number in range(3)]
    balancer = Balancer(servers, 4, 30.0, Hooks[Simulated]())
    chosen = [balancer.choose(tokens) for tokens in (90, 30, 20, 20, 20, 5)]
    assert [slot and slot.server.url for slot in chosen] == ["0", "1", "2", "2", "1", "2"]


def test_all_servers_lost_ends_the_run_with_who_and_why() -> None:
    servers = [Simulated(f"http://server-{number}", ["lost"] * 100, [False] * 10_000) for number in range(2)]
    with pytest.raises(QedError, match=r"All servers are lost.*http://server-0 for 0 s: it is still down; http://ser"):
        run(Balancer(servers, 1, 0.05, Hooks[Simulated]()), 3)


def test_a_request_that_kills_every_server_is_given_up() -> None:
    servers = [Simulated(str(number), ["lost"] * 100, []) for number in range(2)]
    with pytest.raises(QedError, match=r"lost 25 times, the last time at .: it died"):
        run(Balancer(servers, 1, 30.0, Hooks[Simulated]()), 1)


def test_paused_servers_that_nothing_resumes_end_the_run() -> None:
    (server,) = servers = [Simulated("http://here", [], [])]
    server.paused = True
    with pytest.raises(QedError, match="http://here have been paused"):
        run(Balancer(servers, 1, 0.05, Hooks[Simulated]()), 1)
    ticks = list[bool]()

    def resume(progress: bool) -> None:
        ticks.append(progress)
        server.paused = len(ticks) < 5

    assert run(Balancer(servers, 1, 30.0, Hooks[Simulated]()), 2, resume) == [0, 7]


def test_a_broken_contract_and_a_signal_end_the_call_at_once() -> None:
    server = Simulated("http://here", [], [])
    balancer = Balancer([server], 3, 30.0, Hooks[Simulated]())
    cancelled = threading.Semaphore(0)

    def hang(server: Simulated, job: int, on_progress: Callable[[], None], scope: CancelScope) -> int:
        if job == 1:
            raise QedError("it contradicts itself")
        assert scope.wait(30)
        cancelled.release()
        return 0

    with pytest.raises(QedError, match="contradicts"):
        balancer.run([(job, 1) for job in range(3)], hang, lambda progress: None)
    assert cancelled.acquire(timeout=30)

    def stop(progress: bool) -> None:
        raise Interrupted("Stopped by SIGTERM.", 143)

    with pytest.raises(Interrupted):
        balancer.run([(0, 1)], hang, stop)
    assert cancelled.acquire(timeout=30)


def test_a_server_that_cannot_be_restarted_is_left_to_the_others() -> None:
    def refuse(server: Simulated) -> None:
        raise QedError(f"{server.url} has crashed 5 times")

    servers = [Simulated("first", ["lost"], [False] * 10_000), Simulated("second", [], [])]
    assert run(Balancer(servers, 1, 30.0, Hooks[Simulated](refuse)), 6) == [7 * job for job in range(6)]
    servers = [Simulated("alone", ["lost"], [])]
    with pytest.raises(QedError, match="alone has crashed 5 times"):
        run(Balancer(servers, 1, 30.0, Hooks[Simulated](refuse)), 1)


def test_a_server_that_is_replaced_after_its_loss_takes_the_work() -> None:
    old, new = Simulated("old", ["lost"], []), Simulated("new", [], [])
    balancer = Balancer([old], 1, 30.0, Hooks[Simulated](lambda server: balancer.replace(0, new)))
    began = time.monotonic()
    assert run(balancer, 4) == [7 * job for job in range(4)]
    assert new.healthy
    assert sum(new.answered.values()) == 4
    assert time.monotonic() - began < 30
