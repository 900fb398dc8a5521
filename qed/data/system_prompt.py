"""A chat prompt with a system message of the user's own, `data.system_prompt`, in place of its own or in addition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qed.errors import UsageError
from qed.types import Problem


@dataclass(frozen=True)
class WithSystemPrompt:
    """A leaf of the prompts whose messages begin with another system message; everything else is the leaf's."""

    leaf: Any
    system: str

    def render(self, problem: Problem, tokenizer: Any) -> str:
        """Render a problem as the leaf does, with the system message replaced."""
        text: str = self.leaf.render(problem, _TokenizerWithSystem(tokenizer, self.system))
        return text

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the leaf."""
        if name.startswith("__") and name != "__name__":  # which messages show
            raise AttributeError(name)
        return getattr(self.leaf, name)


@dataclass(frozen=True)
class _TokenizerWithSystem:
    """A tokenizer whose chat template gets another system message."""

    tokenizer: Any
    system: str

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> Any:
        """Apply the chat template to the messages with the system message replaced."""
        others = [message for message in messages if message["role"] != "system"]
        return self.tokenizer.apply_chat_template([{"role": "system", "content": self.system}, *others], **options)


def replace_system_prompt(leaf: Any, name: str, system: str) -> Any:
    """Return a prompt with another system message; unchanged if `system` is empty.

    Raises:
        UsageError: the prompt is plain text, which has no system message.
    """
    if not system:
        return leaf
    if not leaf.CHAT:
        raise UsageError(
            f"data.system_prompt needs a prompt that uses the model's chat template, and {name} is plain text. Use "
            "--prompt chat, boxed or think_answer, or leave the system prompt out."
        )
    return WithSystemPrompt(leaf, system)
