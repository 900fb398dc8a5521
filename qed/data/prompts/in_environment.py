"""A prompt whose questions are those of an environment, and the tokens of what the environment says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qed.environments.base import Environment, Reply
from qed.models.chat_template import render_reply
from qed.types import Problem


@dataclass(frozen=True)
class PromptInEnvironment:
    """A leaf of the prompts that renders an environment's messages as the question; everything else is the leaf's."""

    leaf: Any
    environment: Environment

    def render(self, problem: Problem, tokenizer: Any) -> str:
        """Render the environment's messages, joined by blank lines, as the leaf renders a question."""
        question = "\n\n".join(message["content"] for message in self.environment.start(problem))
        text: str = self.leaf.render(replace(problem, question=question), tokenizer)
        return text

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the leaf."""
        if name.startswith("__") and name != "__name__":  # which messages show
            raise AttributeError(name)
        return getattr(self.leaf, name)


def render_between(leaf: Any, reply: Reply, tokenizer: Any, opened: str) -> str:
    """Return the text between two turns of the policy.

    A message is rendered by the chat template, or by the leaf's `REPLY`, where `{text}` stands for the message; by
    default it stands between blank lines. The tag that the prompt opened is opened again.
    """
    if not reply.message:
        return reply.text
    if leaf.CHAT:
        text = render_reply(reply.text, tokenizer, **dict(getattr(leaf, "options", ())))
    else:
        text = getattr(leaf, "REPLY", "\n\n{text}\n\n").replace("{text}", reply.text)
    return text if text.rstrip().endswith(opened.strip()) else text + opened


def encode_between(text: str, output: Sequence[int], tokenizer: Any) -> list[int]:
    """Return the token ids of a text between two turns; an end token that the policy sampled is not repeated."""
    ids: list[int] = tokenizer(text, add_special_tokens=False, return_attention_mask=False)["input_ids"]
    return ids[1:] if ids and output and ids[0] == output[-1] and ids[0] in tokenizer.all_special_ids else ids
