"""Generalized advantage estimation over the trained tokens of an answer, and the value loss.

GAE (arXiv 1506.02438) with the reward r and the critic's value V of each token:

delta_t = r_t + discount V_{t+1} - V_t
A_t = delta_t + discount lambda A_{t+1}
R_t = A_t + V_t, with a separate lambda: the critic's target

V_t is the value before token t is known. After the last token V is 0, even if the answer was truncated. Untrained
tokens, such as an environment's text, are skipped: the token after t is the next trained one. That is
what verl's `compute_gae_advantage_return` does with its response mask; TRL has no such tokens. A lambda of 1 for
values and a smaller one for advantages is VC-PPO's decoupled GAE (arXiv 2503.01491); verl and TRL use one lambda
for both. The lambda of VAPO (arXiv 2504.05118) grows with the answer's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from qed.algorithms.base import require
from qed.algorithms.parts.estimators import compute_returns

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gae:
    """How far advantages and returns look ahead before they rely on the critic's values."""

    policy_lambda: float = 0.95
    """Lambda of the advantages: 1 compares the value with the whole outcome, 0 only with the next value."""
    value_lambda: float = 1.0
    """Lambda of the returns that the critic learns; 1 is the outcome itself."""
    length_alpha: float = 0.0
    """If above 0, policy_lambda of an answer of l tokens is 1 - 1 / (length_alpha l), as in VAPO, which uses 0.05."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(0 <= self.policy_lambda <= 1, "algorithm.gae.policy_lambda must lie in [0, 1].")
        require(0 <= self.value_lambda <= 1, "algorithm.gae.value_lambda must lie in [0, 1].")
        require(self.length_alpha >= 0, "algorithm.gae.length_alpha must not be negative.")

    def choose_lambda(self, length: int) -> float:
        """Return the lambda for the advantages of an answer with `length` trained tokens, at least 0."""
        if not self.length_alpha:
            return self.policy_lambda
        return max(0.0, 1 - 1 / (self.length_alpha * max(1, length)))


def compute_gae(rewards: Tensor, values: Tensor, discount: float, decay: float) -> Tensor:
    """Compute the advantages of the trained tokens of an answer, [T], by GAE.

    Args:
        rewards: [T], reward of each trained token.
        values: [T], value before each of them.
        discount: discount of later rewards per token.
        decay: GAE's lambda.
    """
    following = values.roll(-1)
    following[-1:] = 0
    return compute_returns(rewards + discount * following - values, discount * decay)


def compute_value_losses(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """Compute 0.5 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2) of each token.

    This is the loss of TRL's PPOTrainer and of verl's `compute_value_loss`, with the factor 0.5 that early versions of
    verl lack. Both average over the tokens of a micro-batch; here the token weights do. The clip is 0.2 in TRL and 0.5
    in verl.

    Args:
        values: [...], values of the critic, with a gradient.
        old_values: [...], the values used for the advantages.
        returns: [...], the targets; NaN for none, which gives a loss of 0.
        clip: how far a value may move from its old one; infinity does not clip.

    Returns:
        The losses, and whether the clipped one is strictly larger, both [...].
    """
    known = ~returns.isnan()
    returns = returns.where(known, values.detach())
    clipped = values.clamp(old_values - clip, old_values + clip)
    plain, bounded = (values - returns) ** 2, (clipped - returns) ** 2
    return 0.5 * plain.maximum(bounded).where(known, values * 0), (bounded > plain) & known
