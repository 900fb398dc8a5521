"""Servers that die, hang, or answer what contradicts itself: no answer is lost, and none that is wrong is taken."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import Models
from running import Engine, start_native
from stand_in import StandIn

from qed.errors import Diverged, QedError, UsageError
from qed.sampling.base import Sampling
from qed.sampling.server import ServerSampler, balance, make
from qed.sampling.vllm import make as make_vllm
from qed.types import Completion

PROMPTS = [(4, 9, 11, 30, 31), (12,), (200, 201, 7, 250)]
SEEDS = [list(range(4)), list(range(10, 14)), list(range(20, 24))]
SAMPLING = Sampling(1.0, 12)
KILLS = 3  # of each server's engine; after more in a row a server gives up


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(balance, "FIRST_WAIT", 0.02)
    monkeypatch.setattr(balance, "CHECK_SECONDS", 0.5)


@pytest.fixture(params=["vllm", "sglang"])
def pair(request: pytest.FixtureRequest, models: Models) -> Iterator[list[StandIn]]:
    """Two servers of one engine."""
    servers = [StandIn(request.param, models) for _ in range(2)]
    with servers[0].run(), servers[1].run():
        yield servers


def ask(models: Models, urls: Sequence[str], seconds: float = 60.0, rows: int = 4) -> ServerSampler:
    sampler = ServerSampler(models.tokenizer, models.ends, rows, torch.float32, seconds)
    sampler.set_servers(urls)
    return sampler


def show(rows: Sequence[Sequence[Completion]]) -> list[list[Any]]:
    return [[(tuple(each.tokens), tuple(each.logps)) for each in row] for row in rows]


def after(count: int, act: Callable[[], Any]) -> Callable[[], None]:
    """A function that acts at its call with that number."""
    counted = iter(range(count))

    def call() -> None:
        if next(counted, None) is None:
            act()

    return call


def test_two_servers_share_the_work(models: Models, pair: list[StandIn]) -> None:
    alone = show(ask(models, [pair[0].url]).generate(PROMPTS, SEEDS, SAMPLING))
    for server in pair:
        server.asked.clear()
    sampler = ask(models, [server.url for server in pair])
    assert show(sampler.generate(PROMPTS, SEEDS, SAMPLING)) == alone
    shares = [sum(path in ("/v1/completions", "/generate") for path, _ in server.asked) for server in pair]
    assert sum(shares) == 12
    assert min(shares) >= 3
    assert all(slot.tokens == 0 for slot in sampler._balancer.slots)


def test_a_server_that_dies_in_the_middle_loses_no_answer(models: Models, pair: list[StandIn]) -> None:
    alone = show(ask(models, [pair[0].url]).generate(PROMPTS, SEEDS, SAMPLING))
    sampler, lost = ask(models, [server.url for server in pair]), list[str]()
    sampler.on_lost = lambda server: lost.append(server.url)
    pair[1].on_token = after(20, lambda: threading.Thread(target=pair[1].die).start())
    assert show(sampler.generate(PROMPTS, SEEDS, SAMPLING)) == alone
    assert lost == [pair[1].url]
    assert [server.healthy for server in sampler.servers] == [True, False]
    assert sampler.counts["asked_again"] >= 1
    # The next call goes on without it.
    assert show(sampler.generate(PROMPTS, SEEDS, SAMPLING)) == alone


def test_a_server_that_was_restarted_elsewhere_takes_work_again(models: Models, pair: list[StandIn]) -> None:
    alone = show(ask(models, [pair[0].url]).generate(PROMPTS, SEEDS, SAMPLING))
    sampler, new = ask(models, [pair[0].url]), pair[1]
    pair[0].on_token = after(20, lambda: threading.Thread(target=pair[0].die).start())
    sampler.on_lost = lambda server: sampler.replace_server(0, new.url)
    assert show(sampler.generate(PROMPTS, SEEDS, SAMPLING)) == alone
    assert [(server.url, server.healthy) for server in sampler.servers] == [(new.url, True)]


def test_a_server_that_hangs_is_left_out_and_taken_back(models: Models, pair: list[StandIn]) -> None:
    alone = show(ask(models, [pair[0].url]).generate(PROMPTS, SEEDS, SAMPLING))
    sampler = ask(models, [server.url for server in pair], seconds=1.0)
    pair[1].frozen = True
    assert show(sampler.generate(PROMPTS, SEEDS, SAMPLING)) == alone
    assert not sampler.servers[1].healthy
    pair[1].frozen = False
    ended = threading.Event()
    while not sampler.servers[1].healthy:
        assert not ended.wait(0.01)
        sampler.generate(PROMPTS[:1], [[1]], SAMPLING)
    assert show(sampler.generate(PROMPTS, SEEDS, SAMPLING)) == alone


def test_all_servers_lost_ends_the_run_with_which_when_and_why(models: Models, pair: list[StandIn]) -> None:
    sampler = ask(models, [server.url for server in pair], seconds=0.5)
    for server in pair:
        server.die()
    with pytest.raises(QedError, match=rf"All servers are lost.*{pair[0].url} for \d s: .*refused.*{pair[1].url}"):
        sampler.generate(PROMPTS, SEEDS, SAMPLING)


def break_reply(server: StandIn, change: Callable[[dict[str, Any]], None]) -> None:
    """Let a server change each of its answers."""
    sample = server.sample

    def broken(*arguments: Any) -> dict[str, Any]:
        done = sample(*arguments)
        change(done)
        return done

    server.sample = broken  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda done: done.update(tokens=[], logps=[]), "contradicts itself: there are 0 tokens and 0 log-probs"),
        (
            lambda done: done.update(tokens=done["tokens"][:2], logps=done["logps"][:2], reason="length"),
            "shorter than the maximum",
        ),
        (lambda done: done.update(reason="content_filter"), "finish reason is content_filter"),
        (lambda done: done.update(logps=[0.5] * len(done["logps"])), "log-probs lie between 0.5 and 0.5"),
        (lambda done: done.update(logps=[-9999.0] * len(done["logps"])), "log-probs lie between -9999"),
        (lambda done: done.update(tokens=[100] * len(done["tokens"])), "continues after an end token"),
    ],
)
def test_an_answer_that_contradicts_itself_is_refused(
    models: Models, pair: list[StandIn], change: Callable[[dict[str, Any]], None], message: str
) -> None:
    break_reply(pair[0], change)
    with pytest.raises(QedError, match=f"{pair[0].url}.*{message}"):
        ask(models, [pair[0].url]).generate(PROMPTS[:1], [[5]], Sampling(1.0, 20, min_tokens=10))


def test_log_probs_that_are_not_numbers_mean_a_broken_model(models: Models, pair: list[StandIn]) -> None:
    break_reply(pair[0], lambda done: done.update(logps=[float("nan")] * len(done["logps"])))
    with pytest.raises(Diverged, match=r"not finite.*last update"):
        ask(models, [pair[0].url]).generate(PROMPTS[:1], [[5]], SAMPLING)


def test_an_update_that_says_it_worked_and_did_not_is_seen_by_its_scores(models: Models, pair: list[StandIn]) -> None:
    sampler, rows = ask(models, [pair[0].url]), [(PROMPTS[0], (9, 8, 7))]
    before = sampler.score(rows)
    pair[0].stale = True
    sampler.servers[0].load_weights(models.newer, 1)
    assert sampler.score(rows) == before
    pair[0].stale = False
    sampler.servers[0].load_weights(models.newer, 2)
    assert sampler.score(rows) != before


def test_addresses_that_cannot_be_sampled_from_are_refused(models: Models, pair: list[StandIn]) -> None:
    other = StandIn("sglang" if pair[0].dialect == "vllm" else "vllm", models)
    pair[1].die()
    with other.run():
        for urls, message in (
            ([pair[0].url, pair[0].url], "given twice"),
            ([pair[0].url, f"{pair[0].url}/v1"], "given twice"),
            ([pair[0].url, other.url], "different engines"),
            ([pair[1].url], "No server answers at"),
            (["127.0.0.1:1"], "not an address"),
        ):
            with pytest.raises(UsageError, match=message):
                ask(models, urls)
    with pytest.raises(UsageError, match="no model in this process"):
        make()
    with pytest.raises(UsageError, match="no model in this process"):
        make_vllm()


def test_a_call_without_servers_says_how_to_name_one(models: Models) -> None:
    sampler = ServerSampler(models.tokenizer, models.ends, 4, torch.float32, 1.0)
    with pytest.raises(UsageError, match=r"--sampling.url"):
        sampler.generate(PROMPTS, SEEDS, SAMPLING)
    assert not sampler.exact_logps


@pytest.fixture(scope="module")
def three(models: Models) -> Iterator[list[Engine]]:
    """Servers of qed, each in processes of its own."""
    with ExitStack() as stack:
        yield [stack.enter_context(start_native(models)) for _ in range(3)]


@pytest.mark.faults
def test_random_kills_of_engines_change_no_answer(models: Models, three: list[Engine]) -> None:
    """A server starts its engine again by itself, a few times in a row; meanwhile the others do its work."""
    seeds, sampling, source = [list(range(40))] * 3, Sampling(1.0, 150, min_tokens=120), random.Random(1)
    sampler = ask(models, [engine.url for engine in three])
    expected = show(sampler.generate(PROMPTS, seeds, sampling))
    for index in source.sample([0, 1, 2] * KILLS, 3 * KILLS):
        ended = threading.Event()
        while (victim := find_engine(three[index])) is None or not sampler.servers[index].healthy:
            assert not ended.wait(0.1)
            sampler.generate(PROMPTS[:1], [[1]], SAMPLING)
        threading.Timer(source.random() / 2, kill, (victim,)).start()
        assert show(sampler.generate(PROMPTS, seeds, sampling)) == expected
    assert sampler.counts["asked_again"] >= KILLS


def find_engine(engine: Engine) -> int | None:
    """The process of a server that computes; None while it is being started again."""
    assert engine.process is not None
    processes = [
        int(child)
        for thread in Path(f"/proc/{engine.process.pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return next((each for each in processes if b"engine_process" in Path(f"/proc/{each}/cmdline").read_bytes()), None)


def kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@pytest.mark.faults
def test_real_servers_are_killed_and_stopped_in_the_middle_of_a_batch(
    models: Models, three: list[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, seeds, sampling = PROMPTS, [list(range(60))] * 3, Sampling(1.0, 200, min_tokens=150)
    sampler = ask(models, [engine.url for engine in three], seconds=8.0)
    monkeypatch.setattr(balance, "CHECK_SECONDS", 5.0)
    began = time.monotonic()
    expected = show(sampler.generate(prompts, seeds, sampling))
    took = time.monotonic() - began
    harms = {1: signal.SIGKILL, 2: signal.SIGSTOP}
    source = random.Random(0)
    for index, harm in harms.items():
        process = three[index].process
        assert process is not None
        threading.Timer(took * (0.2 + source.random() / 2), os.killpg, (process.pid, harm)).start()
        assert show(sampler.generate(prompts, seeds, sampling)) == expected
    assert sampler.servers[0].healthy
    assert not sampler.servers[1].healthy
    process = three[2].process
    assert process is not None
    os.killpg(process.pid, signal.SIGCONT)
    ended = threading.Event()
    while not sampler.servers[2].healthy:
        assert not ended.wait(0.05)
        sampler.generate(prompts, [[1]] * 3, SAMPLING)
    assert show(sampler.generate(prompts, seeds, sampling)) == expected
