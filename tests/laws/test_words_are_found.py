"""Words of extraction that share their first letter are found as those of a plain list are."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from qed.grading.extraction.words import compile_words

LETTERS = "aAbskiKSIеЕωεвдост"
# Characters that equal one of these letters where case is ignored.
VARIANTS = "\u017f\u212a\u0130\u0131\u03f5\u1c80\u1c81\u1c82\u1c83\u1c84\u1c85"
FORMS = ("(?:a|b)s", "a?b", "s{2}", "k+", "[ab]i", "(?<!b )so", "a b", "ab(?= s)")
WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=4) | st.sampled_from(FORMS), min_size=1, max_size=12)
TEXTS = st.lists(st.sampled_from(["so", "a b", "ab s", "ss", "kk", "bi"]) | st.text(LETTERS + VARIANTS + " .-"))


@given(WORDS, TEXTS.map(" ".join))
def test_shared_first_letters_change_nothing(words: list[str], text: str) -> None:
    plain = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)
    found = [match.span() for match in compile_words("|".join(words)).finditer(text)]
    assert found == [match.span() for match in plain.finditer(text)]


def test_a_first_letter_is_found_in_all_its_variants() -> None:
    for letter in LETTERS:
        found, plain = compile_words(f"{letter}x").fullmatch, re.compile(f"{letter}x", re.IGNORECASE).fullmatch
        assert [found(f"{other}x") is None for other in LETTERS + VARIANTS] == [
            plain(f"{other}x") is None for other in LETTERS + VARIANTS
        ]
