"""Parse the letters of multiple-choice answers: C, (C), C) 12, B and D."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from qed.grading.extraction.words import HEDGE, RETRACTION, SOFT_RETRACTION
from qed.grading.tokens import Token

CHOICES = set("ABCDEFGHIJ")
UNITS = {"i", "j"}  # in lower case the imaginary unit
MAX_CHOICE_TOKENS = 60  # tokens
CHOICE_SIGNS = set("()[]{},.%$:-+/^*<>|!=") | {"<=", ">="}
# A text after a choice letter, without its spaces, that denies the choice. "False" may be the text of a choice.
DENIED = re.compile(
    r"(?i:(?:(?:it|this|that|which)?(?:is|was)(?:definitely|clearly|obviously|just|simply)?"
    r"(?:wrong|incorrect|(?:not|n['’]t)(?:correct|right|the(?:correct|right|best|final)?(?:answer|choice|option))))"
    r"(?:[.,;:!]|because|since|$))|(?:wrong|incorrect)[.!]?$"
)
# One that says that the answer is another letter.
REPLACED = re.compile(
    r"(?i:(?:no|wrong|incorrect)?[,.:;]?(?:(?:the)?(?:correct|right|best|final|true)?answer(?:is|:)|it(?:is|['’]s))"
    r"(?:option|choice)?)\(?([A-J])\)?[.!]?$"
)
# C - photosynthesis, (C), photosynthesis, C (photosynthesis): words of the option without a full stop or a bracket
# after its letter. They begin with a word of three or more letters, because C - x is a formula.
WORDED = re.compile(
    r"(?:(?i:option|choice) )?(?:\(([A-J])\)|([A-J]))(?: -{1,2} | ?[–—] ?|, | ?\((?=[^()]{3,200}\)\.?$))"
    r"(?=[A-Za-z]{0,20}[aeiouyAEIOUY])(?!(?:and|also|plus|with)(?![a-z]))([A-Za-z]{3}[A-Za-z ,.'-]{0,200})\)?\.?"
)
# Words that name another letter, or may retract the choice of a letter before them.
UNSETTLED = re.compile(
    r"(?<![\w\\])[A-J](?![\w'’])|n't|n’t|"
    r"(?<!\w)(?i:no[tr]?|never|neither|wrong|incorrect|false|but|however|though|although|yet|or|unless|except|instead|"
    r"rather|cannot|fails?|out|eliminated|impossible|guess|so|therefore|thus|hence|which|making|i\.e)(?!\w)|"
    r"[=-]>|→|⇒"
)
# Words that may also weaken the choice, where they are all that follows the letter; a reason may contain them.
WEAKENING = re.compile(
    r"(?<!\w)(?:reject\w{0,3}|exclu\w{0,5}|discard\w{0,3}|invalid|mistak\w{0,3}|inaccura\w{0,4}|doubt\w{0,3}|"
    r"unlikely|likely|presumabl[ey]|hardly|nope|nah|second|other|another|alternative\w{0,2}|both|better|one of|"
    r"option)(?!\w)",
    re.IGNORECASE,
)


class Choice(NamedTuple):
    """The letter of a choice, or nothing."""

    letter: str = ""
    bare: bool = False
    """Whether it is alone: B, (B), B."""
    marked: bool = True
    """Whether a sign marks it as a choice, as in B) 12. B - photosynthesis is a choice only beside a bare letter."""


def read_choice(tokens: list[Token]) -> Choice:
    """Read the letter of a choice: B, (B), B., (B) 12, B - photosynthesis."""
    letter, bare = _read_marked_choice(tokens)
    if letter or len(tokens) > MAX_CHOICE_TOKENS or CHOICES.isdisjoint(token.text for token in tokens[:3]):
        return Choice(letter, bare)
    text = "".join(" " * token.spaced + token.text for token in tokens if token.text not in {"{", "}"})
    text = text.replace(" ,", ",").replace("( ", "(").replace(" )", ")")  # the spaces of \\text{C}, cell
    return Choice(read_worded_option(text) or "", marked=False)


def read_worded_option(text: str) -> str | None:
    """Return the letter before the words of its option, as in C - photosynthesis, unless they weaken it."""
    match = WORDED.fullmatch(text.strip(" ."))
    return (match[1] or match[2]) if match is not None and is_settled(match[3]) else None


def is_settled(text: str) -> bool:
    """Return whether words after a letter leave it the choice: they name no letter, hedge nothing, retract nothing."""
    return not any(pattern.search(text) for pattern in (UNSETTLED, WEAKENING, HEDGE, RETRACTION, SOFT_RETRACTION))


def _read_marked_choice(tokens: list[Token]) -> tuple[str, bool]:
    """Read a letter that is alone or marked by a sign, and whether it is alone."""
    if tokens and tokens[0].text == "{":  # \\mathbf{(B)} 3
        tokens = [token for token in tokens if token.text not in {"{", "}"}]
    if choices := _read_choices(tokens):
        return choices, True
    if len(tokens) > 1 and tokens[0].text.lower() in {"option", "choice"}:
        tokens = tokens[1:]
    opened = bool(tokens) and tokens[0].text == "("
    letter, after = (*tokens[opened : opened + 2], Token("end", ""), Token("end", ""))[:2]
    name = letter.text.upper()
    if letter.kind not in {"letter", "word"} or name not in CHOICES or letter.text in UNITS:
        return "", False
    rest = tokens[opened + 1 :]
    if after.text not in {")", ".", ":", ""} or (opened and after.text != ")"):
        return "", False
    rest = rest[1:]
    # E: x + y = 1 names a plane
    if after.text == ":" and (not rest or not rest[0].spaced or any(token.text == "=" for token in rest)):
        return "", False
    if rest and (letter.text != name or not _may_be_its_text(name, rest)):
        return "", False
    return name, not rest


def _may_be_its_text(letter: str, rest: list[Token]) -> bool:
    """Return whether the tokens after a choice letter can be the text of the choice, and do not deny it."""
    denied = is_denied(letter, "".join(token.text for token in rest[:MAX_CHOICE_TOKENS]))
    return not denied and not _names_other_choice(letter, rest) and _is_harmless(rest)


def is_denied(letter: str, text: str) -> bool:
    """Return whether the text after a choice letter denies it (is wrong), or names another one (it is D, for B)."""
    compact = "".join(text.split())
    replaced = REPLACED.match(compact)
    return DENIED.match(compact) is not None or (replaced is not None and replaced[1] != letter)


def _read_choices(tokens: list[Token]) -> str:
    """Read the letters of several choices, sorted: BD, B and D, D, B. Adjacent letters must already be sorted."""
    letters = [token.text for token in tokens if token.kind in {"letter", "word"}]
    others = [token for token in tokens if token.kind not in {"letter", "word"}]
    joined = "".join(letters)
    if not 2 <= len(joined) <= len(CHOICES) or not set(joined) <= CHOICES or len(set(joined)) < len(joined):
        return ""
    separated = all((token.kind == "joiner" and token.text != "or") or token.text in {",", ";"} for token in others)
    if others and len(letters) == len(joined) and separated:
        return "".join(sorted(letters))
    return joined if not others and joined == "".join(sorted(joined)) else ""


def _is_harmless(rest: list[Token]) -> bool:
    """Return whether the text after a choice letter can be the text or the value of a choice, not a call or code."""
    if len(rest) > MAX_CHOICE_TOKENS or any(
        one.kind == "word" and two == ("sign", "(", False) for one, two in pairwise(rest)
    ):
        return False
    return all(token.kind != "sign" or token.text in CHOICE_SIGNS for token in rest)


def _names_other_choice(letter: str, rest: list[Token]) -> bool:
    """Return whether the text after a choice letter names another letter, or calculates with it."""
    if rest[0].kind == "joiner" or rest[0].text in {",", ";", "=", "+", "*", "/", "^", "-"}:
        return True
    pairs = pairwise(rest)
    others = CHOICES if letter in "IJ" else CHOICES - {"I"}  # C. Only (I) and (IV)
    return any(one.text in others and two.text in {")", ".", ":"} for one, two in pairs)
