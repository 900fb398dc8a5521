"""Soft adaptive policy optimisation (SAPO, arXiv 2511.20347): a smooth gate instead of a clip.

loss = - sum_t w_t A sigmoid(tau (rho_t - 1)) 4 / tau, tau = 1 for A > 0 and 1.05 for the others

At rho = 1 its gradient is that of A log pi; it decays as the ratio leaves 1, a little faster for negative advantages.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Sapo(PolicyGradient):
    """GRPO with a sigmoid gate instead of the clip."""

    surrogate: Surrogate = Surrogate(kind="sapo")
