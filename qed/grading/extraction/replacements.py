"""What the sentences after an announced answer say of it: they replace it, name another one, or leave it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from qed.grading.equal import equal
from qed.grading.extraction.outcome import HEDGED, Refusal, Result
from qed.grading.extraction.statement import read_clause

MAX_SENTENCES = 6
# Words of a text that goes back on what it has announced.
RECONSIDERED = re.compile(
    r"(?<!\w)(?:but|however|realiz\w{1,3}|realis\w{1,3}|forg[eo]t\w{0,3}|missed|overlooked|recheck\w{0,3}|rechecked|"
    r"(?:must|should|need to|have to) (?:also )?(?:add|subtract|include|count)|"
    r"should (?:actually |really )?be(?= [$\\\d(-]))(?!\w)",
    re.IGNORECASE,
)
# So it is 42; the total should be 42: up to the value.
RESTATED = re.compile(
    r"(?<!\w)(?:it|the (?:\w{1,12} )?(?:total|result|answer)) (?:is|are|should be|must be|becomes|comes to) "
    r"(?:(?:actually|really|then|therefore|in fact) )?(?=[$\\\d(\-])",
    re.IGNORECASE,
)
CONDITION = re.compile(r"(?<!\w)(?:if|when|unless|for|in (?:that|this) case)(?!\w)", re.IGNORECASE)
# 8 is also a valid answer; 8 works too; it could be 8.
ALSO = re.compile(
    r"(?:it|answer|total|result|value) (?:could|might|may) (?:well |also |still |instead )?be "
    r"\$?(?P<other>-?[\d.,/]{0,20}\d)|"
    r"(?P<value>(?:[A-Za-z] ?= ?)?[-−]?[\d.,/]{0,20}\d)\$? (?:(?:is|are|would be|could be|may be|might be) also "
    r"(?:an? |the )?(?:valid|correct|possible|acceptable|right|answer|solution)|also works|works (?:too|as well)|"
    r"(?:is|would be) (?:valid|correct|possible|acceptable) (?:too|as well))(?!\w)",
    re.IGNORECASE,
)


def read_later(announced: str, later: Sequence[str]) -> Result:
    """Return the answer that later sentences state in place of the announced one, a refusal if they name another one
    beside it, or None if they leave it.
    """
    current, reconsidered, beside = announced, False, False
    for text in later[:MAX_SENTENCES]:
        also = ALSO.search(text)
        beside = beside or (also is not None and not _is_same(announced, also["value"] or also["other"]))
        reconsidered = reconsidered or RECONSIDERED.search(text) is not None
        restated = RESTATED.search(text) if reconsidered else None
        value = read_clause(text[restated.end() :], announced=True) if restated else None
        if restated is None or not isinstance(value, str) or _is_same(current, value):
            continue
        if ("%" in value) != ("%" in announced):
            continue  # but it is 100% certain
        if CONDITION.search(text, 0, restated.start()):
            return Refusal(HEDGED)
        current = value
    return current if current != announced else Refusal(HEDGED) if beside else None


def _is_same(announced: str, value: str) -> bool:
    return equal(announced, value).correct or equal(value, announced).correct
