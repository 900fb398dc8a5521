"""Draw a random subset of a benchmark, stratified by source, subject and level."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from qed.randomness import draw_uniform
from qed.types import Problem

STRATA = ("source", "subject", "level")  # columns of a problem's meta, outermost first


def draw_subset(problems: Sequence[Problem], count: int, seed: int) -> tuple[list[Problem], str]:
    """Draw problems without replacement, stratified by the columns of `STRATA` that vary.

    The outermost strata get proportional shares, rounded by the largest-remainder method, so that none with a fair
    share is left out. Within each, problems are ordered by the inner strata and then at random, and every m-th is taken
    from a random start (systematic sampling, Madow and Madow 1944).

    Args:
        problems: the n problems of the benchmark.
        count: number to draw; 0 or at least n keeps all.
        seed: seed of the draw, which depends on the problems' ids but not on their order.

    Returns:
        the problems in their order, and a description of the subset; "" if all are kept.
    """
    total = len(problems)
    if not 0 < count < total:
        return list(problems), ""
    names = [name for name in STRATA if len({str(problem.meta.get(name)) for problem in problems}) > 1]
    chosen: set[int] = set()
    strata: dict[str, list[int]] = {}
    for index in _sort_by_strata(problems, names, seed):
        strata.setdefault(str(problems[index].meta.get(names[0])) if names else "", []).append(index)
    shares = _round_shares([len(own) * count / total for own in strata.values()], count)
    for (name, own), share in zip(strata.items(), shares, strict=True):
        start = draw_uniform(seed, "subset", total, count, name)
        # Guard against rounding: the last index must stay below the size.
        chosen |= {own[min(len(own) - 1, int((number + start) * len(own) / share))] for number in range(share)}
    by = f", stratified by {_join(names)}" if names else ""
    told = f"{count:,} of {total:,} problems, drawn by seed {seed}{by}"
    return [problem for index, problem in enumerate(problems) if index in chosen], told


def _round_shares(shares: Sequence[float], count: int) -> list[int]:
    """Round shares to integers that sum to `count`, by the largest-remainder method."""
    whole = [int(share) for share in shares]
    order = sorted(range(len(shares)), key=lambda index: whole[index] - shares[index])
    for index in order[: count - sum(whole)]:
        whole[index] += 1
    return whole


def _sort_by_strata(problems: Sequence[Problem], names: Sequence[str], seed: int) -> list[int]:
    """Return the indices sorted by strata, in random order within them.

    Every other stratum is sorted in reverse inside, so that neighbours across a boundary are similar.
    """

    def sort(indices: list[int], names: Sequence[str]) -> list[int]:
        if not names:
            return sorted(indices, key=lambda index: draw_uniform(seed, "subset", problems[index].id))

        def read(index: int) -> tuple[bool, Any]:
            value = problems[index].meta.get(names[0])
            is_number = isinstance(value, int | float)
            return (False, value) if is_number else (True, str(value))

        strata = [list(own) for _, own in groupby(sorted(indices, key=read), key=read)]
        inner = [sort(own, names[1:]) for own in strata]
        return [index for number, own in enumerate(inner) for index in (own[::-1] if number % 2 else own)]

    return sort(list(range(len(problems))), names)


def _join(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
