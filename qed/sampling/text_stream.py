"""Decodes the tokens of a growing answer piece by piece, so that the pieces join to the complete text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

UNFINISHED = "\ufffd"  # what a decoder shows for the first bytes of a character


class TextStream:
    """The text of a growing sequence of tokens.

    A character split over several tokens is held back until it is complete, and so is the start of a stop string.
    Nothing follows the first stop string; it is part of the text, as in `PromptTemplate.read`.

    Args:
        tokenizer: decodes tokens.
        stop: the stop strings.
        skip_special: whether special tokens have no text.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str] = (), skip_special: bool = True) -> None:
        self.tokenizer, self.stop, self.skip_special = tokenizer, tuple(stop), skip_special
        self.stopped = False  # whether a stop string has been found
        self._seen = 0  # number of tokens already decoded
        self._context = 0  # index from which to decode: the text of a token depends on those before
        self._held = ""  # text that may be the start of a stop string

    def read(self, tokens: Sequence[int], last: bool = False) -> str:
        """Return the new text.

        Args:
            tokens: all tokens so far.
            last: whether no more tokens follow, so nothing is held back.
        """
        if self.stopped:
            return ""
        before, now = (self._decode(tokens[self._context : end]) for end in (self._seen, len(tokens)))
        new = now[len(before) :]
        if new.endswith(UNFINISHED) and not last:
            return ""
        self._context, self._seen = self._seen, len(tokens)
        text = self._held + new
        ends = [start + len(stop) for stop in self.stop if (start := text.find(stop)) >= 0]
        if ends:
            self.stopped, self._held = True, ""
            return text[: min(ends)]
        held = 0 if last else count_partial(text, self.stop)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=self.skip_special)
        return text


def count_partial(text: str, marks: Sequence[str]) -> int:
    """Return how many of a text's last characters are the start of a mark; 0 if none are."""
    return max(
        (
            length
            for mark in marks
            for length in range(1, min(len(mark) - 1, len(text)) + 1)
            if text.endswith(mark[:length])
        ),
        default=0,
    )
