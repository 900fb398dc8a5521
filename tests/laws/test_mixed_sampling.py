"""Answers with different sampling parameters that share a batch, come and go, are those of calls of their own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import VOCABULARY, make_model

from qed.sampling.base import PromptBatch, Sampling, generate_batches
from qed.sampling.draw import shape_logits
from qed.sampling.hf import prepare_for_sampling
from qed.sampling.native import prefiller as prefiller_module
from qed.sampling.native.answers import Answer, find_stop
from qed.sampling.native.batch import DecodingBatch
from qed.sampling.native.sampler import NativeSampler
from qed.types import Completion

ENDS = (1, 2)
MODEL = make_model()


class Letters:
    """A tokenizer of single letters, in which `f` is an added token."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(chr(97 + token) for token in tokens)

    def get_added_vocab(self) -> dict[str, int]:
        return {"f": 5}


def build_sampler() -> NativeSampler:
    return NativeSampler(MODEL, Letters(), ENDS, rows_per_batch=64, precision=torch.float64)


samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 1.3]),
    max_tokens=st.integers(1, 20),
    stop=st.sampled_from([(), ("c",), ("dd", "e"), ("f",)]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.05]),
    min_tokens=st.integers(0, 4),
    record=st.booleans(),
)
prompts = st.lists(st.integers(3, VOCABULARY - 1), min_size=1, max_size=12).map(tuple)
answers = st.builds(
    Answer,
    prompt=prompts,
    seed=st.integers(-(2**63), 2**63 - 1),
    sampling=samplings,
    ends=st.sampled_from([None, None, (), (7, 8)]),
    top=st.sampled_from([0, 0, 3]),
)


def sample_alone(answer: Answer) -> Completion:
    ends = ENDS if answer.ends is None else answer.ends
    sampler = NativeSampler(MODEL, Letters(), ends, precision=torch.float64)
    return sampler.generate([answer.prompt], [[answer.seed]], answer.sampling)[0][0]


def require_alike(found: Completion, answer: Answer) -> None:
    alone = sample_alone(answer)
    assert (found.tokens, found.stop_reason) == (alone.tokens, alone.stop_reason)
    assert found.logps == pytest.approx(alone.logps, abs=1e-9)
    assert (found.support is None) == (not answer.sampling.record)
    if found.support is not None and alone.support is not None:
        assert list(found.support.counts) == list(alone.support.counts)
        assert list(found.support.ids) == list(alone.support.ids)


@given(st.lists(answers, min_size=1, max_size=8), st.randoms())
@settings(max_examples=25)
def test_who_shares_a_batch_changes_no_answer(asked: list[Answer], source: random.Random) -> None:
    """Also where answers join while others run, some are aborted, and some are read while they grow."""
    waiting = [((number, number), answer) for number, answer in enumerate(asked)]
    aborted = {each for each, _ in waiting if source.random() < 0.2}
    found: dict[tuple[int, int], Completion] = {}
    read: dict[tuple[int, int], list[int]] = {each: [] for each, _ in waiting if source.random() < 0.5}
    with torch.no_grad(), prepare_for_sampling(MODEL, torch.float64):
        batch = build_sampler().start_batch(40)
        while waiting or batch.running is not None:
            if waiting and (batch.running is None or source.random() < 0.3):
                batch.schedule(dict(waiting.pop() for _ in range(source.randint(1, len(waiting)))))
            else:
                batch.step()
            for each, (tokens, _) in batch.read_new({each: len(own) for each, own in read.items()}).items():
                read[each] += tokens
            found |= batch.pop_finished()
            batch.abort([each for each in aborted if source.random() < 0.5])
    for number, answer in enumerate(asked):
        each = number, number
        if each in found:
            require_alike(found[each], answer)
            assert len(batch.tops.get(each, [])) >= (len(found[each].tokens) if answer.top else 0)
            assert list(found[each].tokens)[: len(read.get(each, []))] == read.get(each, [])
        else:
            assert each in aborted


@given(
    st.lists(prompts, min_size=1, max_size=4),
    st.lists(st.tuples(st.lists(st.integers(0, 3), max_size=5), samplings), min_size=1, max_size=3),
    st.integers(1, 8),
)
@settings(max_examples=25)
def test_batches_that_are_sampled_together_are_those_sampled_apart(
    known: list[tuple[int, ...]], asked: list[tuple[list[int], Sampling]], rows: int
) -> None:
    """Where prompts are in several batches, or twice in one, have no seeds, and not all fit at once."""
    batches = []
    for number, (chosen, sampling) in enumerate(asked):
        own = [known[index % len(known)] for index in chosen]
        given_tokens = [min(len(prompt) - 1, sampling.max_tokens - 1, number) for prompt in own]
        batches.append(PromptBatch(own, [[5] * (len(prompt) % 3) for prompt in own], sampling, given_tokens))
    sampler = build_sampler()
    sampler.rows_per_batch = rows
    for batch, found in zip(batches, sampler.generate_batches(batches), strict=True):
        alone = build_sampler().generate(*batch)
        assert list(map(len, found)) == list(map(len, batch.seeds))
        for own_found, own_alone in zip(found, alone, strict=True):
            for one, other in zip(own_found, own_alone, strict=True):
                assert (one.tokens, one.stop_reason) == (other.tokens, other.stop_reason)
                assert one.logps == pytest.approx(other.logps, abs=1e-9)


def test_a_prompt_of_several_batches_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[list[Sequence[int]]] = []
    real = prefiller_module.prefill
    monkeypatch.setattr(
        prefiller_module, "prefill", lambda model, own, *more: computed.append(own) or real(model, own, *more)
    )
    greedy, drawn = Sampling(0.0, 6), Sampling(1.0, 9)
    own = [(3, 4, 5), (6, 7)]
    generate_batches(build_sampler(), [PromptBatch(own, [[1], [1]], greedy), PromptBatch(own, [[1, 2], [1]], drawn)])
    assert sorted(len(prompt) for prompts in computed for prompt in prompts) == [2, 3]


def test_a_generate_of_the_callers_own_is_not_passed_over() -> None:
    class Own(NativeSampler):
        def generate(self, *asked: Any) -> list[list[Completion]]:
            return [[Completion((9,), (0.0,), "stop") for _ in seeds] for seeds in asked[1]]

    sampler = Own(MODEL, Letters(), ENDS, precision=torch.float64)
    batches = [PromptBatch([(3, 4)], [[1, 2]], Sampling(temperature, 6)) for temperature in (0.0, 1.0)]
    found = generate_batches(sampler, batches)
    assert {one.tokens for own in found for rows in own for one in rows} == {(9,)}


def test_the_most_likely_tokens_are_those_of_the_distribution_that_is_sampled() -> None:
    """Tokens that are excluded are not among them."""
    sampling = Sampling(0.8, 6, top_k=3, min_tokens=2)
    answer = Answer((3, 4, 5), 9, sampling, top=5)
    with torch.no_grad(), prepare_for_sampling(MODEL, torch.float64):
        batch = build_sampler().start_batch(20)
        batch.schedule({(0, 0): answer, (1, 1): replace(answer, top=0, seed=8)})
        found: dict[Any, Completion] = {}
        while batch.running is not None:
            batch.step()
            found |= batch.pop_finished()
        completion, tops = found[0, 0], batch.tops[0, 0][: len(found[0, 0].tokens)]
        assert (1, 1) not in batch.tops
        sequence = torch.tensor([[*answer.prompt, *completion.tokens]])
        scores = MODEL(input_ids=sequence).logits[0, len(answer.prompt) - 1 : -1]
    assert len(tops) == len(completion.tokens)
    for position, (top, row) in enumerate(zip(tops, scores, strict=True)):
        early = torch.tensor([[position < 2]])
        logps = shape_logits(row[None], sampling, torch.tensor(ENDS), early).log_softmax(-1)[0]
        expected = [(token, logps[token].item()) for token in logps.argsort(descending=True)[:3].tolist()]
        assert [token for token, _ in top] == [token for token, _ in expected]
        assert [logp for _, logp in top] == pytest.approx([logp for _, logp in expected], abs=1e-9)


def test_aborting_frees_rows_and_memory() -> None:
    """Rows leave the batch at the next check, and the last one takes the cache with it."""
    endless = Answer((3, 4, 5), 0, Sampling(1.0, 40), ends=())
    with torch.no_grad(), prepare_for_sampling(MODEL, torch.float64):
        batch = build_sampler().start_batch(64)
        batch.schedule({(number, number): replace(endless, seed=number) for number in range(8)})
        batch.step()
        assert count_rows(batch) == 8
        batch.abort([(number, number) for number in range(6)])
        assert batch.pop_finished() == {}
        assert (count_rows(batch), batch.unfinished, len(batch.answers)) == (2, 2, 2)
        batch.step()
        batch.abort([(6, 6), (7, 7), (99, 99)])
        assert batch.running is None
        assert not batch.answers
        assert not batch.recorder.supports


def test_searching_stop_strings_reads_each_token_of_a_long_answer_a_few_times() -> None:
    stop, length, step = ("cdcd", "gh"), 4_000, 8
    read = list[int]()

    class Counting(Letters):
        def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
            read.append(len(tokens))
            return super().decode(tokens, skip_special_tokens)

    class Tokens:
        def __getitem__(self, place: tuple[int, slice]) -> torch.Tensor:
            found = whole[place[1]]
            read.append(len(found))
            return found

    whole = torch.full((length,), 4)
    whole[-4:] = torch.tensor([2, 3, 2, 3])
    rows: Any = SimpleNamespace(tokens=Tokens(), checked=[0])
    answer = Answer((3,), 0, Sampling(1.0, length, stop))
    lengths = range(step, length + 1, step)
    found = [find_stop(Counting(), rows, 0, count, answer) for count in lengths]
    assert found == [*[None] * (len(lengths) - 1), length]
    assert sum(read) <= 4 * length


def count_rows(batch: DecodingBatch) -> int:
    assert batch.running is not None
    return len(batch.running.cache.layers[0].keys)


@given(st.lists(answers.map(lambda answer: replace(answer, top=0, ends=None)), min_size=1, max_size=5), samplings)
@settings(max_examples=10)
def test_step_by_step_is_the_whole_call(asked: list[Answer], sampling: Sampling) -> None:
    """Bit by bit, also where two calls take turns."""
    batch = PromptBatch([answer.prompt for answer in asked], [[answer.seed, 3] for answer in asked], sampling)
    sampler = build_sampler()
    whole = sampler.generate(*batch)
    steps = [sampler.iterate([batch]), build_sampler().iterate([batch])]
    found = []
    with prepare_for_sampling(MODEL, torch.float64):
        while steps:
            for each in list(steps):
                try:
                    next(each)
                except StopIteration as end:
                    found.append(end.value)
                    steps.remove(each)
    assert found == [[whole], [whole]]
