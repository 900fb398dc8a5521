r"""Compare answers by rules on strings, as the r1_zero reference of CS336 and Dr. GRPO does.

`fast` accepts two answers with equal normalised strings, as Hendrycks' MATH does. Otherwise the strings must pass
checks (equal brackets, fractions as written, integers only against integers, at most two letters, no larger powers)
before their values are compared. The reference leaves the values to a computer algebra system; here the parser of this
package reads them, so no text is evaluated. `slow` also accepts what the typed comparison accepts, where the reference
falls back to math-verify. The reference's guard against repetitive texts is not needed, because every comparison here
is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Literal

from qed.grading.bounds import MAX_ANSWER_CHARS
from qed.grading.equal import NOTHING, Verdict, equal
from qed.grading.extract import find_last_boxed
from qed.grading.policy import MATH, Policy

Grader = Literal["qed", "fast", "slow"]
Gold = str | int | float | Sequence[str | int | float]

# Notations with the same meaning.
SYNONYMS = (
    ("\n", ""), ("\\!", ""), ("\\,", " "), ("\\;", " "), ("\\ ", " "), ("~", " "),
    ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\cfrac", "\\frac"), ("\\left", ""), ("\\right", ""),
    ("\\leq", "\\le"), ("\\geq", "\\ge"), ("\\neq", "\\ne"), ("^{\\circ}", ""), ("^\\circ", ""), ("°", ""),
    ("\\$", ""), ("$", ""), ("\\%", ""), ("%", ""),
)  # fmt: skip
UNITS = (
    "degree|mile|second|minute|hour|day|week|month|year|foot|feet|inch|yard|liter|litre|meter|metre|gram|mph|kmph"
    "|[ckm]m|kg"
)
# A unit after a digit, a bracket or a closing brace; a power may follow it.
UNIT = re.compile(rf"(?<=[\d)}}])\s{{0,3}}(?:{UNITS})(?:es|s)?(?:\^\{{?\d\}}?)?(?![a-zA-Z])")
TEXT_UNIT = re.compile(r"(?<=[\d)}])\s{0,3}\\(?:text|mbox|mathrm)\{[^{}]*\}(?:\^\{?\d\}?)?$")
WHOLE_TEXT = re.compile(r"\\(?:text|mathrm|mbox|textbf)\{([^{}]*)\}")
BARE_FRACTION = re.compile(r"\\frac\s?(\d)\s?(\d)(?!\d)")
HALF_BARE_FRACTION = re.compile(r"\\frac\s?(\d)\s?(?=\{)")
BARE_ROOT = re.compile(r"\\sqrt\s?(\w)")
SLASH = re.compile(r"(-?\d{1,30})/(\d{1,30})")
LEADING_POINT = re.compile(r"(?<![\w.])\.(?=\d)")
# Innermost braces only: their content has no braces, so the search never backtracks.
FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
ROOT = re.compile(r"\\sqrt\{([^{}]*)\}")
POWER = re.compile(r"\^\{([^{}]*)\}")
MAX_DEPTH = 12
COMMAND = re.compile(r"\\([a-zA-Z]+)")
PLAIN_COMMANDS = {"cdot": "*", "times": "*", "div": "/", "pi": "pi", "infty": "inf", "le": "≤", "ge": "≥", "ne": "≠",
                  "pm": "±", "mp": "∓", "text": "", "mathrm": "", "mbox": "", "textbf": ""}  # fmt: skip
GREEK = frozenset(
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi omega".split()  # noqa: SIM905
)
LARGE_NUMBERS = (("million", "*10^6"), ("billion", "*10^9"), ("trillion", "*10^12"))
MIXED = re.compile(r"(?<=\d) +(?=\d)")
THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
NUMBER = re.compile(r"[+-]?(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:e[+-]?\d{1,2})?")
WRITTEN_FRACTION = re.compile(r"-?\d+\.?/0*[1-9]\d*\.?")
NO_VALUE = frozenset(",=<>≤≥≠±∓")
LARGE_POWER = re.compile(r"\^\(|\^\d+\^|\^\d\d|\^\{")
BRACKETS = frozenset("()[]")
MAX_LETTERS = 2
INTEGER_TOLERANCE = Fraction(1, 10**7)
# A number and one word, which a computer algebra system reads as a product of letters.
NUMBER_AND_WORD = re.compile(r"\s*-?[\d.,]+ +([a-zA-Z]+)\s*\.?\s*")

SAME_FORM = Verdict(True, "string", "the same normalised string")
SAME_VALUE = Verdict(True, "typed", "the same value within the rules on strings")
REFUSED = Verdict(False, "string", "the rules on strings do not allow it")


def list_gold_texts(gold: Gold) -> tuple[str, ...]:
    """Return the accepted answers as texts, given a text, a number or a list of these; boxes are unwrapped."""
    if isinstance(gold, str):
        return ((find_last_boxed(gold) or gold) if "\\boxed" in gold else gold,)
    return (
        (str(gold),)
        if isinstance(gold, int | float)
        else tuple(text for item in gold for text in list_gold_texts(item))
    )


def grade_answer(gold: Gold, answer: str, grader: Grader = "qed", policy: Policy = MATH) -> Verdict:
    """Compare an answer with the gold answers by the named grader; the policy is for the grader `qed`. Never raises."""
    compare = partial(equal, policy=policy) if grader == "qed" else GRADERS[grader]
    verdict = NOTHING
    for text in list_gold_texts(gold):
        verdict = compare(text, answer)
        if verdict:
            break
    return verdict


def normalise_string(text: str) -> str:
    """Return the same string for answers that Hendrycks' MATH treats as equal."""
    text = _unify_notation(text)
    text = TEXT_UNIT.sub("", text)
    text = WHOLE_TEXT.sub(r"\1", text) if WHOLE_TEXT.fullmatch(text) else text
    text = UNIT.sub("", text).strip().rstrip(".")
    name, equals, value = text.partition("=")
    if equals and "=" not in value and len(name.strip()) <= 2:
        text = value.strip()
    text = "".join(LEADING_POINT.sub("0.", text).split())
    text = HALF_BARE_FRACTION.sub(r"\\frac{\1}", BARE_FRACTION.sub(r"\\frac{\1}{\2}", text))
    text = BARE_ROOT.sub(r"\\sqrt{\1}", text)
    text = "1/2" if text == "0.5" else text
    slash = SLASH.fullmatch(text)
    return f"\\frac{{{slash.group(1)}}}{{{slash.group(2)}}}" if slash else text


def _unify_notation(text: str) -> str:
    for before, after in SYNONYMS:
        text = text.replace(before, after)
    return text.strip()


def flatten_to_ascii(text: str) -> str:
    """Return the answer as a line of ASCII mathematics in lower case without spaces, for the checks of `fast`."""
    text = _unify_notation(text).replace(" or ", ", ").replace(" and ", ", ")
    text = WHOLE_TEXT.sub(r"\1", text) if WHOLE_TEXT.fullmatch(text) else text
    for word, power in LARGE_NUMBERS:
        text = text.replace(" " + word, power)
    text = HALF_BARE_FRACTION.sub(r"\\frac{\1}", BARE_FRACTION.sub(r"\\frac{\1}{\2}", text))
    text = _flatten_structure(BARE_ROOT.sub(r"\\sqrt{\1}", UNIT.sub("", text)))
    text = COMMAND.sub(_replace_command, text).replace("\\", "")
    text = MIXED.sub("+", text.replace("- ", "-"))
    text = "".join(text.split()).replace("{", "").replace("}", "").lower()
    return _write_as_integer(THOUSANDS.sub("", text))


def _flatten_structure(text: str) -> str:
    """Write fractions, roots and powers on one line, from the inside out, with brackets where needed."""
    for _ in range(MAX_DEPTH):
        flat = ROOT.sub(r"sqrt(\1)", FRACTION.sub(_flatten_fraction, text))
        flat = POWER.sub(lambda match: "^" + _add_brackets(match.group(1)), flat)
        if flat == text:
            break
        text = flat
    return text


def _flatten_fraction(match: re.Match[str]) -> str:
    above, below = (_add_brackets(part) for part in match.groups())
    return f" {above}/{below}"


def _add_brackets(part: str) -> str:
    part = part.strip()
    return part if part.removeprefix("-").replace("\\", "").isalnum() else f"({part})"


def _replace_command(match: re.Match[str]) -> str:
    name = match.group(1)
    # A Greek letter counts as one letter, whatever the length of its name.
    return PLAIN_COMMANDS.get(name, chr(0x3B1 + sorted(GREEK).index(name)) if name in GREEK else name)


def _write_as_integer(text: str) -> str:
    """Write `42.0`, `42.` and `1e3` as integers."""
    text = text if len(text) < 2 or text[-1] != "." else text[:-1]
    value = _read_number(text)
    return str(round(value)) if value is not None and abs(value - round(value)) <= INTEGER_TOLERANCE else text


def _read_number(text: str) -> Fraction | None:
    return Fraction(text) if NUMBER.fullmatch(text) else None


def _is_integer(text: str) -> bool:
    value = _read_number(text)
    return value is not None and value.denominator == 1


def grade_fast(gold: str, answer: str) -> Verdict:
    """Apply the reference's fast rule: equal normalised strings, or equal values that pass the checks."""
    gold, answer = gold.strip(), answer.strip()
    if not gold or not answer:
        return NOTHING
    if gold == answer:
        return SAME_FORM
    if max(len(gold), len(answer)) > MAX_ANSWER_CHARS:
        return REFUSED
    if normalise_string(gold) == normalise_string(answer):
        return SAME_FORM
    left, right = flatten_to_ascii(gold), flatten_to_ascii(answer)
    if not right:
        return NOTHING
    if left == right:
        return SAME_FORM
    return SAME_VALUE if _are_same_elements(left, right) else REFUSED


def _are_same_elements(gold: str, answer: str) -> bool:
    """Compare tuples and intervals element by element, in order, with the same brackets."""
    left, right = _split_elements(gold), _split_elements(answer)
    if len(left) != len(right) or (len(left) > 1 and (gold[0] != answer[0] or gold[-1] != answer[-1])):
        return False
    return all(map(_are_same_element, left, right))


def _split_elements(text: str) -> list[str]:
    enclosed = len(text) > 2 and text[0] in BRACKETS and text[-1] in BRACKETS
    return text[1:-1].split(",") if enclosed and not BRACKETS & set(text[1:-1]) else [text]


def _are_same_element(gold: str, answer: str) -> bool:
    gold, answer = _write_as_integer(gold), _write_as_integer(answer)
    if gold == answer:
        return True
    if WRITTEN_FRACTION.fullmatch(gold) and WRITTEN_FRACTION.fullmatch(answer):
        return False  # two fractions are compared as written: 2/4 is not 1/2
    if _is_integer(gold) or _is_integer(answer):
        return False  # another integer, or an expression that still has to be computed
    both = gold + answer
    letters = {sign for sign in both.replace("sqrt", "") if sign.isalpha()}
    if len(letters) > MAX_LETTERS or NO_VALUE & set(both) or LARGE_POWER.search(both):
        return False
    return equal(gold, answer).correct


def grade_slow(gold: str, answer: str) -> Verdict:
    """Apply the fast rule, then the typed comparison, which reads sentences, unordered lists and unreduced fractions.

    A number with one word that is not a unit is wrong, because math-verify reads the word as a product of letters.
    """
    verdict = grade_fast(gold, answer)
    if verdict or NUMBER_AND_WORD.fullmatch(UNIT.sub("", answer[:MAX_ANSWER_CHARS])):
        return verdict
    return equal(gold, answer)


GRADERS: dict[Grader, Callable[[str, str], Verdict]] = {"qed": equal, "fast": grade_fast, "slow": grade_slow}
