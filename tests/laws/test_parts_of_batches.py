"""Batches that several servers or ranks sample: each answer once, by one of them, and all together as by one alone."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import VOCABULARY, make_model
from threaded import run_threads

from qed.rollout.shared import SharedSampler
from qed.sampling.base import PromptBatch, Sampling, generate_batches
from qed.sampling.native.sampler import NativeSampler
from qed.sampling.parts import join_parts, list_places, split_places, take_part
from qed.training.parallel import Parallel
from qed.types import Completion

GREEDY, SAMPLED = Sampling(0.0, 6), Sampling(1.0, 9)


@st.composite
def batches(draw: st.DrawFn) -> list[PromptBatch]:
    found = []
    for sampling in draw(st.lists(st.sampled_from([GREEDY, SAMPLED]), max_size=3)):
        count = draw(st.integers(0, 4))
        prompts = [[draw(st.integers(2, VOCABULARY - 1)) for _ in range(3)] for _ in range(count)]
        seeds = [draw(st.lists(st.integers(0, 99), max_size=3)) for _ in range(count)]
        lengths = draw(st.sampled_from([[], [1] * count]))
        found.append(PromptBatch(prompts, seeds, sampling, lengths))
    return found


def answer(batch: PromptBatch) -> list[list[Completion]]:
    """Completions that say what was asked."""
    return [
        [Completion([*prompt, seed, batch.sampling.max_tokens, *given], [], "stop") for seed in own]
        for prompt, own, given in zip(
            batch.prompts,
            batch.seeds,
            ([[one] for one in batch.prefix_lengths] or [[]] * len(batch.prompts)),
            strict=True,
        )
    ]


@given(batches(), st.integers(1, 5))
def test_parts_join_to_the_whole(whole: list[PromptBatch], count: int) -> None:
    places = list_places(whole)
    parts = split_places(places, count)
    assert len(parts) == count
    assert sorted(chain.from_iterable(parts)) == places
    sizes = list(map(len, parts))
    assert max(sizes) - min(sizes) <= 1
    completions = [[one for each in take_part(whole, part) for row in answer(each) for one in row] for part in parts]
    assert join_parts(whole, parts, completions) == [answer(batch) for batch in whole]


def test_a_part_has_all_answers_to_its_prompts() -> None:
    """So that a prompt of two batches is computed by one server."""
    prompts, seeds = [[number] for number in range(4)], [[number] for number in range(4)]
    whole = [PromptBatch(prompts, seeds, GREEDY), PromptBatch(prompts, seeds, SAMPLED)]
    for part, own in zip(split_places(list_places(whole), 2), ([[0], [1]], [[2], [3]]), strict=True):
        assert [(each.prompts, each.sampling) for each in take_part(whole, part)] == [(own, GREEDY), (own, SAMPLED)]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_sample_what_one_process_samples(world: int) -> None:
    """With the weights gathered once, also where a rank has nothing to do."""
    model = make_model(initializer_range=0.5)
    prompts: list[Sequence[int]] = [[5, 6], [7], [8, 9, 10]]
    asked = [PromptBatch(prompts, [[1], [2], [3]], GREEDY), PromptBatch(prompts[:2], [[4, 5], [6]], SAMPLED)]
    expected = NativeSampler(model, None, (1,)).generate_batches(asked)
    gathered: list[int] = []

    def work(parallel: Parallel) -> list[Any]:
        sampler = SharedSampler(NativeSampler(model, None, (1,)), model, parallel)
        gather = parallel.gather_weights

        def note(*given: Any) -> Any:
            gathered.append(parallel.rank)
            return gather(*given)

        object.__setattr__(parallel, "gather_weights", note)
        found = generate_batches(sampler, asked)
        (alone,) = generate_batches(sampler, [PromptBatch(prompts[:1], [[4]], SAMPLED)])
        return [found, alone]

    for found, alone in run_threads(work, world):
        assert show(found) == show(expected)
        assert alone[0][0].tokens == expected[1][0][0].tokens
    assert sorted(gathered) == sorted([*range(world)] * 2)


def show(found: list[list[list[Completion]]]) -> list[Any]:
    return [[[(tuple(each.tokens), each.stop_reason) for each in row] for row in rows] for rows in found]
