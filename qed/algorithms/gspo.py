"""Group sequence policy optimisation (GSPO, arXiv 2507.18071): one ratio for a whole answer.

s = exp(mean over the row's tokens of log pi - log pi_old); loss = - sum_t w_t min(A s, A clip(s, 1 - low, 1 + high)),
sequence mean

The reward is that of the whole answer, so the ratio is as well; its clip is as narrow as a mean of many log-ratios is.
`surrogate: gspo_token` has the value s and each token's own gradient, which is the same where A does not vary within a
row and the form for advantages of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Gspo(PolicyGradient):
    """GRPO with a ratio of sequences."""

    surrogate: Surrogate = Surrogate(kind="gspo", clip_low=3e-4, clip_high=4e-4)
