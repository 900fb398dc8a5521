"""The conversation that Eurus-2-7B-PRIME-Zero was trained on (arXiv 2502.01456); works with any base model."""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP: tuple[str, ...] = ()
REWARD = "boxed"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

# A published checkpoint was trained on exactly this text, including the full stop after the question.
TEXT = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> "
    "reasoning process here </think> <answer> answer here </answer>. User: {question}\n\n"
    "Present the answer in LaTex format: \\boxed{Your answer}. Assistant:"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question in the conversation."""
    return TEXT.replace("{question}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """Return the solution as the thought, then the answer in a box; None without a worked solution or an answer."""
    if not (problem.solution and problem.answer):
        return None
    return f" <think> {problem.solution} </think> <answer> \\boxed{{{problem.answer}}} </answer>"
