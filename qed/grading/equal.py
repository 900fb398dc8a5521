"""Are two answers the same? By their normalised strings, by the typed values that a parser of our own reads, and where
neither can say, by math-verify in a child that may be killed.

No text is ever evaluated: an answer is read into numbers and expressions, and every size is bounded before any
arithmetic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from qed.grading import symbolic
from qed.grading.bounds import LONGEST_ANSWER, OverBoundError, UnreadableError, Work
from qed.grading.compare import Comparison
from qed.grading.exact import UndefinedError
from qed.grading.policy import MATH, Policy
from qed.grading.reading import Reading, read_answer, read_number_word
from qed.grading.scalars import list_names
from qed.grading.tree import Node, walk
from qed.grading.vocabulary import BIG

CACHED_GOLDS = 512
# The commonest answers need no parser. The lengths are bounded, so that the arithmetic is.
PLAIN = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?")
SPACED_UNIT = re.compile(r"[^A-Za-z\\]{1,30}(?:\\(?:times|cdot)[^A-Za-z\\]{1,20})? [mgshLJNVWC]")


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right, which tier decided, and why.

    Tiers: `string`, `typed` and `symbolic` decided by what the texts say; `bound` is an answer that asks for more work
    than a verdict may cost; `timeout` and `error` are the symbolic tier's failures; `unknown` is read by none of them.
    """

    correct: bool
    tier: str
    reason: str

    def __bool__(self) -> bool:
        return self.correct


SAME_STRING = Verdict(True, "string", "the same string")
SAME_TOKENS = Verdict(True, "string", "the same after normalisation")
NOTHING = Verdict(False, "string", "one of them is empty")
NO_TEXT = Verdict(False, "string", "one of them is no text")
TOO_LONG = Verdict(False, "bound", "longer than an answer may be")
SAME_VALUE = Verdict(True, "typed", "the same value")
OTHER_VALUE = Verdict(False, "typed", "another value")
UNDECIDED = Verdict(False, "unknown", "a sum, a product, an integral or a limit is not evaluated here")
LARGE = tuple(BIG)

read_gold = lru_cache(CACHED_GOLDS)(read_answer)


def equal(gold: str, answer: str, policy: Policy = MATH) -> Verdict:
    """Whether an answer is the gold answer. Never raises, and takes bounded work, whatever the texts."""
    if not (isinstance(gold, str) and isinstance(answer, str)):
        return NO_TEXT
    gold, answer = gold.strip(), answer.strip()
    if not gold or not answer:
        return NOTHING
    if gold == answer:
        return SAME_STRING
    if max(len(gold), len(answer)) > LONGEST_ANSWER:
        return TOO_LONG
    if PLAIN.fullmatch(gold) and PLAIN.fullmatch(answer):
        return SAME_VALUE if Fraction(gold) == Fraction(answer) else OTHER_VALUE
    left, right = read_gold(gold), read_answer(answer)
    if left.key and left.key == right.key:
        return SAME_TOKENS
    decided = _compare_choices(left, right)
    verdict = decided if decided is not None else _compare_values(gold, answer, left, right, policy)
    if verdict.tier == "unknown" and policy.symbolic and symbolic.can_decide(gold, answer):
        return Verdict(*symbolic.are_equal(gold, answer))
    return verdict


def read_both(gold: str, answer: str) -> tuple[Reading, Reading]:
    """What a gold and an answer are read as before they are compared as values."""
    return _reread_units(gold, answer, read_gold(gold), read_answer(answer))


def _compare_choices(left: Reading, right: Reading) -> Verdict | None:
    """Choice letters are letters: C is (C) and C) 12, and never a number."""
    if left.choice and right.choice and (left.bare or right.bare):
        correct = left.choice == right.choice
        return Verdict(correct, "string", "the same choice" if correct else "another choice")
    return None


def _compare_values(gold: str, answer: str, left: Reading, right: Reading, policy: Policy) -> Verdict:
    for side, reading in (("gold", left), ("answer", right)):
        if reading.over:
            return Verdict(False, "bound", f"{side}: {reading.trouble}")
        if not reading.values:
            return Verdict(False, "unknown", f"{side}: {reading.trouble or 'nothing to read'}")
    return _compare_readings(*_reread_units(gold, answer, left, right), policy)


def _reread_units(gold: str, answer: str, left: Reading, right: Reading) -> tuple[Reading, Reading]:
    r"""Letters behind a number are read as a unit where the other side leaves no doubt: 5 m beside 5\text{ m}."""
    if _has_unit(left) != _has_unit(right):
        return (
            (read_answer(gold, letter_units=True), right)
            if _has_unit(right)
            else (left, read_answer(answer, letter_units=True))
        )
    if SPACED_UNIT.fullmatch(answer) and not list_names(*left.values):
        return left, read_answer(answer, letter_units=True)
    if SPACED_UNIT.fullmatch(gold) and not list_names(*right.values):
        return read_answer(gold, letter_units=True), right
    return left, right


def _has_unit(reading: Reading) -> bool:
    return any(node.kind == "unit" for value in reading.values for node in walk(value))


def _has_big(reading: Reading) -> bool:
    return any(node.kind == "apply" and node.name.startswith(LARGE) for value in reading.values for node in walk(value))


def _compare_readings(left: Reading, right: Reading, policy: Policy) -> Verdict:
    comparison = Comparison(policy, Work())
    try:
        for one in left.values:
            for other in right.values:
                if comparison.are_same(*_read_number_words(one, other, policy)):
                    return SAME_VALUE
    except UnreadableError as error:
        return Verdict(False, "unknown", str(error))
    except (OverBoundError, RecursionError) as error:
        return Verdict(False, "bound", str(error))
    except (UndefinedError, ArithmeticError, ValueError) as error:
        return Verdict(False, "typed", f"no value: {error}")
    return UNDECIDED if _has_big(left) or _has_big(right) else OTHER_VALUE


def _read_number_words(one: Node, other: Node, policy: Policy) -> tuple[Node, Node]:
    """A number in words is a number only beside one that is not: `one` and `one` are the same word anyway."""
    if policy.number_words and (one.kind == "text") != (other.kind == "text"):
        return read_number_word(one), read_number_word(other)
    return one, other
