"""What the answers to a problem say, put together where they mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from qed.evaluation.estimators import MOST_EXACT, compute_maj_at_k
from qed.grading.equal import equal
from qed.grading.policy import MATH

# Two votes are compared without the symbolic tier: a vote asks for many comparisons, and none is worth a process.
CHEAP = replace(MATH, symbolic=False)


@dataclass(frozen=True)
class Vote:
    """What one answer to a problem says; None for an answer in which none was found."""

    said: str | None
    correct: bool


@dataclass
class Cluster:
    """Answers that mean the same; it is right when one of them was called right."""

    said: str
    size: int = 0
    correct: bool = False


def cluster_votes(votes: Sequence[Vote]) -> list[Cluster]:
    """The answers by what they mean: equal strings first, then strings that the grader calls equal."""
    by_text: dict[str, Cluster] = {}
    found: list[Cluster] = []
    for vote in votes:
        if vote.said is None or not vote.said.strip():
            continue
        text = vote.said.strip()
        if text not in by_text:
            same = next((known for known in found if equal(known.said, text, CHEAP)), None)
            if same is None:
                same = Cluster(text)
                found.append(same)
            by_text[text] = same
        by_text[text].size += 1
        by_text[text].correct |= vote.correct
    return found


def vote_majority(votes: Sequence[Vote], k: int) -> float:
    """maj@k of one problem: over all subsets of k answers, or over the first k where there are very many answers."""
    considered = votes if len(votes) <= MOST_EXACT else votes[:k]
    clusters = cluster_votes(considered)
    silent = len(considered) - sum(each.size for each in clusters)
    return compute_maj_at_k([each.size for each in clusters], [each.correct for each in clusters], silent, k)
