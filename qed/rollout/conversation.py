"""A conversation with a policy: its prompt renders every question, with the preceding turns if it can."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import PromptTemplate
from qed.models.chat_template import render_chat
from qed.types import Problem, Prompt

Message = dict[str, str]  # role (system, user or assistant) and content
SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


class Conversation:
    """The turns of a conversation.

    A prompt that uses the tokenizer's chat template receives all turns so far; any other prompt is made for one
    question and receives each question alone.

    Args:
        template: renders a question as in training.
        system: system message that replaces the prompt's own; empty keeps the prompt's.
    """

    def __init__(self, template: PromptTemplate, system: str = "") -> None:
        self.template, self.system = template, system
        self.turns: list[Message] = []  # user and assistant in alternation
        self.has_memory = bool(self._render("?")[0])

    def ask(self, question: str) -> Prompt:
        """Return the prompt of the next question, and remember the question."""
        messages, rest = self._render(question)
        self.turns.append({"role": USER, "content": question})
        if not messages:
            return self.template.prompt(Problem("", question, ""))
        *before, last = messages
        if self.system:
            before = [{"role": SYSTEM, "content": self.system}]
        # Render earlier questions as they were asked, with the text that the prompt adds to a question.
        asked = [
            {**turn, "content": self._render(turn["content"])[0][-1]["content"]} if turn["role"] == USER else turn
            for turn in self.turns[:-1]
        ]
        options = dict(getattr(self.template.leaf, "options", ()))
        text = render_chat([*before, *asked, last], self.template.tokenizer, add_generation_prompt=True, **options)
        return self.template.make_prompt(text + rest)

    def answer(self, text: str) -> None:
        """Remember the answer to the last question."""
        self.turns.append({"role": ASSISTANT, "content": text})

    def forget_question(self) -> None:
        """Forget the last question, which has no answer."""
        self.turns.pop()

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()

    def _render(self, question: str) -> tuple[list[Message], str]:
        """Return the messages that the prompt gives to the chat template, and what it writes after them.

        No messages mean that the prompt does not use the template.
        """
        tokenizer = _TemplateRecorder(self.template.tokenizer)
        text: str = self.template.leaf.render(Problem("", question, ""), tokenizer)
        if not self.template.leaf.CHAT or not text.startswith(tokenizer.text):
            return [], ""
        return tokenizer.messages, text.removeprefix(tokenizer.text)


class _TemplateRecorder:
    """A tokenizer that records the input and output of its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.messages: list[Message] = []
        self.text = ""

    def apply_chat_template(self, messages: list[Message], **options: Any) -> str:
        """Apply the chat template."""
        self.messages = [dict(message) for message in messages]
        self.text = self.tokenizer.apply_chat_template(messages, **options)
        return self.text

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)
