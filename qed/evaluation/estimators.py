"""Compute pass@k and maj@k of a problem exactly, as averages over all subsets of k of its sampled answers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

# With more answers to a problem, the vote is computed over its first k answers instead of all subsets.
MAX_EXACT = 128
Counts = tuple[int, ...]


def list_budgets(count: int) -> list[int]:
    """Return the reported values of k for `count` answers per problem: 1, 2, 4, … and the count itself."""
    powers = [1 << power for power in range(count.bit_length()) if 1 << power <= count]
    return powers if powers[-1:] == [count] else [*powers, count]


def compute_pass_at_k(count: int, right: int, k: int) -> float:
    """Compute the chance that any of k answers is right: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    This is an unbiased estimate for k new samples, unlike 1 - (1 - c/n)^k.
    """
    return 1.0 - comb(count - right, k) / comb(count, k)


def compute_maj_at_k(clusters: Sequence[int], right: Sequence[bool], silent: int, k: int, split: bool = True) -> float:
    """Compute the chance that a vote of k answers is right, averaged over all subsets of k answers.

    Args:
        clusters: number of answers in each cluster of equal answers.
        right: whether each cluster is right.
        silent: number of answers without a final answer, which do not vote; a vote without voters counts as wrong.
        k: number of answers in a vote, at most all of them.
        split: split ties evenly; otherwise the first of the leading clusters wins.
    """
    if k == sum(clusters) + silent:
        return _share_win(clusters, right, split)
    total = 0.0
    for index, correct in enumerate(right):
        if correct:
            before, after = tuple(sorted(clusters[:index])), tuple(sorted(clusters[index + 1 :]))
            rivals = ((), tuple(sorted(before + after))) if split else (before, after)
            total += _compute_win_share(clusters[index], *rivals, silent, k, split)
    return total


def _share_win(clusters: Sequence[int], right: Sequence[bool], split: bool) -> float:
    """Return the share of the vote of all answers that right clusters win."""
    leading = max(clusters, default=0)
    leaders = [correct for size, correct in zip(clusters, right, strict=True) if size == leading]
    winners = leaders if split else leaders[:1]
    return sum(winners) / max(1, len(winners))


@lru_cache(maxsize=4096)
def _compute_win_share(own: int, stronger: Counts, others: Counts, silent: int, k: int, split: bool) -> float:
    """Compute the expected share of votes that a cluster of size `own` wins, summed over its number of votes.

    It loses ties to `stronger` clusters.
    """
    ways = sum(
        comb(own, votes) * _count_tie_shares(votes, stronger, others, silent, k, split)
        for votes in range(1, min(own, k) + 1)
    )
    return ways / comb(own + sum(stronger) + sum(others) + silent, k)


def _count_tie_shares(votes: int, stronger: Counts, others: Counts, silent: int, k: int, split: bool) -> float:
    """Count the ways to draw the other answers with no cluster above `votes`, each divided by the number of leaders.

    A dynamic program over the clusters with states (answers drawn, clusters that tie).
    """
    rest = k - votes
    ways = {(drawn, 0): comb(silent, drawn) for drawn in range(min(silent, rest) + 1)}
    for size, most in (*((size, votes - 1) for size in stronger), *((size, votes) for size in others)):
        grown: dict[tuple[int, int], int] = {}
        for (drawn, ties), count in ways.items():
            for more in range(min(size, most, rest - drawn) + 1):
                state = drawn + more, ties + (more == votes and split)
                grown[state] = grown.get(state, 0) + count * comb(size, more)
        ways = grown
    return sum(count / (1 + ties) for (drawn, ties), count in ways.items() if drawn == rest)
