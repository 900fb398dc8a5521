"""Spreads the micro-batches of a step over the ranks, so that all have about the same number of tokens to compute."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from qed.training.batch import Batch
from qed.training.parallel import Parallel, deal_parts

Cut = Callable[[Batch, int], list[list[int]]]  # the rows of each micro-batch of at most so many tokens
# A smaller budget makes more and smaller parts, which are easier to balance; these shares of an even one are tried.
SHARES = (1.0, 1.06, 1.15, 0.5, 0.55, 0.34, 0.25)


def spread_microbatches(batch: Batch, cut: Cut, budget: int, parallel: Parallel) -> list[list[int]]:
    """Return the rows of each micro-batch of this rank.

    A single process gets those of `cut` with the whole budget. Several ranks get micro-batches of at most the budget
    and at most about their share of the step's tokens, the largest first, and such that the rank with the most work has
    as little as possible. Where models are sharded, every rank gets equally many, some of them empty.

    Every rank computes the same cuts, without communication.

    Args:
        batch: the rows of the step; the same on every rank.
        cut: cuts it.
        budget: the most tokens of a micro-batch.
        parallel: the ranks.
    """
    if parallel.world == 1:
        return cut(batch, budget)
    lengths = batch.attention.sum(1).tolist()
    parts, dealt = _choose_cut(batch, cut, budget, lengths, parallel.world)
    own = [parts[number] for number in dealt[parallel.rank]]
    rounds = max(map(len, dealt))
    return own + [[] for _ in range(rounds - len(own))] if parallel.shards else own


def select_rows(batch: Batch, rows: list[int], together: int) -> Batch:
    """Return the rows of a micro-batch; without any a blank one of `together` rows, whose loss is 0."""
    if rows:
        return batch.select(rows)
    part = batch.select(list(range(together)))
    return replace(part, mask=torch.zeros_like(part.mask), weights=torch.zeros_like(part.weights))


def _choose_cut(
    batch: Batch, cut: Cut, budget: int, lengths: Sequence[int], world: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the cut with the least work for the busiest rank, and the numbers of each rank's parts.

    Of equally good cuts the one with the fewest micro-batches wins.
    """
    even = math.ceil(sum(lengths) / world)
    budgets = dict.fromkeys(max(1, min(budget, math.ceil(share * even))) for share in SHARES)
    best: tuple[tuple[float, int], list[list[int]], list[list[int]]] | None = None
    for tried in budgets:
        parts = cut(batch, tried)
        costs = [float(sum(lengths[row] for row in rows)) for rows in parts]
        dealt = deal_parts(costs, world)
        busiest = max(sum(costs[number] for number in numbers) for numbers in dealt)
        key = (math.ceil(20 * busiest / even) / 20, len(parts))  # a difference below 5 % is no reason for more parts
        if best is None or key < best[0]:
            best = (key, parts, dealt)
    assert best is not None
    return best[1], best[2]
