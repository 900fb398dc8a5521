"""Reasoning and answer in XML tags, each tag on its own line, as in the GSM8K experiments with GRPO."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "gsm8k_xml"
OPENS = ("<reasoning>",)
TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
SYSTEM = (
    "Work the problem out first, then give the result and nothing else. Write each tag on a line of its own:\n"
    "<reasoning>\nyour steps\n</reasoning>\n<answer>\nthe result\n</answer>\n"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question with the tokenizer's chat template and the answer's format as system message."""
    return apply_chat_template(problem.question, tokenizer, SYSTEM)


def demonstration(problem: Problem) -> str | None:
    """Return the solution and the answer in their tags; None without a worked solution or an answer."""
    if not (problem.solution and problem.answer):
        return None
    return f"<reasoning>\n{problem.solution}\n</reasoning>\n<answer>\n{problem.answer}\n</answer>\n"
