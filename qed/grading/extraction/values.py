"""The value that a clause states: after its last verb, at its beginning, or its only one."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qed.grading.equal import equal
from qed.grading.extraction import chains, words
from qed.grading.extraction.clause import Clause
from qed.grading.extraction.lists import DIFFERENCE, read_list
from qed.grading.extraction.outcome import BOUNDED, HEDGED, SEVERAL, Refusal, Result
from qed.grading.extraction.pieces import CONJUNCTIONS, Piece
from qed.grading.policy import Policy

# Verbs after an answer; conditions follow them.
SATISFYING = words.list_words("satisfies satisfy works work remains holds fits")
# x is at least 3: matched up to the value.
NAMED_BOUND = re.compile(
    r"(?<![A-Za-z\\])[A-Za-z] (?:is |must be |should be )(?:strictly )?"
    r"(?:(?:less|greater|more|larger|smaller) than(?: or equal to)?|at least|at most) \S{1,40}$"
)
# 42 is a lower bound: matched from the value to the end of the clause.
CALLED_BOUND = re.compile(
    r"[\s$]{0,3},?\s?(?:which )?(?:is|are) (?:only |just |merely )?an? (?:lower|upper) bound[\s.!]{0,3}$"
)
# 42 plus one: a calculation, of which only the first number is read as a value.
CALCULATED = re.compile(
    r"[\s$]{0,3}(?:[a-z]{1,20}\s)?,?\s?(?:plus|minus|times|divided by|multiplied by) "
    r"(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|(?:a|one) (?:half|hundred|thousand))(?!\w)",
    re.IGNORECASE,
)

IN_TOTAL = re.compile(r"(?<!\w)(?:total|altogether|in all)(?!\w)", re.IGNORECASE)
BREAKDOWN = re.compile(r"[\s$]{0,3}(?:[a-z]{1,20} ){0,2}(?:[a-z]{1,20})?:\s", re.IGNORECASE)
PLAIN = re.compile(r"\$?(\d{1,9})")
EXACT = Policy(percent_sign_optional=False)
# 7 if even, 8 if odd; 7 unless x = 0: matched from the value.
CASES = re.compile(
    r"[\s$]{0,3}(?:[a-z]{1,20}\s)?,?\s?(?:unless(?!\w)|(?:if|when|for)(?!\w)[^.;]{0,80}[,;] (?:and |but |or )?"
    r"[$\\]{0,2}-?\d[\d.,/]{0,20}\$? (?:if|when|for|otherwise)(?!\w))",
    re.IGNORECASE,
)


def read_values(clause: Clause, announced: bool) -> Result:
    """Read the value or the values that a clause states, or say why it states none."""
    start = find_start(clause, announced)
    if isinstance(start, Refusal):
        return start
    found, after = read_list(clause, start)
    if announced and found == "one":  # one of 3 and 4
        return Refusal(HEDGED)
    if clause.is_bounded(start):
        named = NAMED_BOUND.search(clause.text, 0, clause.pieces[start].end)
        return Refusal(BOUNDED) if named is None else named.group()
    end = clause.pieces[max(index for index in clause.alive if index < after)].end
    if CALLED_BOUND.match(clause.text, end):
        return Refusal(BOUNDED)
    if CALCULATED.match(clause.text, end):
        return Refusal(SEVERAL)
    if CASES.match(clause.text, end):
        return Refusal(HEDGED)
    rest = [index for index in clause.alive if index >= after]
    further = rest and not is_subordinate(clause, after) and not repeats(clause, found, rest)
    if further and not is_broken_down(clause, start):
        return Refusal(SEVERAL)
    return found


def find_start(clause: Clause, announced: bool) -> int | Refusal:
    """Return the value that the clause states: after its last verb, at its beginning, or its only one."""
    first = find_first_piece(clause)
    if first in clause.alive and (announced or is_subject(clause, first)):
        return first
    if (computed := find_computed(clause)) is not None:
        return computed
    limit = clause.find_relative()
    main = [index for index in clause.alive if clause.pieces[index].start < limit] or clause.alive
    places = [match for match in clause.find_words(words.COPULA) if match.end() <= clause.pieces[main[-1]].start]
    starts = list(
        dict.fromkeys(next(index for index in main if clause.pieces[index].start >= match.end()) for match in places)
    )
    if starts:
        return choose_start(clause, starts, main)
    distinct = {clause.pieces[index].text for index in main}
    if len(distinct) == 1 or is_one_list(clause, main):
        return main[0]
    before = [index for index in main if not clause.is_in_circumstance(index)]
    if len({clause.pieces[index].text for index in before}) == 1:
        return before[0]
    return Refusal(SEVERAL)


def is_broken_down(clause: Clause, index: int) -> bool:
    """Return whether a colon and the parts of a value follow it, and add up to it: 12 in total: 8 red and 4 blue."""
    if BREAKDOWN.match(clause.text, clause.pieces[index].end) is None or IN_TOTAL.search(clause.text) is None:
        return False
    numbers = [PLAIN.fullmatch(clause.pieces[place].text) for place in clause.alive if place >= index]
    values = [int(number[1]) for number in numbers if number is not None]
    return len(values) == len(numbers) > 2 and sum(values[1:]) == values[0]


def find_computed(clause: Clause) -> int | Refusal | None:
    """Return the last value that the clause computes: 60 + 10 = 70, or total = 70; None if it computes none."""
    found: int | None = None
    for index in reversed(clause.alive):
        piece, before = clause.pieces[index], clause.pieces[max(index - 1, 0)]
        sides = chains.split_sides(piece.text)
        computed = chains.is_computed(sides) or (index > 0 and before.kind == "sign" and before.text == "=")
        if found is None and computed:
            found = index
        elif found is None and not clause.is_in_circumstance(index):
            return None
        elif computed and found is not None and sides[-1].strip("$ ") not in clause.pieces[found].text:
            between = {other.text.casefold() for other in clause.pieces[index:found]}
            return Refusal(SEVERAL) if between & CONJUNCTIONS else found
    return found


def choose_start(clause: Clause, starts: list[int], main: list[int]) -> int | Refusal:
    """Return the value after the last verb; refuse two subjects joined by `and`, which have two values."""
    last = starts[-1]
    for earlier in starts[:-1]:
        between = [piece.text.casefold() for piece in clause.pieces[earlier + 1 : last]]
        if any(word in CONJUNCTIONS or word == "," for word in between) and not clause.same(earlier, last):
            return Refusal(SEVERAL)
    # 12 is the number of ways to choose 3 items
    subject = [index for index in main if index < last]
    if subject and clause.is_in_circumstance(last) and subject[0] == find_first_piece(clause):
        return subject[0]
    if clause.is_in_circumstance(last) and len(starts) > 1:
        return starts[-2]
    return last


def find_first_piece(clause: Clause) -> int:
    """Return the index of the first piece that is not a filler word."""
    for index, piece in enumerate(clause.pieces):
        if piece.kind in ("value", "name") or not (
            piece.kind == "sign" or words.FILLER.fullmatch(piece.text) or words.COPULA.fullmatch(piece.text)
        ):
            return index
    return len(clause.pieces)


def is_subject(clause: Clause, index: int) -> bool:
    """Return whether a value begins the clause and a verb or nothing follows: 42 is the answer, 2 and 3 are roots."""
    after = read_list(clause, index)[1]
    if not any(later >= after for later in clause.alive):
        return True
    word = clause.pieces[after].text if after < len(clause.pieces) else ""
    if word in SATISFYING:
        return True
    return word in {"is", "are", "ist", "sind", "est", "es"} and not any(
        not clause.is_in_circumstance(later) for later in clause.alive if later >= after
    )


def is_subordinate(clause: Clause, after: int) -> bool:
    """Return whether what follows a value cannot be part of the answer: because …, in 3 days, (about 2)."""
    rest = clause.pieces[after:]
    if not rest or is_difference(clause, rest) or rest[0].text in SATISFYING or clause.find_relative() <= rest[0].start:
        return True
    if rest[0].text == "(":
        return len(rest) > 1 and rest[1].text.casefold() not in CONJUNCTIONS  # 5 (or 6)
    for piece in rest:
        word = piece.text.casefold()
        if piece.kind == "value" or word in CONJUNCTIONS:
            return False
        circumstance = words.CIRCUMSTANCE.fullmatch(word) or words.BECAUSE.fullmatch(word) or word in ("≈", "not")
        if circumstance or words.NOT.match(clause.text, piece.start):
            return True
    return False


def is_difference(clause: Clause, rest: Sequence[Piece]) -> bool:
    """Return whether pieces only say how much more or less a value is than another: , 3 more than Tom."""
    joined = any(piece.text.casefold() in CONJUNCTIONS for piece in rest)
    return not joined and DIFFERENCE.match(clause.text, rest[0].start) is not None


def repeats(clause: Clause, found: Result, rest: list[int]) -> bool:
    """Return whether the later values only repeat the found one, if in another form: 12 (4 × 3), 1/2 (or 50%)."""
    if not isinstance(found, str):
        return False
    value = found.rpartition("=")[2].strip()
    texts = [clause.pieces[index].text.strip("$ ") for index in rest]
    return all(text in (found, value) or equal(value, text, EXACT).correct for text in texts)


def is_one_list(clause: Clause, indexes: list[int]) -> bool:
    after = read_list(clause, indexes[0])[1]
    return after > indexes[-1]
