"""Group relative policy optimisation (DeepSeekMath, arXiv 2402.03300): the group is its own baseline.

A = (r - mean r) / (std r + eps), std with n - 1
loss = - sum_t w_t min(A rho_t, A clip(rho_t, 1 - low, 1 + high)) + kl k3_t - entropy H_t,
rho_t = exp(log pi - log pi_old)

k3 = exp(ref - log pi) - (ref - log pi) - 1 is a low-variance estimator of the KL to the reference model. KL and
entropy are averaged with the same weights as the policy loss, so the meaning of their coefficients does not depend on
the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.parts.policy_gradient import PolicyGradient


@dataclass(frozen=True)
class Grpo(PolicyGradient):
    """The clipped policy gradient with rewards normalised within each group."""
