"""pass@k and maj@k of one problem, exactly: what so many answers drawn from those that were sampled would give on
average."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import comb

# Beyond so many answers to a problem the vote is counted over its first k ones instead of over all subsets.
MOST_EXACT = 128
Counts = tuple[int, ...]


def list_budgets(count: int) -> list[int]:
    """The k that are reported for so many answers to a problem: 1, 2, 4, … and the count itself."""
    powers = [1 << power for power in range(count.bit_length()) if 1 << power <= count]
    return powers if powers[-1:] == [count] else [*powers, count]


def compute_pass_at_k(count: int, right: int, k: int) -> float:
    """The chance that at least one of k answers is right: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, arXiv 2107.03374).

    Unbiased for k answers drawn anew, unlike 1 - (1 - c/n)^k.
    """
    return 1.0 - comb(count - right, k) / comb(count, k)


def compute_maj_at_k(clusters: Sequence[int], right: Sequence[bool], silent: int, k: int) -> float:
    """The chance that a vote of k answers is right, ties split evenly, averaged over all subsets of k answers.

    Args:
        clusters: how many answers say the same, for each thing that is said.
        right: whether that thing is right.
        silent: answers that say nothing; they do not vote. Where nobody votes, nothing right was said.
        k: answers that vote, at most all of them.
    """
    found = 0.0
    for place, correct in enumerate(right):
        if correct:
            others = sorted(size for other, size in enumerate(clusters) if other != place)
            found += _compute_win_share(clusters[place], tuple(others), silent, k)
    return found


@lru_cache(maxsize=4096)
def _compute_win_share(own: int, others: Counts, silent: int, k: int) -> float:
    """The expected share of a vote that a cluster wins: over how many of the k answers are its own."""
    ways = sum(comb(own, votes) * _count_tie_shares(votes, others, silent, k) for votes in range(1, min(own, k) + 1))
    return ways / comb(own + sum(others) + silent, k)


def _count_tie_shares(votes: int, others: Counts, silent: int, k: int) -> float:
    """The ways to draw the remaining answers in which no other cluster has more votes, each divided by those that lead.

    The ways are counted by (answers drawn, clusters that tie), one cluster after another.
    """
    rest = k - votes
    ways = {(drawn, 0): comb(silent, drawn) for drawn in range(min(silent, rest) + 1)}
    for size in others:
        grown: dict[tuple[int, int], int] = {}
        for (drawn, ties), count in ways.items():
            for more in range(min(size, votes, rest - drawn) + 1):
                state = drawn + more, ties + (more == votes)
                grown[state] = grown.get(state, 0) + count * comb(size, more)
        ways = grown
    return sum(count / (1 + ties) for (drawn, ties), count in ways.items() if drawn == rest)
