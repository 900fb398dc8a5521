"""Group sequence policy optimisation (GSPO, arXiv 2507.18071): one ratio for a whole completion.

s = exp(mean over the row's tokens of log pi - log pi_old); loss = - sum_t w_t min(A s, A clip(s, 1 - low, 1 + high)),
sequence mean

The reward applies to the whole completion, so the ratio does too. A mean of many log-ratios varies little, so its clip
is narrow.
`surrogate: gspo_token` has the value s and the gradient of each token. Both are the same if A is constant in a row;
use this one with token-level advantages.
"""

from __future__ import annotations

from dataclasses import dataclass

from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.surrogates import Surrogate


@dataclass(frozen=True)
class Gspo(PolicyGradient):
    """GRPO with one ratio per sequence."""

    surrogate: Surrogate = Surrogate(kind="gspo", clip_low=3e-4, clip_high=4e-4)
