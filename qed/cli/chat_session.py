"""A conversation in a terminal or over pipes: reads questions, streams answers, and obeys commands such as /reset."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from qed.cli.answer_view import AnswerView
from qed.errors import QedError
from qed.guards.redaction import strip_control
from qed.models.load import read_window
from qed.randomness import derive_seed
from qed.rollout.conversation import ASSISTANT, USER, Conversation
from qed.rollout.policy import Policy
from qed.runs.run import write_whole
from qed.sampling.base import Sampler, Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.text_stream import TextStream
from qed.types import Completion, Prompt

HELP = """/reset       forget the conversation
/thinking    show or hide the reasoning
/save FILE   write the conversation: as text, or as messages if FILE ends in .json or .jsonl
/help        this list
/exit        leave, as Ctrl-D does
Ctrl-C stops an answer. \"\"\" begins and ends a question of several lines."""
LONG = '"""'
JSON_SUFFIXES = (".json", ".jsonl")


class ChatSession:
    """Answers the questions of standard input until its end.

    Args:
        policy: answers.
        conversation: renders the questions.
        sampling: how answers are sampled.
        seed: of all answers; they differ from each other, also to the same question.
        show_thinking: whether to show the reasoning.
    """

    def __init__(
        self, policy: Policy, conversation: Conversation, sampling: Sampling, seed: int, show_thinking: bool
    ) -> None:
        self.policy, self.conversation, self.sampling = policy, conversation, sampling
        self.seed, self.show_thinking = seed, show_thinking
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        self.asked = 0
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
                self._say("\nCtrl-D or /exit leaves.")

    def _obey(self, command: str, argument: str) -> bool:
        """Obey a command; return False for a question that only begins with a slash."""
        if command == "/help":
            self._say(HELP)
        elif command == "/reset":
            self.conversation.reset()
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
                for role, text in zip((USER, ASSISTANT), turn, strict=True)
            ]
            return json.dumps({"messages": messages}, ensure_ascii=False) + "\n"
        return "\n".join(f"> {question}\n\n{answer}\n" for question, answer in self.transcript)

    def _answer(self, question: str) -> None:
        """Answer a question; an answer that Ctrl-C stops is kept as far as it came."""
        prompt = self.conversation.ask(question)
        tokens = self.policy.template.tokens(prompt)
        room = read_window(self.policy.model) - len(tokens)
        if room < 1:
            self.conversation.forget_question()
            self._say(f"The model's window of {room + len(tokens)} tokens is full: /reset begins a new conversation.")
            return
        text, reason = self._stream(
            prompt, tokens, replace(self.sampling, max_tokens=min(self.sampling.max_tokens, room))
        )
        self.conversation.answer(text)
        self.transcript.append((question, text))
        if reason:
            self._say(f"({reason})")

    def _stream(self, prompt: Prompt, tokens: tuple[int, ...], sampling: Sampling) -> tuple[str, str]:
        """Sample and show an answer; return its text, and a remark on how it ended."""
        template, self.asked = self.policy.template, self.asked + 1
        tags: tuple[str, ...] = getattr(template.leaf, "TAGS", ())
        view = AnswerView(sys.stdout, self.show_thinking, tags[:2], tags[2:])
        stream, output = TextStream(template.tokenizer, sampling.stop), list[int]()
        view.write(prompt.opened)

        def show(so_far: list[int]) -> None:
            output[:] = so_far
            view.write(stream.read(so_far))

        seed, remark = derive_seed(self.seed, "chat", self.asked), ""
        try:
            completion = _sample(self.policy.sampler, tokens, seed, sampling, show)
            output[:] = completion.tokens
            if completion.stop_reason == "length":
                remark = f"cut off after {len(output)} tokens; --max-tokens allows more"
        except KeyboardInterrupt:
            if not self.interactive:
                raise
            remark = "stopped"
        view.write(stream.read(output, last=True))
        view.finish()
        if not view.has_answer and not self.show_thinking:
            option = "/thinking" if self.interactive else "--show-thinking"
            remark = "; ".join(filter(None, [f"nothing but reasoning and tags, which {option} shows", remark]))
        return template.read(prompt, tuple(output)), remark

    def _say(self, text: str) -> None:
        """Tell the user something that is not an answer: beside the answers, which may go into a pipe."""
        print(strip_control(text), file=sys.stdout if self.interactive else sys.stderr, flush=True)


def _sample(
    sampler: Sampler, prompt: Sequence[int], seed: int, sampling: Sampling, show: Callable[[list[int]], None]
) -> Completion:
    """Sample one completion, streamed if the sampler can do that; a user's own may not."""
    if isinstance(sampler, HFSampler):
        return sampler.stream(prompt, seed, sampling, show)
    ((completion,),) = sampler.generate([prompt], [[seed]], sampling)
    return completion
