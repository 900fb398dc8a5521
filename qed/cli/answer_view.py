"""Show an answer as it is streamed: the reasoning dimmed or hidden, and the final answer without its tags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO

from qed.grading.extraction.marks import THOUGHTS
from qed.guards.redaction import strip_control
from qed.sampling.text_stream import count_partial

ANSWER_TAGS = ("<answer>", "</answer>")
DIM, PLAIN, CLEAR_LINE = "\x1b[2m", "\x1b[0m", "\r\x1b[K"
THINKING = "thinking …"


class AnswerView:
    """Writes an answer to a stream, piece by piece.

    A tag may be split over pieces, so the end of the text is held back while it may be the start of one.

    Args:
        stream: where to write; text is dimmed, and hidden reasoning indicated, only on a terminal.
        show_thinking: whether to write the reasoning and all tags.
        thought: the tags around the reasoning, in addition to the usual ones.
        answer_tags: further tags that are written only together with the reasoning.
    """

    def __init__(
        self,
        stream: IO[str],
        show_thinking: bool = False,
        thought: Sequence[str] = (),
        answer_tags: Sequence[str] = (),
    ) -> None:
        self.stream, self.show_thinking, self.terminal = stream, show_thinking, stream.isatty()
        thoughts = (*THOUGHTS, *([tuple(thought)] if thought else []))
        self.openings, self.closings = zip(*thoughts, strict=True)
        self.answer_tags = (*ANSWER_TAGS, *answer_tags)
        self.marks = dict.fromkeys((*self.openings, *self.closings, *self.answer_tags))
        self.in_thought = False
        self.has_answer = False  # whether anything but reasoning has been written
        self._held = ""

    def write(self, text: str, last: bool = False) -> None:
        """Write the next piece of the answer; with `last`, hold nothing back."""
        text = self._held + text
        held = 0 if last else count_partial(text, list(self.marks))
        self._held = text[len(text) - held :]
        for piece in self._split(text[: len(text) - held]):
            if piece in self.openings:
                self._begin_thought(piece)
            elif piece in self.closings:
                self._end_thought(piece)
            else:
                if piece in self.answer_tags and self.in_thought:
                    self._end_thought("")  # a model may forget to close its reasoning
                self._write_piece(piece)
        self.stream.flush()

    def finish(self) -> None:
        """Write what is held back, and end the line."""
        self.write("", last=True)
        if self.in_thought:
            self._end_thought("")
        self.stream.write("\n")
        self.stream.flush()

    def _split(self, text: str) -> Iterator[str]:
        """Split a text at the tags; each tag is a separate piece."""
        while text:
            found = [(at, -len(mark), mark) for mark in self.marks if (at := text.find(mark)) >= 0]
            if not found:
                yield text
                return
            at, _, mark = min(found)
            if at:
                yield text[:at]
            yield mark
            text = text[at + len(mark) :]

    def _begin_thought(self, tag: str) -> None:
        if self.terminal and not self.in_thought:
            self.stream.write(DIM + ("" if self.show_thinking else THINKING))
        self.in_thought = True
        if self.show_thinking:
            self.stream.write(tag)

    def _end_thought(self, tag: str) -> None:
        if self.show_thinking:
            self.stream.write(tag)
        if self.terminal and self.in_thought:
            self.stream.write(PLAIN if self.show_thinking else CLEAR_LINE + PLAIN)
        self.in_thought = False

    def _write_piece(self, piece: str) -> None:
        if self.show_thinking:
            self.stream.write(strip_control(piece))
        elif not self.in_thought and piece not in self.marks:
            # The tags are not written, so the blanks after the opening one are dropped too.
            text = strip_control(piece if self.has_answer else piece.lstrip())
            self.stream.write(text)
        self.has_answer = self.has_answer or bool(not self.in_thought and piece not in self.marks and piece.strip())
