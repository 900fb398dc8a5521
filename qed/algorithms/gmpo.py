"""Geometric-mean policy optimisation (GMPO): the ratio of a row is the geometric mean of its tokens' clipped ratios.

d_t = log pi - log pi_old; d'_t = sign(A) min(sign(A) d_t, sign(A) clip(d_t, -low, high)); loss = - A exp(mean of d'_t),
sequence mean

An outlier token affects a geometric mean less than an arithmetic one, so the clip can be wide: e^-0.4 to e^0.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Gmpo(PolicyGradient):
    """GRPO with the geometric mean of the ratios of a row."""

    surrogate: Surrogate = Surrogate(kind="gmpo", clip_low=0.4, clip_high=0.4)
