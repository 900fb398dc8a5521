"""Find answers that nearly equal a demonstration, or an answer to another problem.

A text has 8 minhash values. Two texts are near duplicates if at least 7 of them are equal, which means that they share
about nine in ten of their 5-grams of tokens. With 7 of 8 equal, the first four or the last four are all equal; so texts
are sorted into buckets by all values and by each half, and each text is compared only with a few of its buckets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qed.viewer.inspecting import MAX_ITEMS, Answer, Flagged, Texts

MIN_EQUAL = 7  # of 8
PARTS = (slice(0, 8), slice(0, 4), slice(4, 8))
# Random factors that hash a bucket's values to one number, modulo 2^64. A collision merges two buckets, which is
# harmless because texts are compared anyway.
FACTORS = np.random.default_rng(0).integers(0, 1 << 63, 8, dtype=np.int64)
NOBODY = -1
Numbers = NDArray[np.int64]


def find_duplicates(steps: Sequence[Texts]) -> Flagged:
    """Flag the policy's answers that nearly equal a demonstration or an answer to another problem in these steps."""
    flagged = Flagged()
    if not any(len(texts.hashes) for texts in steps):
        return flagged
    hashes = np.concatenate([texts.hashes for texts in steps]).astype(np.int64)
    problems = _number_problems(steps)
    is_written = np.concatenate([texts.is_written for texts in steps])
    is_own = np.concatenate([texts.is_own for texts in steps])
    partners = _find_partners(hashes, problems, is_written)
    found = np.flatnonzero(is_own & (partners != NOBODY))
    begins = np.cumsum([0, *(len(texts.hashes) for texts in steps)])
    equal = (hashes[found] == hashes[partners[found]]).sum(axis=1)
    # The most notable first: copies of demonstrations, then the most similar, then the latest.
    order = np.lexsort((-found, -equal, ~is_written[partners[found]]))[:MAX_ITEMS]
    answers = [_describe(steps, begins, int(found[at]), int(partners[found[at]]), int(equal[at])) for at in order]
    flagged.count, flagged.answers = len(found), answers
    return flagged


def _number_problems(steps: Sequence[Texts]) -> Numbers:
    """Return for each text the number of its problem, the same in all steps."""
    known: dict[str, int] = {}
    parts = []
    for texts in steps:
        numbers = np.array([known.setdefault(name, len(known)) for name in texts.ids], dtype=np.int64)
        parts.append(numbers[texts.groups])
    return np.concatenate(parts)


def _find_partners(hashes: Numbers, problems: Numbers, is_written: NDArray[np.bool_]) -> Numbers:
    """Return for each text the number of a near duplicate: a demonstration if there is one, or NOBODY."""
    partners = np.full(len(hashes), NOBODY)
    written = np.flatnonzero(is_written)
    for part in PARTS:
        buckets = np.unique(hashes[:, part] @ FACTORS[part], return_inverse=True)[1].reshape(-1)
        everyone = np.arange(len(hashes))
        first = _choose_first(buckets, everyone)
        # The first text of a bucket represents its problem; the first one of another problem represents all others.
        others = everyone[problems != problems[first[buckets]]]
        other = _choose_first(buckets, others)
        different = np.where(problems == problems[first[buckets]], other[buckets], first[buckets])
        demonstration = _choose_first(buckets, written)[buckets]
        for candidates in (demonstration, different):
            asking = np.flatnonzero((partners == NOBODY) & (candidates != NOBODY) & (candidates != everyone))
            equal = (hashes[asking] == hashes[candidates[asking]]).sum(axis=1)
            close = asking[equal >= MIN_EQUAL]
            partners[close] = candidates[close]
    return partners


def _choose_first(buckets: Numbers, members: Numbers) -> Numbers:
    """Return the first of some texts in each bucket, or NOBODY."""
    chosen = np.full(int(buckets.max()) + 1, NOBODY)
    found, positions = np.unique(buckets[members], return_index=True)
    chosen[found] = members[positions]
    return chosen


def _describe(steps: Sequence[Texts], begins: Numbers, own: int, partner: int, equal: int) -> Answer:
    """Build the item of an answer and its near duplicate."""
    texts, row = _locate(steps, begins, own)
    other, at = _locate(steps, begins, partner)
    what = "the demonstration" if other.is_written[at] else "the answer to another problem"
    place = f"step {other.step}, group {other.groups[at]}, answer {other.answers[at]}"
    detail = f"{equal} of 8 minhash values equal those of {what} at {place}"
    group = int(texts.groups[row])
    return Answer(texts.step, group, int(texts.answers[row]), equal / 8, texts.questions[group], detail)


def _locate(steps: Sequence[Texts], begins: Numbers, number: int) -> tuple[Texts, int]:
    """Return the step of a text and its row in it."""
    step = int(np.searchsorted(begins, number, side="right")) - 1
    return steps[step], number - int(begins[step])
