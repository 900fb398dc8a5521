"""A chat prompt with a custom system message and options of the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from qed.data.prompts.wrapping import WrappedLeaf
from qed.errors import UsageError
from qed.types import Problem

WORDS: dict[str, Any] = {"true": True, "false": False, "null": None, "none": None}


@dataclass(frozen=True)
class ChangedChat(WrappedLeaf):
    """A prompt leaf with changed messages or chat template options; everything else is delegated to the leaf.

    `system` replaces the system message unless it is empty; `options` are template variables with their values.
    """

    system: str = ""
    options: tuple[tuple[str, Any], ...] = ()

    def render(self, problem: Problem, tokenizer: Any) -> str:
        """Render a problem as the leaf does, with the changes."""
        text: str = self.leaf.render(problem, _ChangedTokenizer(tokenizer, self.system, dict(self.options)))
        return text


@dataclass(frozen=True)
class _ChangedTokenizer:
    """A tokenizer whose chat template receives another system message and additional variables."""

    tokenizer: Any
    system: str
    options: Mapping[str, Any]

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> Any:
        """Apply the chat template to the changed messages.

        Raises:
            UsageError: the template does not use a variable of that name.
        """
        if self.system:
            others = [message for message in messages if message["role"] != "system"]
            messages = [{"role": "system", "content": self.system}, *others]
        for name in self.options:
            if name not in str(self.tokenizer.chat_template or ""):
                raise UsageError(
                    f"data.chat_template_options: the chat template of this model does not use {name}, so it would "
                    "change nothing. Remove it, or correct the name."
                )
        return self.tokenizer.apply_chat_template(messages, **self.options, **options)


def change_chat(leaf: Any, name: str, system: str, options: Sequence[str]) -> Any:
    """Return a prompt with another system message and chat template options; unchanged if neither is given.

    Args:
        leaf: the prompt.
        name: its name, for errors.
        system: the system message; empty for the prompt's own.
        options: NAME=VALUE, such as enable_thinking=false.

    Raises:
        UsageError: the prompt is plain text, which supports neither, or an option is not of that form.
    """
    if not system and not options:
        return leaf
    if not leaf.CHAT:
        given = "data.system_prompt" if system else "data.chat_template_options"
        raise UsageError(
            f"{given} needs a prompt that uses the model's chat template, and {name} is plain text. Use "
            f"--prompt chat, boxed or think_answer, or remove {given}."
        )
    return ChangedChat(leaf, system, tuple(map(_parse_option, options)))


def _parse_option(option: str) -> tuple[str, Any]:
    name, equals, value = (part.strip() for part in option.partition("="))
    if not (name.isidentifier() and equals and value):
        raise UsageError(f"data.chat_template_options must be NAME=VALUE, like enable_thinking=false, not '{option}'.")
    if value.lower() in WORDS:
        return name, WORDS[value.lower()]
    try:
        return name, int(value)
    except ValueError:
        return name, value
