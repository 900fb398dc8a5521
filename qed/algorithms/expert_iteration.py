"""Expert iteration: sample, keep what is right, imitate it (Anthony et al. 2017, arXiv 1705.08439; STaR, 2203.14465).

loss = - sum_t w_t log pi(y_t | x, y_<t) over the correct answers of the step. The policy goes on from where it is,
or begins anew in every step (`restart`); a step without a correct answer leaves it as it is.
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
    """Imitates its own correct answers."""

    keep: int = 0
    """Correct answers kept of each problem, so that easy problems do not dominate; 0 keeps all."""
    deduplicate: bool = True
    """Keep an answer once where a group has it several times."""
    restart: bool = False
    """Begin every step from the weights that the phase began with, as STaR does; else from those of the last step."""

    by_advantage: ClassVar[bool] = False
    defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-5}
    fresh_defaults: ClassVar[dict[str, Any]] = {"learner.lr": 1e-4}

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        super().__post_init__()
        require(self.keep >= 0, "algorithm.keep must not be negative.")

    @property
    def restarts_each_step(self) -> bool:
        """As set."""
        return self.restart

    @property
    def needs_correctness(self) -> bool:
        """Right answers are what it learns from."""
        return True

    def rows(self, groups: Groups) -> list[Rollout]:
        """The correct answers, each once, at most `keep` of a problem."""
        kept: list[Rollout] = []
        for group in groups:
            right = select_correct(group)
            if self.deduplicate:
                right = list({rollout.output: rollout for rollout in right}.values())
            kept += right[: self.keep or None]
        return kept

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weighted negative log-likelihood."""
        return -(batch.weights * logps.masked_fill(batch.mask == 0, 0)).sum(), {}
