"""LUFFY's long system message (arXiv 2504.14945): a thought in <think> tags, then a solution with a boxed answer."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "luffy_think"
TAGS = ("<think>", "</think>")

# LUFFY's checkpoints were trained on exactly this text, which its data files contain, so it must not change.
SYSTEM = (
    "Your task is to follow a systematic, thorough reasoning process before providing the final solution. This "
    "involves analyzing, summarizing, exploring, reassessing, and refining your thought process through multiple "
    "iterations. Structure your response into two sections: Thought and Solution. In the Thought section, present your "
    'reasoning using the format: "<think>\n {thoughts} </think>\n". Each thought should include detailed analysis, '
    'brainstorming, verification, and refinement of ideas. After "</think>\n," in the Solution section, provide the '
    "final, logical, and accurate answer, clearly derived from the exploration in the Thought section. If applicable, "
    "include the answer in \\boxed{} for closed-form results like multiple choices or mathematical solutions."
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question with the tokenizer's chat template, which opens the thought for LUFFY's models."""
    return apply_chat_template(problem.question, tokenizer, SYSTEM)


def demonstration(problem: Problem) -> str | None:
    """Return the solution as the thought, then the answer in a box; None without a worked solution or an answer."""
    if not (problem.solution and problem.answer):
        return None
    return f"<think>\n{problem.solution}\n</think>\n\nThe answer is \\boxed{{{problem.answer}}}."
