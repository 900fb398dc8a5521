"""How a step is spread over the ranks: each row is computed once, whoever asks, and none has far more to do."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import make_rollout
from threaded import run_threads

from qed.config.ranks_settings import ParallelSettings
from qed.errors import QedError
from qed.training.batch import Batch, collate, cut_microbatches
from qed.training.packing import cut_packed_microbatches
from qed.training.parallel import Parallel, deal_parts
from qed.training.spreading import spread_microbatches

WORLDS = st.integers(1, 9)
CUTS = (cut_microbatches, cut_packed_microbatches)


@given(costs=st.lists(st.integers(1, 99), max_size=40), world=WORLDS)
def test_every_part_is_dealt_once_and_evenly(costs: list[int], world: int) -> None:
    dealt = deal_parts(costs, world)
    assert sorted(number for own in dealt for number in own) == list(range(len(costs)))
    rounds = math.ceil(len(costs) / world)
    assert all(len(own) <= rounds for own in dealt)
    work = [sum(costs[number] for number in own) for own in dealt]
    # The largest first, to the rank with the least: where a rank has a place left, it has no part less than it could.
    free = [sum_ for sum_, own in zip(work, dealt, strict=True) if len(own) < rounds]
    assert max(work) - min(free, default=max(work)) <= max(costs, default=0)
    for own in dealt:
        assert [costs[number] for number in own] == sorted((costs[number] for number in own), reverse=True)


def make_batch(seed: int, bundles: int, together: int) -> Batch:
    source = random.Random(seed)
    rollouts = [make_rollout(source, longest=source.choice([3, 9, 30])) for _ in range(bundles * together)]
    for rollout in rollouts[: len(rollouts) // 2]:
        rollout.prompt = (3, 1, 4, 1, 5)
    return collate(rollouts)


@given(
    seed=st.integers(0, 10**6),
    bundles=st.integers(1, 12),
    together=st.sampled_from([1, 2]),
    budget=st.integers(1, 400),
    world=WORLDS,
    shard=st.sampled_from(["none", "full"]),
    cut=st.sampled_from(CUTS),
)
def test_every_row_is_computed_once(
    seed: int, bundles: int, together: int, budget: int, world: int, shard: str, cut: object
) -> None:
    batch = make_batch(seed, bundles, together)
    lengths = batch.attention.sum(1).tolist()
    settings = ParallelSettings(shard=shard)  # type: ignore[arg-type]
    split = partial(cut, together=together)  # type: ignore[operator]
    spread = [
        spread_microbatches(batch, split, budget, Parallel(rank, world, settings=settings)) for rank in range(world)
    ]
    parts = [part for own in spread for part in own]
    assert sorted(row for part in parts for row in part) == list(range(len(batch)))
    for part in parts:
        # Rows that belong together stay together.
        assert {row // together for row in part} == {row // together for row in part if row % together == 0}
        padded = len(part) * max((lengths[row] for row in part), default=0)
        computed = sum(lengths[row] for row in part) if cut is cut_packed_microbatches else padded
        assert computed <= budget or len(part) <= together or cut is cut_packed_microbatches
    # A sharded model is run equally often everywhere, on nothing if need be.
    if shard == "full":
        assert len({len(own) for own in spread}) == 1
    else:
        assert world == 1 or all(all(own) for own in spread)


@given(seed=st.integers(0, 10**6), world=st.integers(2, 4))
def test_no_rank_has_far_more_to_do(seed: int, world: int) -> None:
    """With many rows the busiest rank has at most a longest row, and a tenth, more than its share, padding included."""
    batch = make_batch(seed, 16 * world, 1)
    lengths = batch.attention.sum(1).tolist()
    spread = [spread_microbatches(batch, cut_microbatches, 10**4, Parallel(rank, world)) for rank in range(world)]
    work = [sum(len(part) * max(lengths[row] for row in part) for part in own if part) for own in spread]
    assert max(work) <= 1.1 * sum(work) / world + max(lengths)


@given(count=st.integers(0, 40), world=WORLDS)
def test_a_sequence_is_split_into_its_items_in_order(count: int, world: int) -> None:
    parts = [Parallel(rank, world).split(range(count)) for rank in range(world)]
    assert [item for part in parts for item in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("world", [1, 2, 5])
def test_what_ranks_compute_of_a_sequence_is_joined_in_order(world: int) -> None:
    def square(parallel: Parallel) -> list[int]:
        return parallel.map_split(lambda items: [item**2 for item in items], range(7))

    assert run_threads(square, world) == [[0, 1, 4, 9, 16, 25, 36]] * world


def test_an_error_of_one_rank_is_raised_on_all() -> None:
    def fail(items: object) -> list[int]:
        raise ZeroDivisionError("of rank 1")

    def work(parallel: Parallel) -> str:
        try:
            parallel.map_split(fail if parallel.rank == 1 else lambda items: [0], range(4))
        except (QedError, ZeroDivisionError) as error:
            return f"{type(error).__name__}: {error}"
        return ""

    told = "QedError: Rank 1 failed: ZeroDivisionError: of rank 1. Its log has the traceback."
    assert run_threads(work, 3) == [told, "ZeroDivisionError: of rank 1", told]


def test_metrics_have_the_same_bits_on_all_ranks() -> None:
    """Sums are added up in the order of the ranks, and of maxima the greatest counts."""

    def work(parallel: Parallel) -> dict[str, object]:
        own: dict[str, float] = {"loss": 0.1 * (parallel.rank + 1), "ratio_max": float(-parallel.rank)}
        return parallel.sum_metrics(own | ({"rare": 2.0} if parallel.rank == 1 else {}))  # type: ignore[return-value]

    assert run_threads(work, 3) == [{"loss": 0.1 + 0.2 + 0.1 * 3, "ratio_max": 0.0, "rare": 2.0}] * 3
