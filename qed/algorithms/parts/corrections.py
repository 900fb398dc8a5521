"""Corrections for a sampler whose probabilities are not the learner's (the mismatch of training and inference).

Three policies meet: the one that sampled (the engine, its log-probs `sampled_logps`), the old one (the learner's own
log-probs of the same tokens before the step's first update), and the one that is trained. The weight
w = exp(old - sampled), without a gradient, multiplies the policy loss and neither KL nor entropy. As every surrogate
is proportional to the advantage for a weight that is not negative, it multiplies the advantages, once for the whole
step and before the rows are cut; VESPO weighs a row by a function of its ratio, so there w multiplies the ratio. A
correction never changes what a token's share in the average is.

Tokens that no sampler wrote are not corrected. A token that a sampler wrote without a log-prob (NaN) has the log-ratio
0 and shares the weight and the verdict of its row. All columns are [B, T].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from qed.algorithms.base import require
from qed.algorithms.parts.losses import VESPO_FLOOR, compute_row_means, mask_values
from qed.algorithms.parts.surrogates import find_written, read_sampled_logps

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch

CorrectionKind = Literal[
    "none",
    "token_truncate",
    "token_mask",
    "sequence_truncate",
    "sequence_mask",
    "geometric_mask",
    "bypass",
]
RejectionKind = Literal[
    "none",
    "token_k1",
    "token_k2",
    "token_k3",
    "sequence_sum_k1",
    "sequence_sum_k2",
    "sequence_sum_k3",
    "sequence_mean_k1",
    "sequence_mean_k2",
    "sequence_mean_k3",
    "sequence_max_k2",
    "sequence_max_k3",
]
# Log-ratios are kept within ± this many nats before they are exponentiated, as in verl.
SAFE = 20.0


@dataclass(frozen=True)
class Correction:
    """What is done about a sampler whose probabilities are not the learner's."""

    kind: CorrectionKind = "none"
    """What exp(old - sampled) does to the policy loss: weigh it, bounded; bypass: the ratio is to the sampler."""
    low: float = 0.0
    """The smallest weight of a correction."""
    high: float = 2.0
    """The largest weight of a correction."""
    normalize: bool = False
    """Divide a correction's weights by their mean over the whole step."""
    rejection: tuple[RejectionKind, ...] = ("none",)
    """Drop tokens or rows by a measure of log(old / sampled): k1, k2 or k3 of a token, or a row's sum, mean or max. Of
    several, with commas between, each must keep a token."""
    rejection_low: tuple[float, ...] = (0.5,)
    """The smallest sampled / old that k1 keeps; one number for all rejections, or one for each."""
    rejection_high: tuple[float, ...] = (2.0,)
    """The largest sampled / old that k1 keeps; the largest k2 or k3; one number for all rejections, or one for each."""
    offpolicy_limit: float = 0.0
    """Drop rows of negative advantage whose mean of sampled - new log-probs is above this; 0 drops none."""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(
            0 <= self.low <= self.high and self.high > 0,
            "algorithm.correction_low must lie in [0, algorithm.correction_high].",
        )
        kinds = self.rejection
        require(
            len(set(kinds)) == len(kinds) and ("none" not in kinds or len(kinds) == 1),
            "algorithm.rejection must name each rejection once, and none by itself.",
        )
        for name in ("rejection_low", "rejection_high"):
            count = len(getattr(self, name))
            require(
                count == 1 or count == len(kinds),
                f"algorithm.{name} must hold one number, or one for each of the {len(kinds)} in algorithm.rejection; "
                f"it holds {count}.",
            )
        for kind, low, high in self.bounds:
            # k2 and k3 have no lower bound.
            lowest = low if kind.endswith("k1") else 0.0
            require(
                0 <= lowest <= high and high > 0,
                "algorithm.rejection_low must lie in [0, algorithm.rejection_high]"
                + (f" for {kind}." if len(kinds) > 1 else "."),
            )
        require(self.offpolicy_limit >= 0, "algorithm.offpolicy_limit must not be negative.")

    @property
    def bounds(self) -> list[tuple[RejectionKind, float, float]]:
        """Each rejection with its bounds."""
        count = len(self.rejection)
        low, high = (own * count if len(own) == 1 else own for own in (self.rejection_low, self.rejection_high))
        return list(zip(self.rejection, low, high, strict=True))

    @property
    def rejects(self) -> bool:
        """Whether tokens or rows may be dropped by a rejection."""
        return any(kind != "none" for kind in self.rejection)

    @property
    def rescores(self) -> bool:
        """Whether the learner's own log-probs are compared with the sampler's; a bypass takes the sampler's alone."""
        return self.kind not in ("none", "bypass") or self.rejects


def compute_log_ratios(old_logps: Tensor, sampled_logps: Tensor, mask: Tensor) -> Tensor:
    """old - sampled, [B, T], 0 where the mask is 0 or either is NaN."""
    difference = old_logps - sampled_logps
    return mask_values(difference, mask).masked_fill(difference.isnan(), 0)


def compute_raw_weights(log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    """exp of the log-ratio of a token, of its row's sum (`sequence`) or of its row's mean (`geometric`), [B, T]."""
    own = mask_values(log_ratio, mask)
    if level == "sequence":
        own = own.sum(1, keepdim=True).expand_as(own)
    elif level == "geometric":
        own = compute_row_means(own, mask).expand_as(own)
    return mask_values(own.clamp(-SAFE, SAFE).exp(), mask)


def compute_importance_weights(
    log_ratio: Tensor, mask: Tensor, kind: CorrectionKind, low: float, high: float
) -> Tensor:
    """w, [B, T], 0 where the mask is 0.

    `…_truncate` keeps w within [low, high] (TRL's and verl's truncation, and OpenRLHF's `tis`), `…_mask` sets it to 0
    outside (TRL's masks, and OpenRLHF's `icepop`); both for tokens or for the product over a row. `geometric_mask` has
    a token's own w without a bound, and 0 in rows whose geometric mean is outside (OpenRLHF's `seq-mask-tis`). `none`
    and `bypass` weigh nothing: with `bypass` the ratio itself is to the sampler, and w must not count twice.
    """
    if kind in ("none", "bypass"):
        return (mask != 0).to(mask.dtype)
    level, _, bound = kind.partition("_")
    judged = compute_raw_weights(log_ratio, mask, level)
    if bound == "truncate":
        return mask_values(judged.clamp(low, high), mask)
    weights = compute_raw_weights(log_ratio, mask, "token") if level == "geometric" else judged
    return weights * ((judged >= low) & (judged <= high))


def normalize_weights(weights: Tensor, mask: Tensor, kind: CorrectionKind) -> Tensor:
    """Weights with mean 1: over the step's tokens, or over its rows where every row has one weight (verl)."""
    if kind.startswith("sequence"):
        rows = mask.any(1)
        mean = (compute_row_means(weights, mask).squeeze(1) * rows).sum() / rows.sum().clamp(min=1)
    else:
        mean = mask_values(weights, mask).sum() / mask.sum().clamp(min=1)
    return weights / mean if mean > 1e-8 else weights


def find_kept(log_ratio: Tensor, mask: Tensor, kind: RejectionKind, low: float, high: float) -> Tensor:
    """The response tokens that a rejection keeps, [B, T] bool.

    With d = log(old / sampled): k1 = -d, k2 = d² / 2, k3 = e^d - 1 - d, of a token, or the sum, mean or largest of a
    row. k1 must lie in [log low, log high]: its bounds are those of sampled / old, the inverse of w (verl). k2 and k3
    must not exceed `high`.
    """
    counted = mask != 0
    if kind == "none":
        return counted
    difference = mask_values(log_ratio, mask).clamp(-SAFE, SAFE)
    level, estimator = kind.rsplit("_", 1)
    values = {
        "k1": -difference,
        "k2": difference.square() / 2,
        "k3": difference.exp() - 1 - difference,
    }[estimator]
    if level == "sequence_sum":
        values = values.sum(1, keepdim=True)
    elif level == "sequence_mean":
        values = compute_row_means(values, mask)
    elif level == "sequence_max":
        values = values.amax(1, keepdim=True)
    # Compared as ratios, so that the bounds need no logarithm and 0 is one.
    within = (values.exp() >= low) & (values.exp() <= high) if estimator == "k1" else values <= high
    return within & counted


def find_on_policy(logps: Tensor, sampled_logps: Tensor, advantages: Tensor, mask: Tensor, limit: float) -> Tensor:
    """1 but for tokens with A < 0 in rows where the mean of sampled - log pi exceeds the limit, [B, T].

    The off-policy sequence mask of DeepSeek-V3.2 (arXiv 2512.02556): the policy has left such rows behind already.
    """
    behind = compute_row_means(compute_log_ratios(sampled_logps, logps.detach(), mask), mask) > limit
    return (~(behind & (advantages < 0))).to(mask.dtype)


def apply_correction(batch: Batch, settings: Correction, in_ratio: bool) -> Batch:
    """A step's rows with their advantages corrected, and with `bypass` the sampler's log-probs as the old ones.

    With `in_ratio` the weights multiply the ratio instead, as VESPO wants.
    """
    if settings.kind == "none" and not settings.rejects:
        return batch
    log_ratio, own = _read_step(batch)
    # What no sampler wrote stays as it is: a row's verdict is about the tokens that were sampled.
    weights = _compute_bounded(log_ratio, own, settings).where(own != 0, 1.0)
    stays = _find_kept_by_all(log_ratio, own, settings) | (own == 0)
    if in_ratio:
        # What weighs VESPO's rows is a function of the ratio, so the ratio to the sampler belongs inside (as in TRL).
        tokens = own.sum(1, keepdim=True).clamp(min=1) if settings.kind.startswith("sequence") else 1
        batch = replace(batch, old_logps=batch.old_logps - weights.log().clamp(min=VESPO_FLOOR) / tokens)
    else:
        batch = replace(batch, advantages=batch.advantages * weights)
    batch = replace(batch, advantages=batch.advantages * stays)
    return replace(batch, old_logps=read_sampled_logps(batch)) if settings.kind == "bypass" else batch


def measure_correction(batch: Batch, settings: Correction) -> dict[str, float]:
    """Figures over all rows of a step: the weights as they are before any bound, and the share of tokens dropped."""
    log_ratio, own = _read_step(batch)
    raw = compute_raw_weights(log_ratio, own, settings.kind.partition("_")[0])
    tokens = float(own.sum()) or 1.0
    weights = _compute_bounded(log_ratio, own, settings) * _find_kept_by_all(log_ratio, own, settings)
    return {
        "correction/ratio_mean": float(raw.sum()) / tokens,
        "correction/ratio_max": float(raw.max()),
        "correction/outside": float((((raw < settings.low) | (raw > settings.high)) & (own != 0)).sum()) / tokens,
        "correction/dropped": float(((weights == 0) & (own != 0)).sum()) / tokens,
    }


def _find_kept_by_all(log_ratio: Tensor, mask: Tensor, settings: Correction) -> Tensor:
    """The tokens that every rejection keeps; each judges a row by all of its tokens, as in verl."""
    stays = mask != 0
    for kind, low, high in settings.bounds:
        stays = stays & find_kept(log_ratio, mask, kind, low, high)
    return stays


def _compute_bounded(log_ratio: Tensor, mask: Tensor, settings: Correction) -> Tensor:
    """The weight of every sampled token, before any rejection."""
    weights = compute_importance_weights(log_ratio, mask, settings.kind, settings.low, settings.high)
    return normalize_weights(weights, mask, settings.kind) if settings.normalize else weights


def _read_step(batch: Batch) -> tuple[Tensor, Tensor]:
    """The log-ratios of a step's tokens, and the mask of those that a sampler wrote."""
    own = find_written(batch).to(batch.mask.dtype)
    return compute_log_ratios(batch.old_logps, batch.sampled_logps, own), own
