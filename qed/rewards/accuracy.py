"""Right when the final answer of the text is the gold, wherever and however it is written; no format is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.rewards.verdicts import grade_by_final_answer
from qed.types import Grade, Rollout


@dataclass(frozen=True)
class Accuracy:
    """Reward = correct."""

    mode: Literal["strict", "flexible", "lenient"] = "flexible"
    """Where an answer may stand: in a box, tag or #### line; also in words; also in a box or tag that never closes."""

    def __call__(self, rollout: Rollout) -> Grade:
        return grade_by_final_answer(rollout, self.mode)


reward = Accuracy()
