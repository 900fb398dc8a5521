"""LUFFY's answer format without its system message, as its models are evaluated (arXiv 2504.14945)."""

from __future__ import annotations

from typing import Any

from qed.data.prompts import luffy
from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD, TAGS = luffy.REWARD, luffy.TAGS
demonstration = luffy.demonstration


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the bare question with the tokenizer's chat template."""
    return apply_chat_template(problem.question, tokenizer)
