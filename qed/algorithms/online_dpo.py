"""Direct preference optimisation (arXiv 2305.18290) on pairs of the policy's own correct and wrong completions.

loss = - mean over pairs of log sigma(beta d),
d = log pi(y_w) / pi_ref(y_w) - log pi(y_l) / pi_ref(y_l)

Each step samples new completions, so the pairs are on-policy. A problem with only correct or only wrong completions
yields no pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import require, select_correct
from qed.algorithms.parts.preferences import Preferences

if TYPE_CHECKING:
    from qed.types import Groups, Rollout


def is_wrong(rollout: Rollout) -> bool:
    """Whether a completion has a reward and was judged wrong; False if the grader failed on it."""
    return rollout.grade is not None and not rollout.grade.correct and rollout.has_reward


@dataclass(frozen=True)
class OnlineDpo(Preferences):
    """DPO on pairs of a correct and a wrong completion of the same problem."""

    pairs_per_problem: int = 4
    """Maximum number of pairs per problem; every answer is in at most one pair. 0 sets no limit."""

    defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-6}
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(self.pairs_per_problem >= 0, "algorithm.pairs_per_problem must not be negative.")

    @property
    def needs_correctness(self) -> bool:
        """True, because correct completions are paired with wrong ones."""
        return True

    def rows(self, groups: Groups) -> list[Rollout]:
        """Return alternating correct and wrong completions, without duplicates."""
        rows: list[Rollout] = []
        for group in groups:
            correct = {rollout.output: rollout for rollout in select_correct(group)}
            wrong = {rollout.output: rollout for rollout in group if is_wrong(rollout)}
            pairs = list(zip(correct.values(), wrong.values(), strict=False))
            rows += [rollout for pair in pairs[: self.pairs_per_problem or None] for rollout in pair]
        return rows
