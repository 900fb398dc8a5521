"""Reading of the letters of multiple-choice answers: C, (C), C) 12, B and D."""

from __future__ import annotations

from itertools import pairwise

from qed.grading.tokens import Token

CHOICES = set("ABCDEFGH")
MAX_CHOICE_TOKENS = 60  # tokens
CHOICE_SIGNS = set("()[]{},.%$:-+/^*<>|!") | {"<=", ">="}


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
    if after.text == ":" and (not rest or not rest[0].spaced):
        return "", False
    if rest and (letter.text != name or _names_other_choice(rest) or not _is_harmless(rest)):
        return "", False
    return name, not rest


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
    """Return whether the text after a choice letter names another letter, or is an equation or calculation with it."""
    if rest[0].kind == "joiner" or rest[0].text in {",", ";", "=", "+", "*", "/", "^", "-"}:
        return True
    pairs = pairwise(rest)
    return any(one.text in CHOICES and two.text in {")", ".", ":"} for one, two in pairs) or any(
        token.text == "=" for token in rest
    )
