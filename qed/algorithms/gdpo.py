"""GDPO (arXiv 2601.05242): each part of the reward is normalised separately before they are added.

S = sum over parts k of w_k (r_k - mean r_k) / (std r_k + eps), per group; A = S / (std S + eps), over the step
loss = that of GRPO

The parts and weights are those of a sum such as `--reward think_answer,0.5*overlong`. In a plain sum,
parts with a large variance would dominate one with a small variance. With a single reward, S is GRPO's advantage.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.parts.advantage import AdvantageEstimator
from qed.algorithms.parts.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class Gdpo(PolicyGradient):
    """GRPO for rewards with several parts."""

    advantage: AdvantageEstimator = AdvantageEstimator(estimator="gdpo", std_epsilon=1e-4)
