"""Qwen2.5-Math's prompt written out in ChatML, whatever the tokenizer's template: LUFFY's template `qwen`.

With Qwen's own template it is the same text as `boxed`. Source: eval_scripts/generate_vllm.py of
github.com/ElliottYan/LUFFY, whose models are published under MIT.
"""

from __future__ import annotations

from typing import Any

from qed.data.prompts.base import build_boxed_solution
from qed.types import Problem

CHAT = False
STOP = ("<|im_end|>",)
REWARD = "boxed"

# Published checkpoints were trained on exactly this text, so it must not change.
TEXT = (
    "<|im_start|>system\nPlease reason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
)


def render(problem: Problem, tokenizer: Any) -> str:
    """Render the question in ChatML."""
    return TEXT.replace("{question}", problem.question)


def demonstration(problem: Problem) -> str | None:
    """Return the solution with its answer in a box."""
    return build_boxed_solution(problem)
