"""The contract of engines: what a run relies on, the same for qed's own server, SGLang and vLLM."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from families import forward_logps
from running import Engine, update
from turning import Turning

from qed.data.prompts.base import PromptTemplate
from qed.data.prompts.in_environment import PromptInEnvironment
from qed.errors import Interrupted, QedError, UsageError
from qed.net.client import HttpClient
from qed.rollout.stages import sample
from qed.rollout.turns import find_turns
from qed.sampling.base import PromptBatch, Sampling, generate_batches
from qed.sampling.server import sampler as server_sampler
from qed.types import Completion, Problem, Request, Rollout

PROMPTS = [(4, 9, 11, 30, 31), (12,), (200, 201, 7, 250, 50, 60, 70, 80)]
QUESTIONS = [Problem(question, question, "1") for question in ("1 two = ", "one + 2 - 3 ", "你好")]
SEEDS = [[1, 2**62 + 11, 3], [4], [5, 6]]
FREE = Sampling(1.0, 24)
REFUSED_SECONDS = 0.3  # in which no server comes back


def flatten(rows: Sequence[Sequence[Completion]]) -> list[Completion]:
    return [completion for row in rows for completion in row]


def show(rows: Sequence[Sequence[Completion]]) -> list[tuple[Any, ...]]:
    """What an answer is besides its version."""
    return [(tuple(each.tokens), tuple(each.logps), each.stop_reason, each.support) for each in flatten(rows)]


@torch.no_grad()
def shaped_logps(network: Any, prompt: Sequence[int], answer: Sequence[int], temperature: float) -> torch.Tensor:
    """The log-probs of an answer by one forward pass, after the temperature."""
    ids = torch.tensor([[*prompt, *answer]])
    logits = network(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float() / temperature
    return logits.log_softmax(-1).gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)


def assert_sampled_by(network: Any, prompt: Sequence[int], answer: Completion, tolerance: float) -> None:
    expected = forward_logps(network, prompt, answer.tokens)
    torch.testing.assert_close(torch.tensor(answer.logps).float(), expected, atol=tolerance, rtol=tolerance)


def test_ids_go_out_and_come_back_with_the_log_probs_of_the_learner(engine: Engine) -> None:
    sampler = engine.connect()
    rows = sampler.generate(PROMPTS, SEEDS, FREE)
    assert [len(row) for row in rows] == [3, 1, 2]
    for prompt, row in zip(PROMPTS, rows, strict=True):
        for answer in row:
            assert_sampled_by(engine.models.network, prompt, answer, engine.tolerance)
    assert {answer.stop_reason for answer in flatten(rows)} == {"stop", "length"}
    for answer in flatten(rows):
        assert (answer.tokens[-1] in engine.models.ends) == (answer.stop_reason == "stop")
        assert answer.stop_reason == "stop" or len(answer.tokens) == FREE.max_tokens
    assert sampler.servers[0].dialect == engine.dialect
    assert not sampler.counts


def test_qeds_server_returns_the_bits_of_this_process(engine: Engine) -> None:
    if engine.dialect != "native":
        pytest.skip("other engines have other kernels and random numbers")
    sampler = engine.connect()
    assert sampler.exact_logps
    for sampling in (FREE, Sampling(0.8, 16, top_k=5, record=True), Sampling(0.0, 9), Sampling(1.0, 30, ("e", "你"))):
        expected = engine.models.sampler().generate(PROMPTS, SEEDS, sampling)
        assert show(sampler.generate(PROMPTS, SEEDS, sampling)) == show(expected)


def test_batches_are_answered_together_as_one_by_one(engine: Engine) -> None:
    sampler = engine.connect()
    batches = [PromptBatch(PROMPTS, SEEDS, Sampling(0.0, 9)), PromptBatch(PROMPTS[:2], SEEDS[:2], FREE)]
    batches.append(PromptBatch(PROMPTS[2:], [[]], FREE))
    found = generate_batches(sampler, batches)
    assert [list(map(len, rows)) for rows in found] == [list(map(len, batch.seeds)) for batch in batches]
    for batch, rows in zip(batches, found, strict=True):
        alone = sampler.generate(*batch)
        assert [each.tokens for each in flatten(rows)] == [each.tokens for each in flatten(alone)]
    if engine.dialect == "native":
        here = engine.models.sampler().generate_batches(batches)
        assert list(map(show, found)) == list(map(show, here))


def sample_turns(engine: Engine, sampler: Any) -> list[Rollout]:
    leaf = SimpleNamespace(CHAT=False, STOP=(), render=lambda problem, _: problem.question)
    models = engine.models
    template = PromptTemplate(PromptInEnvironment(leaf, Turning()), models.tokenizer, models.ends)
    requests = [Request(problem, 3) for problem in QUESTIONS]
    groups = sample(requests, sampler, template, Sampling(1.0, 40, template.stop), (3, "turns"))
    return [rollout for group in groups for rollout in group]


def test_turns_go_on_behind_what_was_said(engine: Engine) -> None:
    """What an environment replies is context there as here, and qed's own server goes on in place."""
    rollouts = sample_turns(engine, engine.connect())
    assert any(len(rollout.turn_rewards) == 2 for rollout in rollouts)
    for rollout in rollouts:
        expected = forward_logps(engine.models.network, rollout.prompt, rollout.output)
        for replied, tokens in find_turns(rollout):
            found = torch.tensor(rollout.logps[tokens], dtype=expected.dtype)
            wanted = torch.zeros_like(found) if replied else expected[tokens]
            torch.testing.assert_close(found, wanted, atol=engine.tolerance, rtol=engine.tolerance)
    if engine.dialect == "native":
        assert rollouts == sample_turns(engine, engine.models.sampler())


def test_a_seed_repeats_its_answer_and_others_differ(engine: Engine) -> None:
    sampler = engine.connect()
    seeds = [[7, 8, 9, 7], [7]]
    first = sampler.generate(PROMPTS[:2], seeds, FREE)
    assert first[0][0].tokens == first[0][3].tokens
    assert len({tuple(answer.tokens) for answer in first[0]}) == 3
    # An answer's seed decides, and not what is sampled with it, nor in which order.
    again = sampler.generate(PROMPTS[1::-1], [[7], [9, 8]], FREE)
    assert [answer.tokens for answer in again[1]] == [first[0][2].tokens, first[0][1].tokens]


def test_stop_strings_end_answers_and_stay_in_them(engine: Engine) -> None:
    sampler, decode = engine.connect(), engine.models.tokenizer.decode
    free = sampler.generate(PROMPTS, SEEDS, FREE)
    text = max((decode(answer.tokens) for answer in flatten(free)), key=len)
    stop = next(text[at : at + 2] for at in range(4, len(text)) if "�" not in text[at : at + 2])
    rows = sampler.generate(PROMPTS, SEEDS, Sampling(1.0, 24, (stop, "</answer>")))
    stopped = [answer for answer in flatten(rows) if stop in decode(answer.tokens)]
    assert stopped
    for answer in stopped:
        assert answer.stop_reason == "stop"
        assert stop not in decode(answer.tokens[:-1])
    by_seed = zip(flatten(free), flatten(rows), strict=True)
    assert all(short.tokens == long.tokens[: len(short.tokens)] for long, short in by_seed)


def test_min_tokens_keep_an_answer_from_ending(engine: Engine) -> None:
    sampler = engine.connect()
    rows = sampler.generate(PROMPTS, SEEDS, Sampling(1.0, 80, min_tokens=12))
    assert all(len(answer.tokens) > 12 for answer in flatten(rows))
    assert any(answer.stop_reason == "stop" for answer in flatten(rows))
    # The tokens that are given count, and only the continuation comes back.
    rows = sampler.generate(PROMPTS[:1], [[1, 2, 3, 4, 5, 6]], Sampling(1.0, 16, min_tokens=12), [4])
    assert all(8 < len(answer.tokens) <= 12 for answer in flatten(rows))


def test_temperature_and_filters_shape_the_log_probs(engine: Engine) -> None:
    sampler, prompt = engine.connect(), PROMPTS[0]
    for answer in sampler.generate([prompt], [[1, 2]], Sampling(0.7, 12))[0]:
        expected = shaped_logps(engine.models.network, prompt, answer.tokens, 0.7)
        torch.testing.assert_close(torch.tensor(answer.logps).float(), expected, atol=engine.tolerance * 2, rtol=1e-4)
    for answer in sampler.generate([prompt], [[1, 2]], Sampling(1.0, 12, top_k=3))[0]:
        whole = forward_logps(engine.models.network, prompt, answer.tokens)
        assert all(kept > logp for kept, logp in zip(answer.logps, whole.tolist(), strict=True))
    greedy = sampler.generate(PROMPTS, [[0]] * 3, Sampling(0.0, 8, top_p=0.5, top_k=2))
    for prompt, (answer,) in zip(PROMPTS, greedy, strict=True):
        assert list(answer.tokens) == engine.models.greedy(engine.models.network, prompt, 8)
        assert_sampled_by(engine.models.network, prompt, answer, engine.tolerance)


def test_the_support_of_truncated_answers_is_recorded_or_refused(engine: Engine) -> None:
    sampler, sampling = engine.connect(), Sampling(1.0, 8, top_k=4, record=True)
    if engine.dialect == "native":
        assert all(answer.support is not None for answer in flatten(sampler.generate(PROMPTS, SEEDS, sampling)))
        return
    with pytest.raises(UsageError, match=r"does not report which tokens sampling.top_p.*qed serve"):
        sampler.generate(PROMPTS, SEEDS, sampling)


def test_long_prompts_are_answered_and_too_long_ones_are_not_sent(engine: Engine) -> None:
    sampler = engine.connect()
    prompt = tuple(4 + number % 90 for number in range(512 - 8))
    ((answer,),) = sampler.generate([prompt], [[3]], Sampling(1.0, 8))
    assert_sampled_by(engine.models.network, prompt, answer, 4 * engine.tolerance)
    asked = len(engine.stand_in.asked) if engine.stand_in else 0
    with pytest.raises(UsageError, match=r"Prompt 1 has 504 tokens and its answer up to 9.*of 512"):
        sampler.generate([(4,), prompt], [[1], [3]], Sampling(1.0, 9))
    with pytest.raises(UsageError, match="Prompt 0 has no token"):
        sampler.generate([()], [[1]], FREE)
    assert asked == (len(engine.stand_in.asked) if engine.stand_in else 0)


def test_text_of_any_script_survives(engine: Engine) -> None:
    tokenizer = engine.models.tokenizer
    prompt = tuple(tokenizer("⟨ünïcödé⟩ 你好 🙂\u200b\n\t", add_special_tokens=False).input_ids)
    assert len(prompt) > 10
    rows = engine.connect().generate([prompt], [[1, 2, 3, 4]], Sampling(1.0, 16, ("你", "🙂", "ü")))
    for answer in flatten(rows):
        assert_sampled_by(engine.models.network, prompt, answer, engine.tolerance)


def test_outputs_are_scored_at_temperature_1(engine: Engine) -> None:
    sampler = engine.connect()
    rows = [(PROMPTS[0], (9, 8, 7)), (PROMPTS[2], (210, 211, 212, 213))]
    for (prompt, output), logps in zip(rows, sampler.score(rows), strict=True):
        expected = forward_logps(engine.models.network, prompt, output)
        torch.testing.assert_close(torch.tensor(logps), expected, atol=engine.tolerance, rtol=engine.tolerance)


def test_an_answer_is_streamed_as_it_is_sampled(engine: Engine) -> None:
    sampler, seen = engine.connect(), list[list[int]]()
    answer = sampler.stream(PROMPTS[0], 5, FREE, lambda tokens: seen.append(list(tokens)))
    assert seen[-1] == list(answer.tokens)
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(seen))
    assert_sampled_by(engine.models.network, PROMPTS[0], answer, engine.tolerance)


def count_running(engine: Engine) -> int:
    """The answers that a server samples at the moment."""
    if engine.stand_in is not None:
        return engine.stand_in.running
    reply = HttpClient(engine.url).request("GET", "/metrics", seconds=10).body.decode()
    names = ("num_requests_running", "num_requests_waiting")
    lines = [line for line in reply.splitlines() if not line.startswith("#") and any(name in line for name in names)]
    assert lines
    return sum(int(float(line.split()[-1])) for line in lines)


def test_a_signal_cancels_what_is_under_way_and_frees_the_server(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, ticks = engine.connect(), 0

    def stop(point: str, progress: bool) -> None:
        nonlocal ticks
        ticks += 1
        if count_running(engine):
            raise Interrupted("Stopped by SIGTERM.", 143)

    started = hold(engine)
    monkeypatch.setattr(server_sampler, "check_signals", stop)
    with started, pytest.raises(Interrupted):
        sampler.generate(PROMPTS, [list(range(200))] * 3, Sampling(1.0, 400, min_tokens=390))
    monkeypatch.undo()
    waited = threading.Event()
    while count_running(engine):
        assert not waited.wait(0.02)  # the time limit of the test ends this
    assert len(flatten(sampler.generate(PROMPTS, SEEDS, FREE))) == 6


@contextmanager
def hold(engine: Engine) -> Iterator[None]:
    """Keep a stand-in's answers from finishing too soon; real engines are given enough to do."""
    if engine.stand_in is not None:
        engine.stand_in.on_token = lambda: threading.Event().wait(0.001) and None
    yield
    if engine.stand_in is not None:
        engine.stand_in.on_token = lambda: None


def test_an_update_under_load_mixes_no_two_policies(engine: Engine) -> None:
    sampler, rows = engine.connect(), list[list[Completion]]()
    prompts = [PROMPTS[0]] * 3
    calls = range(4 if engine.dialect == "native" else 1)

    def sample() -> None:
        for call in calls:
            rows.extend(sampler.generate(prompts, [[100 * call + 1, 2], [3, 4], [5, 6]], Sampling(1.0, 100)))

    thread = threading.Thread(target=sample)
    with hold(engine):
        thread.start()
        (server,) = sampler.servers
        update(server, engine.models.newer, 1)
    thread.join(100)
    assert len(flatten(rows)) == 6 * len(calls)
    networks = {None: engine.models.network, 0: engine.models.network, 1: engine.models.newer_network}
    for answer in flatten(rows):
        assert_sampled_by(networks[answer.version], PROMPTS[0], answer, 2 * engine.tolerance)
    ((after,),) = sampler.generate([PROMPTS[0]], [[1]], FREE)
    assert after.version == 1


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_a_pause_ends_what_is_under_way_and_nothing_is_lost(engine: Engine, mode: Any) -> None:
    sampler, rows = engine.connect(), list[list[Completion]]()
    thread = threading.Thread(target=lambda: rows.extend(sampler.generate(PROMPTS, SEEDS, Sampling(1.0, 100))))
    with hold(engine):
        thread.start()
        (server,) = sampler.servers
        server.pause(mode, 30)
        assert count_running(engine) == 0
        server.resume()
    thread.join(100)
    undisturbed = sampler.generate(PROMPTS, SEEDS, Sampling(1.0, 100))
    assert [answer.tokens for answer in flatten(rows)] == [answer.tokens for answer in flatten(undisturbed)]


def test_no_prompt_of_old_weights_is_cached(engine: Engine) -> None:
    models, sampler = engine.models, engine.connect()
    prompts = [[4 + number, *range(20, 90)] for number in range(6)]
    changed = [p for p in prompts if models.greedy(models.network, p) != models.greedy(models.newer_network, p)]
    assert changed
    for version, (folder, network) in enumerate(
        [(models.newer, models.newer_network), (models.folder, models.network)]
    ):
        sampler.generate(changed, [[0]] * len(changed), Sampling(0.0, 1))
        update(sampler.servers[0], folder, version + 1)
        for prompt, (answer,) in zip(
            changed, sampler.generate(changed, [[0]] * len(changed), Sampling(0.0, 1)), strict=True
        ):
            assert list(answer.tokens) == models.greedy(network, prompt)
            assert_sampled_by(network, prompt, answer, 4 * engine.tolerance)


def test_a_failed_update_keeps_the_old_weights_and_resumes(engine: Engine, tmp_path: Path) -> None:
    sampler = engine.connect()
    (server,) = sampler.servers
    with pytest.raises(QedError, match=r"cannot|does not"):
        update(server, tmp_path / "nothing", 7)
    ((answer,),) = sampler.generate([PROMPTS[0]], [[1]], FREE)
    assert_sampled_by(engine.models.network, PROMPTS[0], answer, engine.tolerance)
    assert answer.version in (None, 0)


def test_answers_of_a_wrong_version_are_not_accepted(engine: Engine) -> None:
    sampler = engine.connect(seconds=REFUSED_SECONDS)
    sampler.version = 5
    with pytest.raises(
        QedError,
        match=r"All servers are lost.*(of version (0|None) in place of 5|another version of the weights than 5)",
    ):
        sampler.generate(PROMPTS, SEEDS, FREE)
    returned = list[str]()

    def bring_up_to_date(server: Any) -> None:
        returned.append(server.url)
        update(server, engine.models.newer, 5)

    sampler = engine.connect()
    sampler.version, sampler.on_return = 5, bring_up_to_date
    rows = sampler.generate(PROMPTS, SEEDS, FREE)
    assert {answer.version for answer in flatten(rows)} == {5}
    assert returned == [engine.url]


def test_answers_of_another_run_are_not_accepted(engine: Engine) -> None:
    """Between this run's updates another one has given the server weights of a later step."""
    sampler = engine.connect(seconds=REFUSED_SECONDS)
    (server,) = sampler.servers
    update(server, engine.models.newer, 52)
    sampler.version = sampler.newest = 2
    with pytest.raises(QedError, match=r"All servers are lost.*(version (52|None) in place of 2|weights than 2)"):
        sampler.generate(PROMPTS, SEEDS, FREE)


def test_calls_of_several_threads_do_not_mix(engine: Engine) -> None:
    sampler, found = engine.connect(), dict[int, Any]()
    expected = {number: sampler.generate(PROMPTS, [[number], [number], [number]], FREE) for number in range(3)}
    threads = [
        threading.Thread(
            target=lambda number=number: found.update({number: sampler.generate(PROMPTS, [[number]] * 3, FREE)})
        )
        for number in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {number: [answer.tokens for answer in flatten(rows)] for number, rows in found.items()} == {
        number: [answer.tokens for answer in flatten(rows)] for number, rows in expected.items()
    }
