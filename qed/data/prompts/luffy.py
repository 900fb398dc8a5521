"""LUFFY's long system message (arXiv 2504.14945): a thought in <think> tags, then a solution with a boxed answer."""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "luffy_think"

# Word for word what LUFFY's checkpoints were trained on and its data files hold, so it is not reworded.
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
    """The question in the tokenizer's chat template, which opens the thought for LUFFY's own models."""
    return apply_chat_template(problem.question, tokenizer, SYSTEM)


def demonstration(problem: Problem) -> str | None:
    """The solution as the thought, then the answer in a box; None for a problem without a worked solution."""
    if not problem.solution:
        return None
    return f"<think>\n{problem.solution}\n</think>\n\nThe answer is \\boxed{{{problem.answer}}}."
