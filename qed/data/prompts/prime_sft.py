"""The question with PRIME's instruction, in the tokenizer's chat template: LUFFY's template `prime_sft`.

For models that PRIME trained by SFT, such as Eurus-2-7B-SFT (arXiv 2502.01456). Source of the text:
eval_scripts/generate_vllm.py of github.com/ElliottYan/LUFFY, whose models are published under MIT.
"""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import apply_chat_template, build_boxed_solution
from qed.types import Problem

CHAT = True
STOP: tuple[str, ...] = ()
REWARD = "boxed"
# Published figures were measured with exactly this text, so it must not change.
INSTRUCTION = "\n\nPresent the answer in LaTex format: \\boxed{Your answer}"


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question and the instruction with the tokenizer's chat template."""
    return apply_chat_template(problem.question + INSTRUCTION, tokenizer)


def demonstration(problem: Problem) -> str | None:
    """Return the solution with its answer in a box."""
    return build_boxed_solution(problem)
