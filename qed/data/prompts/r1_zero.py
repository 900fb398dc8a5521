"""The r1_zero prompt of DeepSeek-R1-Zero (arXiv 2501.12948), as CS336 assignment 5 writes it; works on any base
model."""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP = ("</answer>",)
REWARD = "r1_zero"

# Word for word what existing checkpoints were trained on, so it is not reworded.
TEXT = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The "
    "Assistant first "
    "thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning "
    "process is "
    "enclosed within <think> </think> and answer is enclosed within <answer> </answer> tags, respectively, "
    "i.e., <think> "
    "reasoning process here </think> <answer> answer here </answer>.\nUser: {question}\nAssistant: <think>"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """The question in the conversation, the thought already opened."""
    return TEXT.replace("{question}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """The solution as the thought, then the answer; None for a problem without a worked solution."""
    if not problem.solution:
        return None
    return f"<think> {problem.solution} </think> <answer> {problem.answer} </answer>"
