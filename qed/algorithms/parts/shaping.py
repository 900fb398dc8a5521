"""Policy shaping: functions that replace the ratio, for given tokens and optionally for sampled ones.

LUFFY (arXiv 2504.14945) shapes the probability p of a demonstration token, whose probability under its author is
unknown: p / (p + gamma) gives unlikely tokens more weight; its gradient is gamma p / (p + gamma)^2 grad log p. ExGRPO
(arXiv 2510.02245) does the same with the ratio of a replayed token, whose earlier probability is recorded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from qed.algorithms.base import compute_token_weights, require
from qed.algorithms.parts.losses import fill_old_logps
from qed.algorithms.parts.surrogates import Terms, mask_off_policy

if TYPE_CHECKING:
    from torch import Tensor

    from qed.algorithms.base import Average
    from qed.training.batch import Batch

Kind = Literal["none", "logp", "p_logp", "square_root", "power", "regularized"]
KNOWN_EPSILON = 1e-6  # added to a known behaviour probability


@dataclass(frozen=True)
class TokenShaping:
    """The weights of given and sampled tokens; p is the policy's probability of a demonstration token, or
    the ratio of a replayed one."""

    kind: Kind = "regularized"
    """Function of the probability p of given tokens. none: p; logp: w log p; p_logp: p + w log p; square_root: the root
    of p; power: p to a power; regularized: p / (p + gamma)."""
    own_kind: Kind = "none"
    """The same for sampled tokens, with their ratio in place of p; logp has no w here. The result is then clipped."""
    gamma: float = 0.1
    """gamma of regularized: a smaller value gives unlikely tokens more weight."""
    weight: float = 0.1
    """w of logp and p_logp."""
    exponent: float = 0.5
    """e of power."""
    most: float = 0.0
    """Largest weight of a given token; 0 sets no bound."""
    least: float = 0.0
    """Smallest weight of a given token; 0 sets no bound."""
    drop_above: float = 0.0
    """Exclude tokens with a probability above this from the loss and its average; 0 drops none and saves a forward
    pass."""

    def __post_init__(self) -> None:
        """Reject settings out of range."""
        where = "algorithm.shaping"
        require(0 < self.gamma < math.inf, f"{where}.gamma must be a finite number above 0.")
        require(math.isfinite(self.weight), f"{where}.weight must be a finite number.")
        require(math.isfinite(self.exponent), f"{where}.exponent must be a finite number.")
        require(self.most >= 0, f"{where}.most must not be negative.")
        require(0 <= self.least < math.inf, f"{where}.least must be a finite number, 0 or more.")
        require(0 <= self.drop_above <= 1, f"{where}.drop_above must lie in [0, 1].")

    def shape_given(self, logps: Tensor) -> Tensor:
        """Compute f(p) by `kind` from log p."""
        if self.kind == "logp":
            return self.weight * logps
        if self.kind == "p_logp":
            return self.weight * logps + logps.exp()
        if self.kind == "regularized":
            return shape_probability(logps, self.gamma)
        return (self._exponent(self.kind) * logps).exp()

    def bound(self, weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Bound the weight of given tokens, and return which ones a bound changed, both for all tokens."""
        stats = {}
        if self.most:
            stats["guidance/bound_high"] = weight > self.most
            weight = weight.clamp(max=self.most)
        if self.least:
            stats["guidance/bound_low"] = weight < self.least
            weight = weight.clamp(min=self.least)
        return weight, stats

    def shape_ratio(self, logps: Tensor, old: Tensor) -> Tensor:
        """Compute the replacement for the ratio of sampled tokens from their current and old log-probs."""
        ratio = logps - old
        if self.own_kind == "logp":
            return ratio
        if self.own_kind == "p_logp":
            return ratio.exp() + self.weight * ratio
        if self.own_kind == "regularized":
            return shape_probability(logps, self.gamma) / shape_probability(old, self.gamma)
        return (self._exponent(self.own_kind) * ratio).exp()

    def _exponent(self, kind: Kind) -> float:
        """Return the exponent of p for a kind that is a power of p."""
        return {"square_root": 0.5, "power": self.exponent}.get(kind, 1.0)

    def drop_likely_tokens(self, batch: Batch, logps: Tensor | None, average: Average) -> Batch:
        """Mask tokens of a weighted batch with a probability above `drop_above`; `prepared` marks them.

        In a constant average or a sequence sum, the weight of a token does not depend on other tokens.
        """
        if logps is None or not self.drop_above:
            return batch
        dropped = batch.mask.bool() & (logps.exp() > self.drop_above)
        mask = batch.mask.masked_fill(dropped, 0.0)
        recompute = average in ("token", "sequence")
        weights = compute_token_weights(mask, average, 1) if recompute else batch.weights.masked_fill(dropped, 0.0)
        return replace(batch, mask=mask, weights=weights, prepared=batch.prepared + dropped)


@dataclass(frozen=True)
class Shaping(TokenShaping):
    """The weights of demonstration tokens, whose author's probability may be known, and of sampled ones."""

    behaviour: bool = False
    """If the data has the author's probability, use p / (pi_author + 1e-6), without shaping."""

    def weigh_off_policy(self, logps: Tensor, behaviour: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the weight of demonstration tokens, and which ones a bound changed, both for all tokens.

        Args:
            logps: log-probs of the labels under the policy.
            behaviour: log-probs under the tokens' author, NaN where unknown.
        """
        weight = self.shape_given(logps)
        if self.behaviour:
            unknown = behaviour.isnan()
            author = behaviour.masked_fill(unknown, 0.0).exp() + KNOWN_EPSILON
            weight = weight.where(unknown, logps.exp() / author)
        return self.bound(weight)


def compute_own_terms(batch: Batch, logps: Tensor, settings: TokenShaping, low: float, high: float) -> Terms:
    """Compute the loss of sampled tokens with a shaped ratio, clipped to [1 - low, 1 + high]."""
    old = fill_old_logps(fill_masked(batch.old_logps, batch), logps)
    return clip_ratio(batch, settings.shape_ratio(logps, old), low, high)


def shape_probability(logps: Tensor, gamma: float) -> Tensor:
    """Compute p / (p + gamma)."""
    p = logps.exp()
    return p / (p + gamma)


def clip_ratio(batch: Batch, ratio: Tensor, low: float, high: float) -> Terms:
    """Compute PPO's clipped loss of a shaped ratio, - min(A rho, A clip(rho, 1 - low, 1 + high))."""
    unclipped, clipped = batch.advantages * ratio, batch.advantages * ratio.clamp(1 - low, 1 + high)
    return -unclipped.minimum(clipped), {
        "clip/shaped": ((clipped < unclipped) & mask_off_policy(batch).mask.bool()).sum()
    }


def join_terms(batch: Batch, sampled: Terms, weight: Tensor, counts: dict[str, Tensor]) -> Terms:
    """Combine - A weight of demonstration tokens with the terms of sampled ones, and the metrics of both."""
    terms, stats = sampled
    given = batch.expert.bool() & batch.mask.bool()
    shaped = -batch.advantages * weight
    stats |= {name: (bounded & given).sum() for name, bounded in counts.items()}
    return shaped.where(given, terms), stats | {"guidance/token_share": given.sum()}


def fill_masked(values: Tensor, batch: Batch) -> Tensor:
    """Set a column to 0 outside the trained response tokens."""
    return values.masked_fill(batch.mask == 0, 0.0)
