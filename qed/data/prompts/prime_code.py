"""PRIME's conversation for programming problems: LUFFY's template `prime_code`; works with any base model.

The default reward checks the format alone, because qed runs no programs: bring a reward that does. Source of the text:
eval_scripts/generate_vllm.py of github.com/ElliottYan/LUFFY, whose models are published under MIT.
"""

from __future__ import annotations

from typing import Any

from qed.types import Problem

CHAT = False
STOP: tuple[str, ...] = ()
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
REWARD = "format_only"

# Published figures were measured with exactly this text, including both full stops after the instruction.
TEXT = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> "
    "reasoning process here </think> <answer> answer here </answer>. User: {question}\n\n"
    "Write Python code to solve the problem. Present the code in \n```python\nYour code\n```\nat the end.. Assistant:"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question in the conversation."""
    return TEXT.replace("{question}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """Return the solution as the thought, then the answer as code; None without a worked solution or an answer."""
    if not (problem.solution and problem.answer):
        return None
    return f" <think> {problem.solution} </think> <answer>\n```python\n{problem.answer}\n```\n</answer>"
