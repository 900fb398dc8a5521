"""Words of extraction that share their first letter are found as those of a plain list are."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from qed.grading.extraction.words import compile_words

LETTERS = "aAbskiKSIеЕω"
FORMS = ("(?:a|b)s", "a?b", "s{2}", "k+", "[ab]i", "(?<!b )so", "a b", "ab(?= s)")
WORDS = st.lists(st.text(LETTERS, min_size=1, max_size=4) | st.sampled_from(FORMS), min_size=1, max_size=12)
TEXTS = st.lists(
    st.sampled_from(["so", "a b", "ab s", "ss", "kk", "bi"]) | st.text(LETTERS + " \u017f\u212a\u0130\u0131.-")
)


@given(WORDS, TEXTS.map(" ".join))
def test_shared_first_letters_change_nothing(words: list[str], text: str) -> None:
    plain = re.compile(rf"(?<!\w)(?:{'|'.join(words)})(?!\w)", re.IGNORECASE)
    found = [match.span() for match in compile_words("|".join(words)).finditer(text)]
    assert found == [match.span() for match in plain.finditer(text)]
