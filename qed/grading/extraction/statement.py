"""The statement of a clause: a value or a short text, unless the clause denies it or hedges."""

from __future__ import annotations

import re

from qed.grading.extraction import choices, words
from qed.grading.extraction.clause import RELATIVE, Clause
from qed.grading.extraction.outcome import HEDGED, NEGATED, Refusal, Result
from qed.grading.extraction.pieces import read_pieces
from qed.grading.extraction.values import read_values

PREFIX = re.compile(
    r"\W{0,3}(?:if|when|since|because|as|for|after|given|with|while|although|assuming|in|from|by|using|at|on|once|"
    r"during|before|of|out of|considering|starting|let|suppose|wenn|weil|da|nach|si|como|quand|puisque|если|так как|"
    r"\w{3,}ing|step \d+|case \d+|part \w+)\b",
    re.IGNORECASE,
)
MAX_PARTS = 12
MAX_PREFIXES = 3
MAX_TEXT_WORDS = 6
KNOWN = re.compile(
    r"\bno (?:real |integer |positive |such |valid |possible |common )?"
    r"(?:solutions?|roots?|answers?|values?|integers?|numbers?|triangles?|limit|maximum|minimum)\b|"
    r"\binfinitely many(?: solutions)?\b|\bdoes not exist\b|\bdo not exist\b|\bDNE\b|\bundefined\b|\bnot defined\b|"
    r"\bimpossible\b|\bnot possible\b|\bcannot be determined\b|\bnot enough information\b|"
    r"\bnone of (?:the above|these)\b|\ball real numbers\b|\bdiverges\b|\bempty set\b|\bneither even nor odd\b|"
    r"\bneither\b(?! \S+ nor)",
    re.IGNORECASE,
)
NO_TEXT = words.list_words(
    "that this it what how which we you i he she they the a an as follows here there wrong incorrect "
    "below above following correct right done clear unique found obtained given known shown needed "
    "required not so then"
)


def read_clause(text: str, announced: bool = False, closing: bool = True) -> Result:
    """Read what a clause states.

    Args:
        text: a sentence, or what follows the announcement of an answer.
        announced: whether the text before it announced an answer.
        closing: whether words alone may be the answer.
    """
    for _ in range(0 if announced else MAX_PREFIXES):
        text = _drop_prefix(text)
    for pattern in (words.BUT, words.SO):
        if (parts := _split_at_last(pattern, text)) is not None:
            before, after = parts
            found = read_clause(after, announced, closing) if after else None
            if isinstance(found, str) or (found is not None and found.reason != NEGATED):
                return found
            if before:
                found = read_clause(before, announced, closing) or found
            return found
    clause = Clause(text)
    if not clause.values:
        return read_text(clause, announced, closing)
    if not clause.alive:
        return Refusal(NEGATED)
    return Refusal(HEDGED) if clause.finds(words.HEDGE) else read_values(clause, announced)


def _drop_prefix(text: str) -> str:
    """Drop a condition or circumstance before the first comma: if x is 3, …"""
    match = PREFIX.match(text)
    if match is None:
        return text
    comma = next((piece for piece in read_pieces(text) if piece.kind == "sign" and piece.text in ",，"), None)
    rest = text[comma.end :] if comma is not None else ""
    return rest if rest.strip(" .") else text


def _split_at_last(pattern: re.Pattern[str], text: str) -> tuple[str, str] | None:
    """Split a text at the last match of a pattern outside of its formulas."""
    matches = list(pattern.finditer(text))
    if not 0 < len(matches) <= MAX_PARTS:
        return None
    formulas = [piece for piece in read_pieces(text) if piece.kind == "value"]
    for match in reversed(matches):
        if not any(piece.start < match.end() and match.start() < piece.end for piece in formulas):
            before, after = text[: match.start()].strip(" ,;"), text[match.end() :].strip(" ,:;")
            if after.strip(" .!") or before:
                return before, after
    return None


def read_text(clause: Clause, announced: bool, closing: bool) -> Result:
    """Read an answer in words: a letter, yes or no, a short phrase."""
    if clause.finds(words.HEDGE):
        return Refusal(HEDGED)
    if (known := find_known_phrase(clause.text)) is not None:
        return known
    stated = _cut_relative(clause.text, announced)
    if choices.YES_NO.fullmatch(stated.strip(" .:!")):
        return stated.strip(" .:!")
    if words.NOT.search(stated) or words.WRONG.search(stated):
        return Refusal(NEGATED)
    start = max((match.end() for match in words.COPULA.finditer(stated)), default=0)
    text = _cut_phrase(stated[start:], announced)
    if not start and not announced and not (closing and choices.LETTER.fullmatch(text)):
        return None
    return text if _is_phrase(text, announced) else None


def _cut_relative(text: str, announced: bool) -> str:
    """Cut a text before a relative clause if something is stated before it: C because …, but not we conclude that …"""
    for relative in RELATIVE.finditer(text):
        start = max((match.end() for match in words.COPULA.finditer(text, 0, relative.start())), default=0)
        if (start or announced) and text[start : relative.start()].strip(" ,"):
            return text[: relative.start()]
    return text


def _cut_phrase(text: str, announced: bool) -> str:
    """Return a phrase without punctuation, and a letter without its article."""
    text = choices.ENDING.sub("", text.strip(" .:,;!*\"'“”、，。"))
    if (letter := choices.LETTER.fullmatch(choices.ARTICLE.sub("", text, count=1))) is not None:
        return letter.group()
    return text.partition(",")[0] if text[:1].isalpha() and not announced else text


def _is_phrase(text: str, announced: bool) -> bool:
    """Return whether a phrase is short enough for an answer, and not a pronoun or the like."""
    count = len(text.split())
    if not 0 < count <= (MAX_TEXT_WORDS if announced else 3):
        return False
    return text.split()[0].casefold() not in NO_TEXT or (announced and (count > 1 or len(text) == 1))


def find_known_phrase(text: str) -> str | None:
    """Return the last phrase that is an answer although it reads like a denial: no solution, does not exist."""
    found = KNOWN.findall(text)
    return found[-1] if found else None
