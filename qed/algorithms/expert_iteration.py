"""Expert iteration: sample, filter, imitate correct answers (Anthony et al. 2017, arXiv 1705.08439; STaR, 2203.14465).

loss = - sum_t w_t log pi(y_t | x, y_<t) over the correct completions of the step. Each step continues from the current
weights, or from the initial ones (`restart`); a step without a correct completion changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from qed.algorithms.base import Algorithm, require, select_correct

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch
    from qed.types import Groups, Rollout


@dataclass(frozen=True)
class ExpertIteration(Algorithm):
    """Imitates its own correct completions."""

    keep: int = 0
    """Maximum number of correct answers to keep per problem, so that easy problems do not dominate; 0 keeps all."""
    deduplicate: bool = True
    """Keep only one of identical answers in a group."""
    restart: bool = False
    """Start every step from the phase's initial weights, as STaR does, instead of the last step's weights."""

    by_advantage: ClassVar[bool] = False
    defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-5}
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def __post_init__(self) -> None:
        """Reject out-of-range settings."""
        super().__post_init__()
        require(self.keep >= 0, "algorithm.keep must not be negative.")

    @property
    def restarts_each_step(self) -> bool:
        """Whether the setting `restart` is on."""
        return self.restart

    @property
    def needs_correctness(self) -> bool:
        """True, because it trains on correct completions."""
        return True

    def rows(self, groups: Groups) -> list[Rollout]:
        """Return the correct completions, deduplicated if set, and at most `keep` per problem."""
        rows: list[Rollout] = []
        for group in groups:
            correct = select_correct(group)
            if self.deduplicate:
                correct = list({rollout.output: rollout for rollout in correct}.values())
            rows += correct[: self.keep or None]
        return rows

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weighted negative log-likelihood."""
        return -(batch.weights * logps.masked_fill(batch.mask == 0, 0)).sum(), {}
