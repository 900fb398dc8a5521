"""PPO (arXiv 1707.06347) with a critic: advantages by GAE (arXiv 1506.02438) instead of comparing answers.

A_t = GAE of the critic's values with gae.policy_lambda; R_t the returns with gae.value_lambda (see `parts.gae`)
A_t = (A_t - mean A) / sqrt(var A + 1e-8), over all tokens of the step
loss = - sum_t w_t min(A_t rho_t, A_t clip(rho_t, 1 - low, 1 + high))
value loss = sum_t w_t 0.5 max((V_t - R_t)^2, (clip(V_t, V_old - c, V_old + c) - R_t)^2)

The value head is on a copy of the policy with a separate optimizer, as in verl and NeMo RL, or on the policy's
trunk (`critic.trunk: policy`), as in OpenAI's code for Atari; then the value loss times `critic.coefficient` is added
to the policy loss. Each step trains the copy first. The paper normalises advantages per minibatch; verl and TRL over
the whole step, which is the default here. `advantage.whiten: false` does not normalise them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from qed.algorithms.base import Average
from qed.algorithms.parts import crediting
from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.critic import Critic
from qed.algorithms.parts.gae import Gae, compute_gae, compute_value_losses
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.regularizer import Regularizer
from qed.types import Advantage, Groups, Rollout

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch


@dataclass(frozen=True)
class Ppo(PolicyGradient):
    """The clipped policy gradient with a critic's advantages."""

    average: Average = "token"
    """How the loss is averaged: over tokens, over sequences, by a constant length, or over sequences' sums."""
    advantage: AdvantageEstimator = AdvantageEstimator(estimator="gae", whiten=True)
    gae: Gae = Gae()
    critic: Critic = Critic()
    regularizer: Regularizer = Regularizer(kl_estimator="k1", kl_place="reward")

    step_means: ClassVar[tuple[str, ...]] = ("critic/loss",)

    @property
    def value_model(self) -> Critic:
        """The settings of the critic."""
        return self.critic

    def has_gradient(self, batch: Batch) -> Tensor:
        """Return rows with an advantage; with the value head on the policy's trunk, also those with a return."""
        live = super().has_gradient(batch)
        return live if self.critic.trunk == "copy" else live | (~batch.returns.isnan()).any(1)

    def loss(self, batch: Batch, logps: Tensor, entropy: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the policy loss, plus the value loss if the head is on the policy's trunk."""
        loss, stats = super().loss(batch, logps, entropy)
        if batch.predicted is None:
            return loss, stats
        losses, clipped = compute_value_losses(batch.predicted, batch.values, batch.returns, self.critic.clip)
        value_loss = (batch.weights * losses).sum()
        stats |= {"critic/loss": value_loss.detach(), "critic/clipped": clipped.sum()}
        return loss + self.critic.coefficient * value_loss, stats

    def credit(self, groups: Groups) -> list[list[Advantage]]:
        """Compute the advantage of every token by GAE; a value that is not known yet counts as 0."""

        def estimate(rollout: Rollout) -> Tensor:
            rewards, values = self._read(rollout)
            decay = self.gae.choose_lambda(rollout.trained_count)
            return compute_gae(rewards, values, self.advantage.discount, decay)[: rollout.trained_count]

        return crediting.compute_token_advantages(groups, estimate, self.advantage.whiten)

    def compute_returns(self, rollout: Rollout) -> Sequence[float]:
        """Compute the critic's target R_t at each token of an answer; NaN if there is no reward."""
        if not crediting.is_counted(rollout):
            return (float("nan"),) * len(rollout.output)
        rewards, values = self._read(rollout)
        returns = compute_gae(rewards, values, self.advantage.discount, self.gae.value_lambda) + values
        return crediting.align_tokens(returns[: rollout.trained_count].tolist(), rollout)

    def _read(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Return the rewards and the values of the trained tokens, [T] float64; one entry if there is none."""
        rewards = crediting.read_rewards(rollout, self.regularizer)
        values = rewards.new_zeros(len(rewards))
        if rollout.values is not None and rollout.trained_count:
            chosen = [value for value, trained in zip(rollout.values, rollout.trained, strict=True) if trained]
            values = rewards.new_tensor(chosen)
        return rewards, values
