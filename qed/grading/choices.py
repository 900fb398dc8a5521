"""Parse the letters of multiple-choice answers: C, (C), C) 12, B and D."""

from __future__ import annotations

import re
from itertools import pairwise

from qed.grading.tokens import Token

CHOICES = set("ABCDEFGH")
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


def read_choice(tokens: list[Token]) -> tuple[str, bool]:
    """Read the letter of a choice, and whether it is alone: B, (B), B., (B) 12."""
    if tokens and tokens[0].text == "{":  # \\mathbf{(B)} 3
        tokens = [token for token in tokens if token.text not in {"{", "}"}]
    if choices := _read_choices(tokens):
        return choices, True
    if len(tokens) > 1 and tokens[0].text.lower() in {"option", "choice"}:
        tokens = tokens[1:]
    opened = bool(tokens) and tokens[0].text == "("
    letter, after = (*tokens[opened : opened + 2], Token("end", ""), Token("end", ""))[:2]
    name = letter.text.upper()
    if letter.kind not in {"letter", "word"} or name not in CHOICES:
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
    return not denied and not _names_other_choice(rest) and _is_harmless(rest)


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


def _names_other_choice(rest: list[Token]) -> bool:
    """Return whether the text after a choice letter names another letter, or calculates with it."""
    if rest[0].kind == "joiner" or rest[0].text in {",", ";", "=", "+", "*", "/", "^", "-"}:
        return True
    pairs = pairwise(rest)
    return any(one.text in CHOICES and two.text in {")", ".", ":"} for one, two in pairs)
