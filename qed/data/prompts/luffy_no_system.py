"""LUFFY's answers without its system message, which is how its models are evaluated (arXiv 2504.14945)."""

from __future__ import annotations

from typing import Any

from qed.data.prompts import luffy
from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = luffy.REWARD
demonstration = luffy.demonstration


def render(problem: Problem, tokenizer: Any) -> str:
    """The bare question in the tokenizer's chat template."""
    return apply_chat_template(problem.question, tokenizer)
