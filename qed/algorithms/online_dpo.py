"""Direct preference optimisation (arXiv 2305.18290) on the policy's own answers: what is right against what is wrong.

loss = - mean over pairs of log sigma(beta d),
d = log pi(y_w) / pi_ref(y_w) - log pi(y_l) / pi_ref(y_l)

Each step samples anew, so the pairs are always the policy's own. A problem whose answers are all right or all wrong has
no pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import require, select_correct
from qed.algorithms.parts.preferences import Preferences
from qed.types import UNGRADED

if TYPE_CHECKING:
    from qed.types import Groups, Rollout


def is_known_wrong(rollout: Rollout) -> bool:
    """Whether the grader found an answer with a reward wrong, and did not merely fail on it."""
    grade = rollout.grade
    return grade is not None and not grade.correct and grade.has_reward and grade.tier not in UNGRADED


@dataclass(frozen=True)
class OnlineDpo(Preferences):
    """Pairs right answers with wrong ones of the same problem."""

    pairs_per_problem: int = 4
    """Pairs made of each problem at most; every answer stands in one pair only. 0 makes as many as there are."""

    defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-6}
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        require(self.pairs_per_problem >= 0, "algorithm.pairs_per_problem must not be negative.")

    @property
    def needs_correctness(self) -> bool:
        """Right answers are paired with wrong ones."""
        return True

    def rows(self, groups: Groups) -> list[Rollout]:
        """Right and wrong answers by turns, each text once."""
        kept: list[Rollout] = []
        for group in groups:
            right = {rollout.output: rollout for rollout in select_correct(group)}
            wrong = {rollout.output: rollout for rollout in group if is_known_wrong(rollout)}
            pairs = list(zip(right.values(), wrong.values(), strict=False))
            kept += [rollout for pair in pairs[: self.pairs_per_problem or None] for rollout in pair]
        return kept
