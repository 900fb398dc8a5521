"""Search the answers of one step for those that a person should read: the rules of the page of suspects.

All rules read the columns of a step's index, never the answers themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qed.guards.redaction import redact
from qed.report.numbers import read_number
from qed.runs.step_index import StepIndex
from qed.types import UNGRADED
from qed.viewer.outcomes import leave_out_ungraded, read_count

MAX_ITEMS = 200  # of one kind
WRITTEN = ("demonstration", "expert")  # sources of texts that the policy did not write
OWN = ("policy", "greedy")  # sources of answers that the policy wrote in this step
MIN_REPETITION = 0.4  # share of a text's 8-grams that occurred earlier in it; worked solutions stay below a quarter
MIN_RARE = 0.1  # share of tokens with a probability below 1 %; fluent text at temperature 1 has about one in a hundred
MIN_TOKENS = 24  # in a shorter text a few rare or repeated tokens mean nothing, and texts may be equal by chance
UNREAD = ("extract", "unknown", "bound")  # the grader's tiers of answers in which it found nothing to compare


@dataclass(frozen=True)
class Answer:
    """An answer that a rule flagged, or a whole group if `answer` is None; `value` is what the rule measured."""

    step: int
    group: int
    answer: int | None
    value: float
    question: str
    detail: str

    def describe(self) -> dict[str, Any]:
        """Return the fields as JSON, without secrets."""
        return {**self.__dict__, "question": redact(self.question), "detail": redact(self.detail)}


@dataclass
class Flagged:
    """The answers of a kind: how many there are, and the most notable ones."""

    count: int = 0
    answers: list[Answer] = field(default_factory=list)

    def extend(self, answers: Sequence[Answer], count: int | None = None) -> None:
        """Add answers; at most MAX_ITEMS with the largest values are kept, later steps first."""
        self.count += len(answers) if count is None else count
        ordered = sorted([*self.answers, *answers], key=lambda each: (-each.value, -each.step))
        self.answers = ordered[:MAX_ITEMS]


@dataclass(frozen=True)
class Texts:
    """What is needed to find near duplicates among a step's texts of MIN_TOKENS tokens or more."""

    step: int
    ids: list[str]  # of the problem of each group
    questions: list[str]  # of each group
    hashes: NDArray[np.uint32]  # [texts, 8] minhash values
    groups: NDArray[np.int32]
    answers: NDArray[np.int32]
    is_own: NDArray[np.bool_]
    is_written: NDArray[np.bool_]  # a demonstration's or an expert's text


@dataclass(frozen=True)
class Inspected:
    """What the rules found in a step."""

    step: int
    n_answers: int
    flagged: dict[str, Flagged]
    texts: Texts


class Rows:
    """The answers of a step's index as rows with names, and their groups."""

    def __init__(self, index: StepIndex, step: int) -> None:
        self.groups, self.columns, self.step = index.groups, leave_out_ungraded(index.columns), step
        self.count = len(index.columns.get("group", ()))
        sources = self.read("source")
        self.own = [row for row in range(self.count) if sources[row] in (*OWN, None)]

    def read(self, name: str) -> Sequence[Any]:
        """Return a column; None for each answer if an older file lacks it."""
        found = self.columns.get(name)
        return found if found is not None and len(found) == self.count else [None] * self.count

    def flag(self, row: int, value: float, detail: str) -> Answer:
        """Build the item of an answer."""
        group, answer = int(self.columns["group"][row]), int(self.columns["answer"][row])
        return Answer(self.step, group, answer, value, self.read_question(group), detail)

    def read_question(self, group: int) -> str:
        """Return the beginning of a group's question."""
        return str(self.groups[group].get("question") or "")[:160]


def _find_unanswered(rows: Rows) -> Iterator[Answer]:
    kept, right, tiers, found = (rows.read(name) for name in ("format_ok", "correct", "tier", "extracted"))
    for row in rows.own:
        if kept[row] and not right[row]:
            silent = not str(found[row] or "").strip()
            if silent or tiers[row] in UNREAD:
                yield rows.flag(row, 1.0, "has no final answer" if silent else f"read as {found[row]}")


def _find_unearned(rows: Rows) -> Iterator[Answer]:
    rewards = [read_number(value) for value in rows.read("reward")]
    right, kept = rows.read("correct"), rows.read("format_ok")
    earned = [(reward, bool(right[row])) for row in rows.own if (reward := rewards[row]) is not None]
    if not earned or min(earned)[0] == max(earned)[0]:
        return
    low, high = min(earned)[0], max(earned)[0]
    of_right = [reward for reward, is_right in earned if is_right]
    limits = [low + (high - low) / 2, *([fmean(of_right)] if of_right else [])]
    for row in rows.own:
        reward = rewards[row]
        if reward is not None and not right[row] and right[row] is not None and reward > min(limits):
            usual = f"; right answers earn {limits[1]:.3g} on average" if of_right else ""
            form = "" if kept[row] is None else f"; format {'kept' if kept[row] else 'broken'}"
            yield rows.flag(row, reward, f"wrong, but earns {reward:.3g}{usual}{form}")


def _find_above(name: str, limit: float, words: str) -> Callable[[Rows], Iterator[Answer]]:
    def find(rows: Rows) -> Iterator[Answer]:
        values, lengths = rows.read(name), rows.read("n_tokens")
        for row in rows.own:
            value = read_number(values[row])
            if value is not None and value >= limit and (read_number(lengths[row]) or 0) >= MIN_TOKENS:
                yield rows.flag(row, value, f"{value:.0%} {words}")

    return find


def _find_truncated(rows: Rows) -> Iterator[Answer]:
    reasons, lengths = rows.read("stop_reason"), rows.read("n_tokens")
    for row in rows.own:
        if reasons[row] == "length":
            count = read_number(lengths[row]) or 0.0
            yield rows.flag(row, count, f"cut off after {count:,.0f} tokens")


def _find_ungraded(rows: Rows) -> Iterator[Answer]:
    tiers = rows.read("tier")
    for row in rows.own:
        if tiers[row] in UNGRADED:
            yield rows.flag(row, 1.0, "the grader ran out of time" if tiers[row] == "timeout" else "the grader failed")


def _find_equal_groups(rows: Rows) -> Iterator[Answer]:
    numbers, tiers = rows.read("group"), rows.read("tier")
    failed = Counter(numbers[row] for row in range(rows.count) if tiers[row] in UNGRADED)
    for number, group in enumerate(rows.groups):
        low, high = (read_number(group.get(name)) for name in ("reward_min", "reward_max"))
        n = read_count(group.get("n"))
        right = read_count(group.get("n_graded_right", group.get("n_right")))
        if n > 1 and low is not None and low == high:
            count = n - failed[number]
            which = "all right" if right == count else "none right" if right == 0 else f"{right} of {count} right"
            graded = " that could be graded" if failed[number] else ""
            answers = "the only answer" if count == 1 else f"all {count} answers"
            detail = f"{answers}{graded} earn{'s' if count == 1 else ''} {low:.3g}; {which}"
            yield Answer(rows.step, number, None, float(count), rows.read_question(number), detail)


RULES: dict[str, Callable[[Rows], Iterator[Answer]]] = {
    "format_without_answer": _find_unanswered,
    "reward_without_correct": _find_unearned,
    "repetition": _find_above("repetition", MIN_REPETITION, "of its runs of 8 tokens occurred earlier in it"),
    "garbled": _find_above("rare", MIN_RARE, "of its tokens had a probability below 1 %"),
    "zero_spread": _find_equal_groups,
    "truncated": _find_truncated,
    "grader_timeout": _find_ungraded,
}


def inspect_step(index: StepIndex, step: int) -> Inspected:
    """Apply every rule to the answers of a step."""
    rows = Rows(index, step)
    flagged = {kind: Flagged() for kind in RULES}
    for kind, find in RULES.items():
        flagged[kind].extend(list(find(rows)))
    return Inspected(step, rows.count, flagged, _collect_texts(rows))


def _is_hashed(values: Any) -> bool:
    """Return whether a cell holds 8 minhash values."""
    return isinstance(values, list) and len(values) == 8 and all(type(v) is int and 0 <= v < 1 << 32 for v in values)


def _collect_texts(rows: Rows) -> Texts:
    """Collect the minhash values of all texts that are long enough.

    An answer that begins with a part of a demonstration is left out, because it shares that part with it.
    """
    hashes, lengths, given, sources = (rows.read(name) for name in ("shingles", "n_tokens", "given", "source"))
    kept = [
        row
        for row in range(rows.count)
        if _is_hashed(hashes[row]) and (read_number(lengths[row]) or 0) >= MIN_TOKENS
        if sources[row] not in OWN or not given[row]
    ]
    return Texts(
        step=rows.step,
        ids=[str(group.get("id")) for group in rows.groups],
        questions=[rows.read_question(number) for number in range(len(rows.groups))],
        hashes=np.array([hashes[row] for row in kept], dtype=np.uint32).reshape(len(kept), 8),
        groups=np.array([rows.columns["group"][row] for row in kept], dtype=np.int32),
        answers=np.array([rows.columns["answer"][row] for row in kept], dtype=np.int32),
        is_own=np.array([sources[row] in (*OWN, None) for row in kept], dtype=np.bool_),
        is_written=np.array([sources[row] in WRITTEN for row in kept], dtype=np.bool_),
    )
