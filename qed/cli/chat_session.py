"""A conversation in a terminal or over pipes: read questions, show answers, and run commands such as /reset."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from qed.cli.answer_view import AnswerView
from qed.errors import QedError
from qed.guards.redaction import strip_control
from qed.runs.run import write_whole

HELP = """/reset       forget the conversation
/thinking    show or hide the reasoning
/save FILE   write the conversation: as text, or as messages if FILE ends in .json or .jsonl
/help        this list
/exit        leave, as Ctrl-D does
Ctrl-C stops an answer. \"\"\" begins and ends a question of several lines."""
LONG = '"""'
JSON_SUFFIXES = (".json", ".jsonl")


class NoAnswerError(QedError):
    """A question could not be answered. At a terminal the conversation continues without it.

    `ends_pipe` says whether to stop reading questions from a pipe, because the next one would fail too.
    """

    ends_pipe = False


@dataclass(frozen=True)
class Reply:
    """An answer: its text, a remark on how it ended, and whether Ctrl-C stopped it."""

    text: str
    remark: str = ""
    stopped: bool = False


class Partner(Protocol):
    """What answers the questions and remembers the conversation."""

    @property
    def tags(self) -> tuple[str, ...]:
        """The opening and closing tags of the reasoning, then other tags to hide; empty for the usual ones."""

    def ask(self, question: str, write: Callable[[str], None]) -> Reply:
        """Answer a question, and call `write` with each piece of text as it arrives; Ctrl-C stops the answer.

        Raises:
            NoAnswerError: there is no answer; the question is forgotten.
        """

    def reset(self) -> None:
        """Forget the conversation."""


class ChatSession:
    """Answers the questions on standard input until its end.

    Args:
        partner: what answers the questions.
        show_thinking: whether to show the reasoning.
    """

    def __init__(self, partner: Partner, show_thinking: bool) -> None:
        self.partner, self.show_thinking = partner, show_thinking
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self.transcript: list[tuple[str, str]] = []  # questions and answers since the last /reset
        self.saved: set[Path] = set()

    def run(self) -> None:
        """Answer all questions."""
        if self.interactive:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401, PLC0415 -- arrow keys and history; some Pythons lack it
        for line in self._read_questions():
            command, _, argument = line.partition(" ")
            if command in ("/exit", "/quit", "/bye"):
                return
            if line.startswith("/") and self._obey(command, argument.strip()):
                continue
            self._answer(line)

    def _read_questions(self) -> Iterator[str]:
        """Yield each question or command without surrounding blanks; empty lines are skipped."""
        while (line := self._read_line("> ")) is not None:
            text = line.strip()
            if text.startswith(LONG):
                text = self._read_long(text.removeprefix(LONG))
            if text:
                yield text

    def _read_long(self, text: str) -> str:
        """Read the rest of a question of several lines."""
        while LONG not in text and (line := self._read_line("… ")) is not None:
            text += f"\n{line}"
        return text.partition(LONG)[0].strip()

    def _read_line(self, sign: str) -> str | None:
        """Read a line; None at the end of the input."""
        while True:
            try:
                return input(sign if self.interactive else "")
            except EOFError:
                if self.interactive:
                    self._say("")
                return None
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                self._say("\nTo leave, press Ctrl-D or type /exit.")

    def _obey(self, command: str, argument: str) -> bool:
        """Run a command; return False if the line is a question that only begins with a slash."""
        if command == "/help":
            self._say(HELP)
        elif command == "/reset":
            self.partner.reset()
            self.transcript.clear()
            self._say("The conversation is forgotten.")
        elif command == "/thinking":
            self.show_thinking = not self.show_thinking
            self._say(f"The reasoning is {'shown' if self.show_thinking else 'hidden'}.")
        elif command == "/save":
            self._save(argument)
        elif command[1:].isalpha() and self.interactive:
            self._say(f"There is no command {command}.\n{HELP}")
        else:
            return False
        return True

    def _save(self, name: str) -> None:
        path = Path(name).expanduser()
        if not name:
            self._say("/save needs the name of a file.")
        elif not self.transcript:
            self._say("There is nothing to save yet.")
        elif path.is_dir() or (path.exists() and path.resolve() not in self.saved):
            self._say(f"{path} already exists; choose another name.")
        else:
            try:
                write_whole(path, self._format_transcript(path.suffix in JSON_SUFFIXES).encode("utf-8", "replace"))
            except (QedError, OSError) as error:
                self._say(f"{path} cannot be written: {getattr(error.__cause__ or error, 'strerror', error)}.")
                return
            self.saved.add(path.resolve())
            self._say(f"The conversation is in {path}.")

    def _format_transcript(self, as_json: bool) -> str:
        if as_json:
            messages = [
                {"role": role, "content": text}
                for turn in self.transcript
                for role, text in zip(("user", "assistant"), turn, strict=True)
            ]
            return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"
        return "\n".join(f"> {question}\n\n{answer}\n" for question, answer in self.transcript)

    def _answer(self, question: str) -> None:
        """Answer a question; an answer that Ctrl-C stops is kept up to that point."""
        view = AnswerView(sys.stdout, self.show_thinking, self.partner.tags[:2], self.partner.tags[2:])
        try:
            reply = self.partner.ask(question, view.write)
        except NoAnswerError as error:
            if view.has_answer or view.in_thought:
                view.finish()
            if error.ends_pipe and not self.interactive:
                raise
            self._say(str(error))
            return
        if reply.stopped and not self.interactive:
            raise KeyboardInterrupt
        view.finish()
        hidden = ""
        if not view.has_answer and not self.show_thinking:
            option = "/thinking" if self.interactive else "--show-thinking"
            hidden = f"nothing but reasoning and tags, which {option} shows"
        self.transcript.append((question, reply.text))
        if remark := "; ".join(filter(None, [hidden, reply.remark])):
            self._say(f"({remark})")

    def _say(self, text: str) -> None:
        """Print a message that is not an answer; to stderr without a terminal, because answers may go into a pipe."""
        print(strip_control(text), file=sys.stdout if self.interactive else sys.stderr, flush=True)
