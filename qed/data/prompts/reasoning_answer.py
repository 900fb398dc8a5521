"""Reasoning and answer in XML tags, each tag on a line of its own, as the GSM8K experiments with GRPO use them."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "gsm8k_xml"
OPENS = ("<reasoning>",)
SYSTEM = (
    "Work the problem out first, then give the result and nothing else. Write each tag on a line of its own:\n"
    "<reasoning>\nyour steps\n</reasoning>\n<answer>\nthe result\n</answer>\n"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """The question in the tokenizer's chat template, the form of the answer as its system message."""
    return apply_chat_template(problem.question, tokenizer, SYSTEM)


def demonstration(problem: Problem) -> str | None:
    """The solution and the answer in their tags; None for a problem without a worked solution."""
    if not problem.solution:
        return None
    return f"<reasoning>\n{problem.solution}\n</reasoning>\n<answer>\n{problem.answer}\n</answer>\n"
