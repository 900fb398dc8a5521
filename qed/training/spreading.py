"""Distributes a step's micro-batches over the ranks, so that all compute about the same number of tokens."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from qed.training.batch import Batch
from qed.training.packing import list_prompts
from qed.training.parallel import Parallel, deal_parts

Cut = Callable[[Batch, int], list[list[int]]]  # returns the rows of each micro-batch within a token budget
Cost = Callable[[Sequence[int]], int]  # returns the tokens that a micro-batch of these rows computes
# A smaller budget makes more and smaller parts, which are easier to balance, but a shared prompt that several ranks
# compute may cost more than they save. So these shares of an even budget are tried, and the full budget.
SHARES = (1.0, 1.03, 1.06, 1.1, 1.15, 0.5, 0.52, 0.55, 0.34, 0.36, 0.25, 0.27)


def spread_microbatches(
    batch: Batch, cut: Cut, budget: int, parallel: Parallel, packed: bool = False
) -> list[list[int]]:
    """Return the rows of each micro-batch of this rank.

    A single process uses `cut` with the full budget. Several ranks get micro-batches of at most the budget and about
    their share of the step's tokens, the largest first, such that the rank with the most work has as little as
    possible. If models are sharded, every rank gets the same number, some of them empty.

    Every rank computes the same cuts, without communication.

    Args:
        batch: rows of the step; the same on every rank.
        cut: cuts the batch.
        budget: largest number of tokens of a micro-batch.
        parallel: the ranks.
        packed: whether rows are computed without padding, and shared prompts once.
    """
    if parallel.world == 1:
        return cut(batch, budget)
    cost = count_packed_tokens(batch) if packed else _count_padded(batch)
    parts, dealt = _choose_cut(batch, cut, budget, cost, parallel.world)
    own = [parts[number] for number in dealt[parallel.rank]]
    rounds = max(map(len, dealt))
    return own + [[] for _ in range(rounds - len(own))] if parallel.shards else own


def select_rows(batch: Batch, rows: list[int], together: int) -> Batch:
    """Return the rows of a micro-batch; without any, a blank one of `together` rows, whose loss is 0."""
    if rows:
        return batch.select(rows)
    part = batch.select(list(range(together)))
    return _blank(part)


def _blank(part: Batch) -> Batch:
    """Return the rows without trained tokens, also in the teacher's batch."""
    teacher = None if part.teacher is None else _blank(part.teacher)
    return replace(part, mask=torch.zeros_like(part.mask), weights=torch.zeros_like(part.weights), teacher=teacher)


def count_packed_tokens(batch: Batch) -> Cost:
    """Return a function that counts the tokens of a packed micro-batch, each shared prompt only once."""
    lengths: list[int] = batch.attention.sum(1).tolist()
    prompts = list_prompts(batch)

    def count(rows: Sequence[int]) -> int:
        repeated = Counter(prompts[row] for row in rows)
        return sum(lengths[row] for row in rows) - sum(prompt.length * (n - 1) for prompt, n in repeated.items())

    return count


def _count_padded(batch: Batch) -> Cost:
    """Return a function that counts the tokens of rows padded to the longest of them."""
    lengths: list[int] = batch.attention.sum(1).tolist()
    return lambda rows: len(rows) * max((lengths[row] for row in rows), default=0)


def _choose_cut(batch: Batch, cut: Cut, budget: int, cost: Cost, world: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the cut with the least work for the busiest rank, and the numbers of each rank's parts.

    Of equally good cuts, choose the one with the fewest micro-batches.
    """
    rows = range(len(batch))
    # A single row has no padding, and together they compute shared prompts once.
    even = math.ceil(min(cost(rows), sum(cost([row]) for row in rows)) / world)
    budgets = dict.fromkeys([*(max(1, min(budget, math.ceil(share * even))) for share in SHARES), budget])
    best: tuple[tuple[float, int], list[list[int]], list[list[int]]] | None = None
    for tried in budgets:
        parts = cut(batch, tried)
        costs = [float(cost(rows)) for rows in parts]
        dealt = deal_parts(costs, world)
        busiest = max(sum(costs[number] for number in numbers) for numbers in dealt)
        key = (math.ceil(20 * busiest / even) / 20, len(parts))  # a difference below 5 % does not justify more parts
        if best is None or key < best[0]:
            best = (key, parts, dealt)
    assert best is not None
    return best[1], best[2]
