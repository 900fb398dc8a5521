"""Normalize questions, so that the same question is recognized despite other case, spacing or punctuation."""

from __future__ import annotations

import re
import unicodedata

# Meaningful signs are kept: operators, brackets, $, %, \\, a point or colon between digits, a factorial.
# Each pattern starts with the character it is about and looks behind from there, so that `re` can skip to it.
QUOTES = re.compile('["`´‘’“”„«»]')
APOSTROPHE = re.compile(r"'(?:(?<=\w\w.)|(?<!\w.)|(?=s\b))")
PUNCTUATION = re.compile(
    r"[,;?¿¡。，、？；….:!](?:(?<![.:!])|(?<=[.:])(?:(?<!\d.)|(?!\d))|(?<=!)(?:(?<![\w)\]}].)|(?<=[^\W\d]{2}.)))"
)
THOUSANDS = re.compile(r",(?<=\d,)(?=\d{3}(?!\d))")
HYPHEN = re.compile(r"-(?<=[^\W\d]{2}-)(?=[^\W\d]{2})")
DASHES = str.maketrans(dict.fromkeys("‐‑‒–—−", "-"))
BESIDE_OPERATOR = re.compile(r" (?:(?=[-+*/^=<>×·÷≤≥])|(?<=[-+*/^=<>×·÷≤≥] ))")


def normalize_question(question: str) -> str:
    """Normalize a question for comparison: ignore case, spaces, and the punctuation of sentences.

    Numerals, operators and brackets are kept, so that 2 + 3 and 2 - 3, or 3.5 and 35, remain different.
    """
    text = unicodedata.normalize("NFKC", question).casefold()
    if not text.isascii():
        text = text.translate(DASHES)
    text = THOUSANDS.sub("", APOSTROPHE.sub("", QUOTES.sub("", text)))
    text = HYPHEN.sub(" ", PUNCTUATION.sub(" ", text))
    return BESIDE_OPERATOR.sub("", " ".join(text.split()))
