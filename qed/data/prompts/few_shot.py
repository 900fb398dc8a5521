"""Few-shot: the standard examples of a benchmark before the question, which `qed evaluate --shots` chooses.

The prompt is rendered when the benchmark is loaded; a question without examples is asked by itself.
"""

from __future__ import annotations

from typing import Any

from qed.data.prompts import few_shot_gsm8k
from qed.types import Problem

CHAT = False
STOP: tuple[str, ...] = ()
REWARD = "accuracy"
demonstration = few_shot_gsm8k.demonstration


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question; a problem with examples has its prompt in `meta["rendered"]`."""
    return f"{problem.question}\n"
