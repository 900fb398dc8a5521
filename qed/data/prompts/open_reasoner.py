"""The conversation of Open-Reasoner-Zero (arXiv 2503.24290), with the thought already opened; for any base model.

LUFFY compares with its models. Source of the text: playground/zero_setting_base.py of
github.com/Open-Reasoner-Zero/Open-Reasoner-Zero (MIT), without its BOS token, which the tokenizer adds.
"""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP = ("</answer>",)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
REWARD = "r1_zero"

# Published checkpoints were trained on exactly this text, so it must not change.
TEXT = (
    "A conversation between User and Assistant. The User asks a question, and the Assistant solves it. The Assistant "
    "first thinks about the reasoning process in the mind and then provides the User with the answer. The reasoning "
    "process is enclosed within <think> </think> and answer is enclosed within <answer> </answer> tags, respectively, "
    "i.e., <think> reasoning process here </think> <answer> answer here </answer>. User: You must put your answer "
    "inside <answer> </answer> tags, i.e., <answer> answer here </answer>. And your final answer will be extracted "
    "automatically by the \\boxed{} tag.\nThis is the problem:\n{question}\nAssistant: <think>"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question in the conversation, with the thought already opened."""
    return TEXT.replace("{question}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """Return the solution as the thought, then the answer in a box; None without a worked solution or an answer."""
    if not (problem.solution and problem.answer):
        return None
    return f"<think> {problem.solution} </think> <answer> \\boxed{{{problem.answer}}} </answer>"
