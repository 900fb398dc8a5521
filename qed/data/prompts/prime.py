"""The conversation that Eurus-2-7B-PRIME-Zero was trained on (arXiv 2502.01456); works on any base model."""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP: tuple[str, ...] = ()
REWARD = "boxed"

# Word for word what an existing checkpoint was trained on, the full stop behind the question included.
TEXT = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> "
    "reasoning process here </think> <answer> answer here </answer>. User: {question}\n\n"
    "Present the answer in LaTex format: \\boxed{Your answer}. Assistant:"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """The question in the conversation."""
    return TEXT.replace("{question}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """The solution as the thought, then the answer in a box; None for a problem without a worked solution."""
    if not problem.solution:
        return None
    return f" <think> {problem.solution} </think> <answer> \\boxed{{{problem.answer}}} </answer>"
