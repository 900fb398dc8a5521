"""Cluster the answers to a problem by meaning, and compute majority votes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qed.evaluation.estimators import MAX_EXACT, compute_maj_at_k
from qed.grading.equal import equal
from qed.grading.policy import MATH

# Votes are compared without the symbolic tier, because its processes are too slow for many comparisons.
CHEAP = replace(MATH, symbolic=False)


@dataclass(frozen=True)
class Vote:
    """The final answer of one sample, or None if there is none, and whether it is correct."""

    answer: str | None
    correct: bool


@dataclass
class Cluster:
    """Answers with the same meaning; the cluster is correct if one of them is."""

    answer: str
    size: int = 0
    correct: bool = False


def cluster_votes(votes: Sequence[Vote]) -> list[Cluster]:
    """Cluster answers by meaning: equal strings first, then strings that the grader considers equal."""
    by_text: dict[str, Cluster] = {}
    clusters: list[Cluster] = []
    for vote in votes:
        if vote.answer is None or not vote.answer.strip():
            continue
        text = vote.answer.strip()
        if text not in by_text:
            same = next((cluster for cluster in clusters if equal(cluster.answer, text, CHEAP)), None)
            if same is None:
                same = Cluster(text)
                clusters.append(same)
            by_text[text] = same
        by_text[text].size += 1
        by_text[text].correct |= vote.correct
    return clusters


def vote_majority(votes: Sequence[Vote], k: int) -> float:
    """Compute maj@k of a problem over all subsets of k answers, or over the first k if there are very many answers."""
    considered = votes if len(votes) <= MAX_EXACT else votes[:k]
    clusters = cluster_votes(considered)
    silent = len(considered) - sum(each.size for each in clusters)
    return compute_maj_at_k([each.size for each in clusters], [each.correct for each in clusters], silent, k)
