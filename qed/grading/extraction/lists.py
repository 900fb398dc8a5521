"""Values of a clause that belong together: a list, a quantity with its unit, a value with the noun that it counts."""

from __future__ import annotations

import re

from qed.grading.extraction import chains, words
from qed.grading.extraction.clause import Clause
from qed.grading.extraction.outcome import Refusal, Result
from qed.grading.extraction.pieces import CONJUNCTIONS, Piece
from qed.grading.reading import read_answer

# Letters after a number in a sentence are a unit: 3 m², 3m^2.
AREA = re.compile(r"([-−]?[\d.,]{0,40}\d)\s?(mm|cm|dm|km|m|ft|in|yd|mi)(²|³|\^\{?[23]\}?)")
RAISED = str.maketrans("²³", "23")
HALF_DAY = re.compile(r"\s?(?:[ap]\.\s?m\.?|[AaPp][Mm])(?!\w)|\s?o['’]clock", re.IGNORECASE)
NO_NOUN = re.compile(
    r"(?:a|an|the|in|of|out|to|for|from|on|at|by|as|per|with|than|if|when|where|while|since|because|which|that|who|"
    r"then|so|but|is|are|was|were|be|has|have|had|left|more|less|each|every|only|total|altogether|after|before|"
    r"during|until|not|and|or|remaining|again|there|here|we|you|i|he|she|it|they|will|can|would|should|must|may|also|"
    r"too|either|both|ago|satisf(?:y|ies)|works?|holds|fits|all|instead|rather|"
    r"maybe|perhaps|over|under|between|through|into|without|within|using|given|"
    r"although|though|unless|including|ist|sind|es|son|est|sont|é|são)",
    re.IGNORECASE,
)
CALCULATED = frozenset({"*", "/", "+", "-", "−", "–", "×", "÷", "x"})
LARGER_UNITS = words.list_words(
    "h hr hrs hour hours m min minute minutes d day days "
    "week weeks year years month months ft foot feet yd yards lb lbs "
    "pound pounds km kg dollar dollars degree degrees"
)
MAX_NOUN_WORDS = 3
# 12 marbles, 3 more than Tom: a remark about the value before the comma.
DIFFERENCE = re.compile(r",\s?\$?[\d.,]{0,20}\d (?:[a-z]{1,20} )?(?:more|less|fewer) (?:[a-z]{1,20} )?than ")


def read_list(clause: Clause, index: int) -> tuple[Result, int]:
    """Read the values from an index on that are joined by signs, `and` or `or`; return them and the index after."""
    items, raw, start = list[int](), list[str](), clause.pieces[index].start
    end, position = start, index
    while position < len(clause.pieces) and position in clause.alive:
        items.append(position)
        position, end = read_unit(clause, position)
        raw.append(clause.text[clause.pieces[items[-1]].start : end])
        following = find_next_item(clause, position) or find_range_end(clause, position)
        if following is None:
            break
        position = following
    after = next(
        (place for place in range(items[-1] + 1, len(clause.pieces)) if clause.pieces[place].start >= end),
        len(clause.pieces),
    )
    if len(items) > 1 and chains.is_derivation([clause.pieces[item].text for item in items]):
        items = items[-1:]
    if len(items) == 1:
        return finish(clause, items[0], end), after
    return clause.text[start:end].strip(), after


def find_next_item(clause: Clause, position: int) -> int | None:
    """Return the next value of a list, after a comma, a semicolon, `and` or `or`; None if the list ends here."""
    # 2 hours 15 minutes
    joined = position in clause.alive and clause.pieces[position - 1].text.casefold() in LARGER_UNITS
    if position < len(clause.pieces) and DIFFERENCE.match(clause.text, clause.pieces[position].start):
        return None
    while position < len(clause.pieces) and (
        clause.pieces[position].text.casefold() in CONJUNCTIONS or clause.pieces[position].text in ",;、，；&"
    ):
        joined, position = True, position + 1
    if position < len(clause.pieces) and clause.pieces[position].text.casefold() in ("also", "either"):
        position += 1
    return position if joined and position in clause.alive else None


def find_range_end(clause: Clause, position: int) -> int | None:
    """Return the second value of 3 to 5."""
    if (
        position + 1 in clause.alive
        and clause.pieces[position].text == "to"
        and clause.pieces[position - 1].kind == "value"
    ):
        return position + 1
    return None


def read_unit(clause: Clause, index: int) -> tuple[int, int]:
    """Return the index after the unit or the counted noun of a value, and where its text ends."""
    if (half_day := HALF_DAY.match(clause.text, clause.pieces[index].end)) is not None:
        end = half_day.end()
        return next((place for place, piece in enumerate(clause.pieces) if piece.start >= end), len(clause.pieces)), end
    position = index + 1
    while position < len(clause.pieces) and position <= index + 2 * MAX_NOUN_WORDS:
        piece, following = clause.pieces[position], clause.pieces[position + 1 : position + 2]
        if piece.kind == "sign" and piece.text in "^/·⋅" and following and not following[0].spaced:
            position += 2
        elif piece.kind in ("word", "name") and is_noun(clause, piece):
            position += 1
        else:
            break
    return position, clause.pieces[position - 1].end


def is_noun(clause: Clause, piece: Piece) -> bool:
    return piece.text.isascii() and not (NO_NOUN.fullmatch(piece.text) or words.COPULA.fullmatch(piece.text))


def finish(clause: Clause, place: int, end: int) -> Result:
    """Return one value with its unit, if both can be read together."""
    piece = clause.pieces[place]
    value = chains.simplify(piece.text, partial=place > 0 and clause.pieces[place - 1].text in CALCULATED)
    unit = clause.text[piece.end : end].strip()
    if isinstance(value, str) and (area := AREA.fullmatch(value + unit)) is not None:
        power = area[3].strip("^{}").translate(RAISED)
        return f"{area[1]}\\text{{ {area[2]}}}^{power}"
    if isinstance(value, Refusal) or not unit:
        return value
    whole = f"{value} {unit}" if clause.text[piece.end : piece.end + 1].isspace() else f"{value}{unit}"
    return whole if read_answer(whole).values else value
