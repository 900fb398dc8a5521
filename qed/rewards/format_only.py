"""1 when the format holds, whatever the answer: a part of a sum for a model that does not know the format yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from qed.grading.extract import find_last_boxed
from qed.grading.extraction.marks import cut_at_turn
from qed.rewards.think_answer import is_well_formed
from qed.types import Grade, Rollout

JUDGES = False
CHECKS_FORMAT = True
THOUGHT = re.compile(r"<think>(?!.*<think>).*?</think>", re.DOTALL)
FORMATS: dict[str, Callable[[str], bool]] = {
    "think_answer": lambda text: is_well_formed(text.strip()),
    "think": lambda text: THOUGHT.match(text) is not None,
    "r1_zero": lambda text: "</think> <answer>" in text and "</answer>" in text,
    "boxed": lambda text: find_last_boxed(cut_at_turn(text)) is not None,
}


@dataclass(frozen=True)
class FormatOnly:
    """Reward = format."""

    format: Literal["think_answer", "think", "r1_zero", "boxed"] = "think_answer"
    """The format to check: that of the reward with this name; think: one thought in tags, then any text, as in TRL."""

    def __call__(self, rollout: Rollout) -> Grade:
        holds = FORMATS[self.format](rollout.text)
        return Grade(float(holds), False, holds, None)


reward = FormatOnly()
