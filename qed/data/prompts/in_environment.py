"""A prompt whose questions come from an environment, and the token ids of the environment's replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from qed.data.prompts.wrapping import WrappedLeaf
from qed.environments.base import SINGLE, Environment, Reply
from qed.environments.calls import ask_messages
from qed.errors import UsageError
from qed.models.chat_template import render_reply
from qed.types import Problem


@dataclass(frozen=True)
class PromptInEnvironment(WrappedLeaf):
    """A prompt leaf that renders an environment's messages as the question; all else is delegated to the leaf."""

    environment: Environment

    def render(self, problem: Problem, tokenizer: Any) -> str:
        """Render the environment's messages, joined by blank lines, as the leaf renders a question."""
        question = "\n\n".join(ask_messages(self.environment, problem))
        text: str = self.leaf.render(replace(problem, question=question), tokenizer)
        return text


def require_one_turn(leaf: Any, who: str) -> None:
    """Raise if there is an environment but nothing that runs its turns.

    Raises:
        UsageError: the prompt has an environment of several turns.
    """
    environment = getattr(leaf, "environment", SINGLE)
    if environment.max_turns > 1:
        raise UsageError(
            f"{who} answers in one turn, and nothing would reply to it in the environment "
            f"{type(environment).__name__.lower()}. Remove --environment, or evaluate a model that qed samples itself."
        )


def render_between(leaf: Any, reply: Reply, tokenizer: Any, opened: str) -> str:
    """Return the text between two turns of the policy.

    A message is rendered by the chat template, or by the leaf's `REPLY` with `{text}` for the message, by default
    between blank lines. The tag that the prompt opened is opened again.
    """
    if not reply.message:
        return reply.text
    if leaf.CHAT:
        text = render_reply(reply.text, tokenizer, **dict(getattr(leaf, "options", ())))
    else:
        text = getattr(leaf, "REPLY", "\n\n{text}\n\n").replace("{text}", reply.text)
    return text if text.rstrip().endswith(opened.strip()) else text + opened


def encode_between(text: str, output: Sequence[int], tokenizer: Any, message: bool) -> list[int]:
    """Return the token ids of a text between two turns; an end token that the policy sampled is not repeated.

    Only a message may contain special tokens: the policy controls what a tool prints, which must not end or begin a
    message.
    """
    ids: list[int] = tokenizer(
        text, add_special_tokens=False, return_attention_mask=False, split_special_tokens=not message
    )["input_ids"]
    return ids[1:] if ids and output and ids[0] == output[-1] and ids[0] in tokenizer.all_special_ids else ids


def split_replies(text: str, tags: tuple[str, str] | None) -> list[str]:
    """Split a demonstration into alternating parts: the policy's text first, then an environment's reply, and so on."""
    parts = []
    while tags and (start := text.find(tags[0])) >= 0 and (end := text.find(tags[1], start)) >= 0:
        end += len(tags[1])
        parts += [text[:start], text[start:end]]
        text = text[end:]
    return [*parts, text]


def mask_replies(output: Sequence[int], tags: tuple[str, str] | None, tokenizer: Any) -> tuple[bool, ...]:
    """Return which tokens of a demonstration are trained on: all but an environment's replies; empty if all are.

    Replies are tokenised separately (`split_replies`), so that none shares a token with the policy's text.
    """
    if not tags:
        return ()
    # Tokens decoded one by one may lose spaces or parts of characters, but never a tag.
    pieces = [tokenizer.decode([token], skip_special_tokens=True) for token in output]
    lengths = [len(part) for part in split_replies("".join(pieces), tags)]
    replied = [end for number, end in enumerate(accumulate(lengths)) if number % 2]
    starts = [end - length for end, length in zip(replied, lengths[1::2], strict=False)]
    places = list(accumulate(map(len, pieces), initial=0))
    spans = list(zip(starts, replied, strict=True))
    mask = tuple(not any(start <= place < end for start, end in spans) for place in places[:-1])
    return () if all(mask) else mask
