"""Compare answers: by normalised strings, by the typed values of qed's own parser, and if neither decides, by
math-verify in a child process that can be killed.

No text is ever evaluated: an answer is parsed into numbers and expressions, and every size is bounded before any
arithmetic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from qed.grading import symbolic
from qed.grading.bounds import MAX_ANSWER_CHARS, OverBoundError, UnreadableError, Work
from qed.grading.compare import Comparison
from qed.grading.exact import UndefinedError, compute_rational
from qed.grading.policy import MATH, Policy
from qed.grading.reading import PLAIN_NUMBER, Reading, read_answer, read_number_word
from qed.grading.scalars import list_names
from qed.grading.tree import Node, walk
from qed.grading.vocabulary import BIG

CACHED_GOLDS = 4096  # a data set is read once in each epoch
CACHED_VERDICTS = 4096  # the answers to a problem are often the same
# The most frequent answers, which need no parser. The bounded lengths bound the arithmetic.
PLAIN = re.compile(r"-?[0-9]{1,30}(?:\.[0-9]{1,30})?")
SPACED_UNIT = re.compile(r"[^A-Za-z\\]{1,30}(?:\\(?:times|cdot)[^A-Za-z\\]{1,20})? [mgshLJNVWC](?:\^\{?[23]\}?|[²³])?")

LETTER = re.compile(r"[^\W\d_]")
ORDINAL = re.compile(r"\d(?:st|nd|rd|th)(?![A-Za-z])")


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is correct, which tier decided, and why.

    The tiers `string`, `typed` and `symbolic` compared the answers; `bound` means that the comparison needs more work
    than is allowed; `timeout` and `error` are failures of the symbolic tier; `unknown` means that no tier can read an
    answer.
    """

    correct: bool
    tier: str
    reason: str

    def __bool__(self) -> bool:
        return self.correct


SAME_STRING = Verdict(True, "string", "the same string")
SAME_TOKENS = Verdict(True, "string", "the same after normalisation")
NOTHING = Verdict(False, "string", "one of the two answers is empty")
NO_TEXT = Verdict(False, "string", "one of the two answers is not a string")
TOO_LONG = Verdict(False, "bound", "an answer is too long")
SAME_VALUE = Verdict(True, "typed", "the same value")
NEAR_VALUE = Verdict(True, "typed", "another value, which the policy accepts")
OTHER_VALUE = Verdict(False, "typed", "another value")
UNDECIDED = Verdict(False, "unknown", "a sum, a product, an integral or a limit is not evaluated here")
BIG_OPERATORS = tuple(BIG)

read_gold = lru_cache(CACHED_GOLDS)(read_answer)


def equal(gold: str, answer: str, policy: Policy = MATH) -> Verdict:
    """Return whether an answer equals the gold answer. Never raises, and does bounded work for any texts."""
    if not (isinstance(gold, str) and isinstance(answer, str)):
        return NO_TEXT
    gold, answer = gold.strip(), answer.strip()
    if not gold or not answer:
        return NOTHING
    if gold == answer:
        return SAME_STRING
    if max(len(gold), len(answer)) > MAX_ANSWER_CHARS:
        return TOO_LONG
    if PLAIN.fullmatch(gold) and PLAIN.fullmatch(answer) and not policy.approximate:
        read = Fraction if "." in gold or "." in answer else int
        return SAME_VALUE if read(gold) == read(answer) else OTHER_VALUE
    verdict = _compare_texts(gold, answer, policy)
    if verdict.tier == "unknown" and policy.symbolic and symbolic.can_decide(gold, answer):
        return Verdict(*symbolic.are_equal(gold, answer))
    return verdict


@lru_cache(CACHED_VERDICTS)
def _compare_texts(gold: str, answer: str, policy: Policy) -> Verdict:
    """Compare two texts without the symbolic tier, whose failures must not be cached."""
    left, right = read_gold(gold), read_answer(answer)
    if left.key and left.key == right.key:
        return SAME_TOKENS
    choice = _compare_choices(left, right)
    return choice if choice is not None else _compare_values(gold, answer, left, right, policy)


def read_both(gold: str, answer: str) -> tuple[Reading, Reading]:
    """Read a gold answer and an answer in the same way as before a comparison of their values."""
    return _list_readings(gold, answer, read_gold(gold), read_answer(answer))[0]


def _compare_choices(left: Reading, right: Reading) -> Verdict | None:
    """Compare choice letters: C equals (C) and C) 12, and never a number.

    The gold may be a formula or a list, such as C, none, that begins with a letter. So only an answer may add words
    to a letter without a mark.
    """
    if left.choice and right.choice and left.marked and (left.bare or (right.bare and right.marked)):
        correct = left.choice == right.choice
        return Verdict(correct, "string", "the same choice" if correct else "another choice")
    return None


def _compare_values(gold: str, answer: str, left: Reading, right: Reading, policy: Policy) -> Verdict:
    if (fractions := _compare_fractions(gold, answer, left, right, policy)) is not None:
        return fractions
    if policy.base_optional and _has_digits_of(left, right):
        return SAME_VALUE
    if (trouble := _find_trouble(left, right)) is not None:
        return trouble
    verdicts = []
    for one, other in _list_readings(gold, answer, left, right):
        verdicts.append(_compare_readings(one, other, policy))
        if verdicts[-1].correct:
            return verdicts[-1]
    return verdicts[0]


def _find_trouble(left: Reading, right: Reading) -> Verdict | None:
    """Return why the values of two answers cannot be compared; None if they can."""
    sides = (("gold", left), ("answer", right))
    for side, reading in sides:  # final, whatever the other side is
        if reading.contradictory:
            return Verdict(False, "typed", f"{side}: {reading.trouble}")
    for side, reading in sides:
        if reading.over:
            return Verdict(False, "bound", f"{side}: {reading.trouble}")
        if not reading.values:
            return Verdict(False, "unknown", f"{side}: {reading.trouble or 'nothing to read'}")
    return None


def _compare_fractions(gold: str, answer: str, left: Reading, right: Reading, policy: Policy) -> Verdict | None:
    """Compare two numbers or fractions of numbers; None if one is something else, has no value, or may be rounded."""
    if policy.approximate or "." in answer or not (PLAIN_NUMBER.fullmatch(gold) and PLAIN_NUMBER.fullmatch(answer)):
        return None
    try:
        one, other = (compute_rational(side.values[0], Work()) for side in (left, right))
    except UndefinedError:
        return None
    return SAME_VALUE if one == other else OTHER_VALUE


def _has_digits_of(left: Reading, right: Reading) -> bool:
    """Return whether one side has a base and the other the same digits (or letters) without it: 2A7_{16} and 2A7."""
    for one, other in ((left, right), (right, left)):
        based = one.values[0] if one.values else None
        if based is not None and based.kind == "based" and not based.parts and not based.number:
            return based.name.partition("_")[0] == other.key.replace(" ", "").upper()
    return False


def _list_readings(gold: str, answer: str, left: Reading, right: Reading) -> list[tuple[Reading, Reading]]:
    r"""Return the ways to read both sides together: letters after a number are a unit if the other side has a unit, as
    in 5 m against 5\text{ m}, and variables if the other side has names, as in 2 kg against 2gk."""
    if _has_unit(left) != _has_unit(right):
        if _has_unit(left):
            return _reread_beside_unit(gold, answer, left, right)
        return [(one, other) for other, one in _reread_beside_unit(answer, gold, right, left)]
    if SPACED_UNIT.fullmatch(answer) and not list_names(*left.values):
        return [(left, read_answer(answer, "units"))]
    if SPACED_UNIT.fullmatch(gold) and not list_names(*right.values):
        return [(read_answer(gold, "units"), right)]
    if _is_short_word(gold, left) and list_names(*right.values):
        return [(read_answer(gold, "variables"), right)]
    if _is_short_word(answer, right) and list_names(*left.values):
        return [(left, read_answer(answer, "variables"))]
    return [(left, right)]


def _reread_beside_unit(one: str, other: str, left: Reading, right: Reading) -> list[tuple[Reading, Reading]]:
    """Return the ways to read a side with a unit and a side without one."""
    if LETTER.search(other) is None:
        return [(left, right)]
    units = read_answer(other, "units")
    pairs = [(left, units if _has_unit(units) else right)]
    if list_names(*right.values):
        pairs.append((read_answer(one, "variables"), right))
    return pairs


def _is_short_word(text: str, reading: Reading) -> bool:
    """Return whether two or three letters may be a product if the other side has names: am and ma, 3rd and 3dr."""
    word = len(reading.values) == 1 and reading.values[0].kind == "text" and len(reading.values[0].name) <= 3
    return word or ORDINAL.search(text) is not None


def _has_unit(reading: Reading) -> bool:
    return any(
        value.kind == "unit" or (value.parts and any(node.kind == "unit" for node in walk(value)))
        for value in reading.values
    )


def _has_big_operator(reading: Reading) -> bool:
    return any(
        node.kind == "apply" and node.name.startswith(BIG_OPERATORS) for value in reading.values for node in walk(value)
    )


def _compare_readings(left: Reading, right: Reading, policy: Policy) -> Verdict:
    comparison, unreadable = Comparison(policy, Work()), ""
    try:
        for gold, answer in _list_pairs(left, right):
            try:
                if comparison.are_same(*_read_number_words(gold, answer, policy)):
                    return NEAR_VALUE if comparison.near else SAME_VALUE
            except UnreadableError as error:  # another reading may have a value
                unreadable = unreadable or str(error)
    except (OverBoundError, RecursionError) as error:
        return Verdict(False, "bound", str(error))
    except (UndefinedError, ArithmeticError, ValueError) as error:
        return Verdict(False, "typed", f"no value: {error}")
    if unreadable:
        return Verdict(False, "unknown", unreadable)
    return UNDECIDED if _has_big_operator(left) or _has_big_operator(right) else OTHER_VALUE


def _list_pairs(left: Reading, right: Reading) -> list[tuple[Node, Node]]:
    """Return the pairs of values to compare; 10,20 and 10,2, which may both be decimals, are compared only as lists."""
    pairs = [(gold, answer) for gold in left.values for answer in right.values]
    if len(pairs) < 4 or not left.values[0].kind == right.values[0].kind == "list":
        return pairs
    return [pair for pair in pairs if any(value.kind in {"list", "set"} for value in pair)]


def _read_number_words(one: Node, other: Node, policy: Policy) -> tuple[Node, Node]:
    """Convert a number in words if the other side is not in words; two words are compared as words."""
    if policy.number_words and (one.kind == "text") != (other.kind == "text"):
        return read_number_word(one), read_number_word(other)
    return one, other
