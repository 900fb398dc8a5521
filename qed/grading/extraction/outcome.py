"""The result of extraction: an answer and its source, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NOT_FOUND = "no answer found"
HEDGED = "no answer found: the text hedges between answers"
NEGATED = "no answer found: the text only says what the answer is not"
SEVERAL = "no answer found: several values, and none is stated as the answer"
CONTRADICTORY = "no answer found: the sides of a chain of equations differ"
BOUNDED = "no answer found: the text states a bound, not a value"
ASKED = "no answer found: the text asks and does not answer"
RETRACTED = "no answer found: the text takes its answer back"
UNSOLVED = "no answer found: an equation that is not solved"
CUT_OFF = "no answer found: the text is cut off in a box, a tag or the thinking"


@dataclass(frozen=True)
class Extracted:
    """An answer, and where in the text it was found."""

    answer: str
    source: str


class Refusal(NamedTuple):
    """The reason why a text has no answer."""

    reason: str


# An answer, the reason to refuse one, or None if there is nothing to read.
Result = str | Refusal | None
