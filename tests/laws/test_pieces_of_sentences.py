"""A sentence has the pieces that it has where every token is tried as the beginning of a formula."""

from __future__ import annotations

from itertools import product

import pytest

from qed.grading.extraction.pieces import CURRENCY, FUNCTIONS, OPERATORS, VALUED, read_pieces

WORDS = "the answer choose Three of αβγ Σx x cm kmh days solution".split()  # noqa: SIM905
SIGNS = [*"()[]{}|,.;:!?%'\"_^&#", "\\", "\\(", "\\{", "\\}", "\\frac{1}{2}", "$", "$$", "5", "2²", "²"]
TOKENS = [*WORDS, *SIGNS, *sorted(FUNCTIONS | OPERATORS | VALUED | CURRENCY)]
BEFORE, AFTER = ["", "5", ")", "x ", "= ", "is "], ["", "5", " 5", "x|", "(3)", "{2}$", " = 7", " of 9", "^2"]


def test_what_is_not_tried_begins_no_formula() -> None:
    sentences = list(map("".join, product(BEFORE, TOKENS, AFTER)))
    found = list(map(read_pieces.__wrapped__, sentences))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qed.grading.extraction.pieces._may_begin", lambda kind, token: True)
        for sentence, pieces in zip(sentences, found, strict=True):
            assert read_pieces.__wrapped__(sentence) == pieces, sentence
