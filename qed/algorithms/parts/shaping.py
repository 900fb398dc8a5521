"""What stands in place of the ratio: for tokens that another policy wrote, and, if asked, for the policy's own.

LUFFY (arXiv 2504.14945) shapes the probability p of a given token, of whose behaviour nothing is known but that it was
written: p / (p + gamma) lifts unlikely tokens, because its gradient is gamma p / (p + gamma)^2 grad log p.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from qed.algorithms.base import compute_token_weights, require
from qed.algorithms.parts.surrogates import Terms, mask_given

if TYPE_CHECKING:
    from torch import Tensor

    from qed.algorithms.base import Average
    from qed.training.batch import Batch

Kind = Literal["none", "logp", "p_logp", "square_root", "power", "regularized"]
KNOWN_EPSILON = 1e-6  # added to a behaviour probability that is known


@dataclass(frozen=True)
class Shaping:
    """The weights of given tokens and of the policy's own; p is the policy's probability of a token."""

    kind: Kind = "regularized"
    """For given tokens: none is p, logp w log p, p_logp p + w log p, square_root and power roots and powers of p,
    regularized p / (p + gamma)."""
    own_kind: Kind = "none"
    """The same for sampled tokens, of their ratio in place of p; logp has no w here. What is shaped is then clipped."""
    gamma: float = 0.1
    """Of regularized: the smaller, the more unlikely tokens weigh."""
    weight: float = 0.1
    """w of logp and p_logp."""
    exponent: float = 0.5
    """e of power."""
    behaviour: bool = False
    """Divide by the writer's own probability where the data has it, without shaping: p / (pi_writer + 1e-6)."""
    most: float = 0.0
    """The largest weight of a given token; 0 sets no bound."""
    least: float = 0.0
    """The smallest weight of a given token; 0 sets no bound."""
    drop_above: float = 0.0
    """Tokens likelier than this count neither in the loss nor in its average; 0 drops none, and saves a pass."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        where = "algorithm.shaping"
        require(self.gamma > 0, f"{where}.gamma must be above 0.")
        require(self.most >= 0, f"{where}.most must not be negative.")
        require(self.least >= 0, f"{where}.least must not be negative.")
        require(0 <= self.drop_above <= 1, f"{where}.drop_above must lie in [0, 1].")

    def given(self, logps: Tensor, behaviour: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The weight of given tokens, and how often a bound held, both at all places.

        Args:
            logps: log-probs of the labels under the policy.
            behaviour: those under who wrote them, NaN where that is not known.
        """
        weight = self._given(logps)
        if self.behaviour:
            unknown = behaviour.isnan()
            known = behaviour.masked_fill(unknown, 0.0).exp() + KNOWN_EPSILON
            weight = weight.where(unknown, logps.exp() / known)
        stats = {}
        if self.most:
            stats["guidance/bound_high"] = weight > self.most
            weight = weight.clamp(max=self.most)
        if self.least:
            stats["guidance/bound_low"] = weight < self.least
            weight = weight.clamp(min=self.least)
        return weight, stats

    def _given(self, logps: Tensor) -> Tensor:
        if self.kind == "logp":
            return self.weight * logps
        if self.kind == "p_logp":
            return self.weight * logps + logps.exp()
        if self.kind == "regularized":
            return shape_probability(logps, self.gamma)
        return (self._exponent(self.kind) * logps).exp()

    def own(self, logps: Tensor, old: Tensor) -> Tensor:
        """What stands for the ratio of sampled tokens, from their log-probs now and before the update."""
        ratio = logps - old
        if self.own_kind == "logp":
            return ratio
        if self.own_kind == "p_logp":
            return ratio.exp() + self.weight * ratio
        if self.own_kind == "regularized":
            return shape_probability(logps, self.gamma) / shape_probability(old, self.gamma)
        return (self._exponent(self.own_kind) * ratio).exp()

    def _exponent(self, kind: Kind) -> float:
        return {"square_root": 0.5, "power": self.exponent}.get(kind, 1.0)

    def filter_groups(self, batch: Batch, logps: Tensor | None, average: Average) -> Batch:
        """The weighted batch without the tokens that are likelier than `drop_above`; `prepared` marks those dropped.

        The share of a token in a constant average or a sequence's sum does not depend on the others.
        """
        if logps is None:
            return batch
        dropped = batch.mask.bool() & (logps.exp() > self.drop_above)
        mask = batch.mask.masked_fill(dropped, 0.0)
        counted = average in ("token", "sequence")
        weights = compute_token_weights(mask, average, 1) if counted else batch.weights.masked_fill(dropped, 0.0)
        return replace(batch, mask=mask, weights=weights, prepared=dropped.to(mask.dtype))


def shape_probability(logps: Tensor, gamma: float) -> Tensor:
    """p / (p + gamma)."""
    p = logps.exp()
    return p / (p + gamma)


def clip_ratio(batch: Batch, ratio: Tensor, low: float, high: float) -> Terms:
    """PPO's clip of whatever stands for the ratio, - min(A rho, A clip(rho, 1 - low, 1 + high))."""
    free, bound = batch.advantages * ratio, batch.advantages * ratio.clamp(1 - low, 1 + high)
    return -free.minimum(bound), {"clip/shaped": ((bound < free) & mask_given(batch).mask.bool()).sum()}


def join_terms(batch: Batch, own: Terms, weight: Tensor, counts: dict[str, Tensor]) -> Terms:
    """- A weight for given tokens beside the terms of the policy's own, and the sums of both for the metrics."""
    terms, stats = own
    given = batch.expert.bool() & batch.mask.bool()
    shaped = -batch.advantages * weight
    stats |= {name: (held & given).sum() for name, held in counts.items()}
    return shaped.where(given, terms), stats | {"guidance/token_share": given.sum()}


def fill_masked(values: Tensor, batch: Batch) -> Tensor:
    """A column with 0 where no response token is, whatever stood there."""
    return values.masked_fill(batch.mask == 0, 0.0)
