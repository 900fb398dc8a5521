"""Cluster the answers to a problem by meaning, and compute majority votes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from qed.evaluation.estimators import MAX_EXACT, compute_maj_at_k
from qed.grading.equal import equal
from qed.grading.policy import MATH

# Votes are compared without the symbolic tier, whose processes are too slow for so many comparisons.
CHEAP = replace(MATH, symbolic=False)
TIES = ("split", "first", "lowest")


@dataclass(frozen=True)
class Vote:
    """The final answer of one sample, or None if there is none, and whether it is correct."""

    answer: str | None
    correct: bool


@dataclass(frozen=True)
class Cluster:
    """Answers equal to the most frequent one among them; the cluster is correct if that one is.

    `first` is the index of the first sample with one of its answers.
    """

    answer: str
    size: int
    correct: bool
    first: int


def cluster_votes(votes: Sequence[Vote]) -> list[Cluster]:
    """Cluster answers by meaning, in an order that does not depend on the order of the votes.

    Equality of answers is not transitive: 5 equals 5 m and 5 cm, which differ. So an answer is compared only with the
    representative of each cluster, its most frequent answer, and joins the first cluster that matches.
    """
    return list(_cluster(tuple(votes)))


@lru_cache(maxsize=8)  # called with several k in turn for the same answers, and many pairs take seconds
def _cluster(votes: tuple[Vote, ...]) -> tuple[Cluster, ...]:
    numbers: dict[str, list[int]] = {}
    for number, vote in enumerate(votes):
        if vote.answer is not None and vote.answer.strip():
            numbers.setdefault(vote.answer.strip(), []).append(number)
    members: dict[str, list[int]] = {}
    for text in sorted(numbers, key=lambda text: (-len(numbers[text]), text)):
        same = next((answer for answer in members if equal(answer, text, CHEAP)), text)
        members.setdefault(same, []).extend(numbers[text])
    return tuple(
        Cluster(
            answer,
            len(own),
            2 * sum(votes[number].correct for number in numbers[answer]) > len(numbers[answer]),
            min(own),
        )
        for answer, own in members.items()
    )


def vote_majority(votes: Sequence[Vote], k: int, ties: str = "split") -> float:
    """Compute maj@k of a problem over all subsets of k answers, or over the first k if there are very many answers.

    Args:
        votes: the answers to the problem.
        k: number of answers in a vote.
        ties: `split` gives each leading answer an equal share; `lowest` takes the lowest number, or without numbers the
            alphabetically first text; `first` takes the answer given first, and only the first k answers vote.

    Raises:
        ValueError: there is no such rule.
    """
    if ties not in TIES:
        raise ValueError(f"{ties!r} is not a tie rule: use {', '.join(TIES)}")
    considered = votes if len(votes) <= MAX_EXACT and ties != "first" else votes[:k]
    clusters = cluster_votes(considered)
    if ties != "split":
        clusters.sort(key=_get_first if ties == "first" else _rank)
    silent = len(considered) - sum(each.size for each in clusters)
    sizes, right = [each.size for each in clusters], [each.correct for each in clusters]
    return compute_maj_at_k(sizes, right, silent, k, split=ties == "split")


def _get_first(cluster: Cluster) -> int:
    return cluster.first


def _rank(cluster: Cluster) -> tuple[float, str]:
    """Return a sort key: numbers first, in ascending order, then texts."""
    try:
        value = float(cluster.answer)
    except ValueError:
        value = math.inf
    return (math.inf if math.isnan(value) else value), cluster.answer
