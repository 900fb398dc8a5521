"""The r1_zero prompt of DeepSeek-R1-Zero (arXiv 2501.12948), as in CS336 assignment 5; works with any base model."""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP = ("</answer>",)
REWARD = "r1_zero"
REPLY = "\nUser: {text}\nAssistant: <think>"
TAGS = ("<think>", "</think>", "<answer>", "</answer>")

# Existing checkpoints were trained on exactly this text, so it must not change.
TEXT = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning "
    "process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> tags, respectively, "
    "i.e., <think> reasoning process here </think> <answer> answer here </answer>.\nUser: {question}\nAssistant: "
    "<think>"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question in the conversation, with the thought already opened."""
    return TEXT.replace("{question}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """Return the solution as the thought, then the answer; None without a worked solution or an answer."""
    if not (problem.solution and problem.answer):
        return None
    return f"<think> {problem.solution} </think> <answer> {problem.answer} </answer>"
