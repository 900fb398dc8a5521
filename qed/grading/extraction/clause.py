"""A clause: its pieces, its values, and which of them it denies."""

from __future__ import annotations

import re
from collections.abc import Iterator

from qed.grading.extraction import words
from qed.grading.extraction.chains import is_computed, split_sides
from qed.grading.extraction.pieces import read_pieces

PAUSES = frozenset(",.:;!，。、—")
INTERJECTION = re.compile(r"(?:no|non|nein|нет|não|nie|nee|nej|不|不是|不对|いいえ|아니|아니요|لا|नहीं)", re.IGNORECASE)
BOUNDARY = re.compile(
    r"[,;:—()،、，；：]|(?<!\w)(?:it|it's|they|so|but|therefore|which|that|who|because|since|"
    r"and (?:keep|take|choose|accept))(?!\w)",
    re.IGNORECASE,
)
RELATIVE = re.compile(
    r"(?<!\w)(?:which (?:is|are)(?= \$?[\d.,]{1,20} (?:[a-z]+ )?(?:more|less|fewer)(?!\w))|"
    r"which(?! (?:is|are|equals|gives|makes|means|simplifies|produces|yields|leaves|totals|comes|rounds|"
    r"costs|will|would|results|brings))|"
    r"(?<!see )(?<!know )(?<!find )(?<!found )(?<!means )(?<!conclude )(?<!shows )that|"
    r"who|whose|where|because|since|if|when|while|so that|given that|as)(?!\w)|, with ",
    re.IGNORECASE,
)
MAIN_VERB = re.compile(r"\s(?!true|the case|correct|right)\w+ (?:\w+ ){0,6}(?:is|are|was|were|=)(?!\w)")
RESTART = re.compile(r"(?<!\w)(?:it's|that's|there's)(?!\w)", re.IGNORECASE)
JUDGED = re.compile(
    r"(?<!\w)(?:answers?|correct|right|solutions?|valid|works?|possible|accept\w*|true|allowed|sought)(?!\w)",
    re.IGNORECASE,
)
# The beginning of a relative clause, before its negation.
SUBORDINATE = re.compile(r"(?<!\w)(?:people|number of \w{1,20}|those) (?:who|that) (?:had|have|has|did|do|does) $")
IS = re.compile(r"(?<!\w)(?:is|are|was|were)(?!\w)")
# Where the counted things are not: in the club.
PLACED = re.compile(r"not (?:in|on|at|from) (?:the|a|any|her|his|their) ", re.IGNORECASE)
AUXILIARY = re.compile(
    r"\s{0,3}(?:is|are|was|were|does|do|did|can|could|will|would|should|has|have)?\s{0,3}$", re.IGNORECASE
)
LINKING = words.list_words(
    "out found has have had going need needs shown seen known calculated computed equal simplifies"
)
COMPARED = re.compile(
    r"-[a-z]{2,}|\s(?:more|less|fewer|greater|larger|smaller|older|younger) than (?:[$\d(-]|[a-z](?!\w))|"
    r"\stimes (?:as|bigger|larger|more|greater|smaller|that|the)(?!\w)"
)
NEEDS = re.compile(r"\b(?:needs?|requires?|must|should|have to|has to|draw|take)\b", re.IGNORECASE)
AT_LEAST = re.compile(r"at (?:least|most)", re.IGNORECASE)


class Clause:
    """A clause of a sentence, split into pieces. `values` are the indices of its values, `alive` those not denied."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.pieces = read_pieces(text)
        self.values = [index for index, piece in enumerate(self.pieces) if piece.kind == "value"]
        self.denied = set(self.find_denied())
        self.alive = [index for index in self.values if index not in self.denied]

    def find_words(self, pattern: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Yield the matches of words outside of formulas."""
        for match in pattern.finditer(self.text):
            if not any(
                self.pieces[index].start < match.end() and match.start() < self.pieces[index].end
                for index in self.values
            ):
                yield match

    def finds(self, pattern: re.Pattern[str]) -> bool:
        return next(self.find_words(pattern), None) is not None

    def find_denied(self) -> Iterator[int]:
        """Yield the values that the clause denies to be the answer."""
        if not self.values:
            return
        boundaries = [match.start() for match in self.find_words(BOUNDARY)]
        for match in self.find_words(words.NOT):
            if INTERJECTION.fullmatch(match.group()) and self.text[match.end() : match.end() + 1] in PAUSES:
                continue
            until = next((place for place in boundaries if place >= match.end()), len(self.text))
            until = self.find_predicate(match, until)
            after = [index for index in self.values if match.end() <= self.pieces[index].start < until]
            if after and MAIN_VERB.search(self.text, match.end(), self.pieces[after[0]].start):
                continue  # the number that were not ready is 21
            if after and RESTART.search(self.text, match.end(), self.pieces[after[0]].start):
                after = []  # it is not, it's 7
            yield from after if after else self.find_denied_before(match, boundaries)
        for match in self.find_words(words.WRONG):
            place = len(self.text[: match.start()].rstrip(" —–-:"))  # 42 — wrong
            yield from self.find_values_before(match.start(), [boundary for boundary in boundaries if boundary < place])

    def find_values_before(self, place: int, boundaries: list[int]) -> list[int]:
        start = max((boundary for boundary in boundaries if boundary < place), default=0)
        return [index for index in self.values if start <= self.pieces[index].start < place]

    def find_denied_before(self, match: re.Match[str], boundaries: list[int]) -> list[int]:
        """Return the subject of `42 is not the answer`, but not the count of `12 people do not smoke`."""
        before = self.find_values_before(match.start(), boundaries)
        if not before or (PLACED.match(self.text, match.start()) and self.is_counted(before[-1], match)):
            return []
        gap = self.text[self.pieces[before[-1]].end : match.start()]
        if (
            AUXILIARY.fullmatch(gap)
            or words.COPULA.fullmatch(gap.strip())
            or JUDGED.search(self.text, match.end())
            or not self.text[match.start()].isascii()
        ):
            return before
        return []

    def find_predicate(self, match: re.Match[str], until: int) -> int:
        """Return where the verb after a relative clause begins: the people who had not voted by noon are 1000."""
        relative = SUBORDINATE.search(self.text, 0, match.start())
        verb = next((verb for verb in self.find_words(IS) if match.end() < verb.start() < until), None)
        return verb.start() if relative and verb and verb.start() - match.end() > 1 else until

    def is_counted(self, index: int, match: re.Match[str]) -> bool:
        """Return whether a value is computed and counts things: 120 - 80 = 40 are not in the club."""
        piece = self.pieces[index]
        counts = self.text[piece.end : match.start()].strip() == "are" and not JUDGED.search(self.text, match.end())
        return counts and is_computed(split_sides(piece.text))

    def same(self, one: int, other: int) -> bool:
        return self.pieces[one].text.strip("$ ") == self.pieces[other].text.strip("$ ")

    def find_relative(self) -> int:
        """Return where the relative clause after a value begins; the end of the text if there is none."""
        for match in self.find_words(RELATIVE):
            if any(self.pieces[index].end <= match.start() for index in self.alive):
                return match.start()
        return len(self.text)

    def is_in_circumstance(self, index: int) -> bool:
        """Return whether a preposition stands between the last verb or value and a value."""
        for place in range(index - 1, -1, -1):
            piece = self.pieces[place]
            if piece.kind == "value":
                return False
            if piece.kind == "word" and words.COPULA.fullmatch(piece.text):
                return self.is_infinitive(place)
            if piece.kind == "word" and words.CIRCUMSTANCE.fullmatch(piece.text):
                return True
        return False

    def is_infinitive(self, place: int) -> bool:
        """Return whether a verb is not the main verb: to make 16 muffins, for it to be 600; but turns out to be 5."""
        before = [piece.text.casefold() for piece in self.pieces[max(0, place - 2) : place]]
        return len(before) == 2 and before[1] == "to" and before[0] not in LINKING

    def is_bounded(self, index: int) -> bool:
        before = self.text[: self.pieces[index].start].rstrip()
        if self.text.startswith("+", self.pieces[index].end):
            return True  # 25+
        if "=" in self.pieces[index].text:
            return False
        # from 3 to 5; 5 more than 7
        if before.casefold().endswith(" from") or COMPARED.match(self.text, self.pieces[index].end):
            return True
        match = _find_at_end(words.BOUND, before)
        if match is None:
            return False
        return not (AT_LEAST.fullmatch(match.group()) and NEEDS.search(before))


def _find_at_end(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Return the match of a pattern that ends a text."""
    return next((match for match in pattern.finditer(text) if match.end() == len(text)), None)
