"""A text is searched for a kind of key only if one of its words stands there, so every key has to contain one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.guards.redaction import PATTERNS, REDACTED, redact


@pytest.mark.parametrize("pattern", PATTERNS)
@given(data=st.data())
def test_what_a_pattern_finds_is_redacted(pattern: str, data: st.DataObject) -> None:
    around = data.draw(st.sampled_from(["", " ", "\n"]))
    text = f"{around}{data.draw(st.from_regex(pattern))}{around}"
    assert any(word in text.casefold() for word in PATTERNS[pattern].split())
    assert REDACTED in redact(text)
