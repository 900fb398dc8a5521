"""Corrections for a sampler whose probabilities differ from the learner's (training-inference mismatch).

There are three policies: the one that sampled (in the engine, with log-probs `sampled_logps`), the old one (the
learner's log-probs of the same tokens before the step's first update), and the one being trained. The weight
w = exp(old - sampled), without a gradient, multiplies the policy loss, but not KL or entropy. Every surrogate is
proportional to the advantage if the weight is not negative, so w multiplies the advantages, once for the whole step,
before the rows are split. VESPO weights a row by a function of its ratio, so there w multiplies the ratio. A correction
never changes a token's weight in the average.

Tokens that no sampler generated are not corrected. A sampled token without a log-prob (NaN) has a log-ratio of 0, but
shares the weight and the rejection of its row. All columns are [B, T].
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from qed.algorithms.base import require
from qed.algorithms.parts.losses import VESPO_FLOOR, compute_row_means, mask_values
from qed.algorithms.parts.surrogates import find_sampled_tokens, read_sampled_logps

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
# Log-ratios are clamped to ± this many nats before exponentiation, as in verl.
SAFE = 20.0


@dataclass(frozen=True)
class Correction:
    """Correction for a sampler whose probabilities differ from the learner's."""

    kind: CorrectionKind = "none"
    """How to correct the policy loss by the weight exp(old - sampled): truncate it, or mask by it; bypass computes the
    ratio against the sampler instead."""
    low: float = 0.0
    """The smallest weight of a correction."""
    high: float = 2.0
    """The largest weight of a correction."""
    normalize: bool = False
    """Divide the weights by their mean over the whole step."""
    rejection: tuple[RejectionKind, ...] = ("none",)
    """Drop tokens or rows by log(old / sampled): by k1, k2 or k3 of a token, or by its sum, mean or maximum over a
    row. With several, separated by commas, a token stays only if each keeps it."""
    rejection_low: tuple[float, ...] = (0.5,)
    """The smallest ratio sampled / old that k1 keeps; one number for all rejections, or one for each."""
    rejection_high: tuple[float, ...] = (2.0,)
    """The largest ratio sampled / old that k1 keeps, or the largest k2 or k3; one number for all, or one for each."""
    offpolicy_limit: float = 0.0
    """Drop rows of negative advantage whose mean of sampled - new log-probs exceeds this; 0 drops none."""

    @property
    def unread(self) -> dict[str, str]:
        """The bounds that have no effect, each with the setting that disables it."""
        weighs = self.kind not in ("none", "bypass")
        of_weights = () if weighs else ("low", "high", "normalize")
        of_rejections = () if self.rejects else ("rejection_low", "rejection_high")
        return {
            **dict.fromkeys(of_weights, f"correction={self.kind}"),
            **dict.fromkeys(of_rejections, "rejection=none"),
        }

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        require(
            0 <= self.low <= self.high and self.high > 0,
            "algorithm.correction_low must lie in [0, algorithm.correction_high].",
        )
        kinds = self.rejection
        require(
            len(set(kinds)) == len(kinds) and ("none" not in kinds or len(kinds) == 1),
            "algorithm.rejection must name each rejection once; none cannot be combined with others.",
        )
        for name in ("rejection_low", "rejection_high"):
            count = len(getattr(self, name))
            require(
                count == 1 or count == len(kinds),
                f"algorithm.{name} must hold one number, or one for each of the {len(kinds)} in algorithm.rejection; "
                f"it has {count}.",
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
        """Each rejection with its lower and upper bound."""
        count = len(self.rejection)
        both = self.rejection_low, self.rejection_high
        low, high = (values * count if len(values) == 1 else values for values in both)
        return list(zip(self.rejection, low, high, strict=True))

    @property
    def rejects(self) -> bool:
        """Whether any rejection may drop tokens or rows."""
        return any(kind != "none" for kind in self.rejection)

    @property
    def rescores(self) -> bool:
        """Whether the learner must compute old log-probs to compare with the sampler's; `bypass` needs none."""
        return self.kind not in ("none", "bypass") or self.rejects


def compute_log_ratios(old_logps: Tensor, sampled_logps: Tensor, mask: Tensor) -> Tensor:
    """Compute old - sampled, [B, T], 0 where the mask is 0 or either log-prob is NaN."""
    difference = old_logps - sampled_logps
    return mask_values(difference, mask).masked_fill(difference.isnan(), 0)


def compute_raw_weights(log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    """Compute exp of each token's log-ratio, or of its row's sum (`sequence`) or mean (`geometric`), [B, T]."""
    values = mask_values(log_ratio, mask)
    if level == "sequence":
        values = values.sum(1, keepdim=True).expand_as(values)
    elif level == "geometric":
        values = compute_row_means(values, mask).expand_as(values)
    return mask_values(values.clamp(-SAFE, SAFE).exp(), mask)


def compute_importance_weights(
    log_ratio: Tensor, mask: Tensor, kind: CorrectionKind, low: float, high: float
) -> Tensor:
    """Compute w, [B, T], 0 where the mask is 0.

    `…_truncate` clamps w to [low, high] (TRL's and verl's truncation, and OpenRLHF's `tis`), `…_mask` sets it to
    0 outside (TRL's masks, and OpenRLHF's `icepop`); both per token or for the product over a row. `geometric_mask`
    uses each token's w unbounded, but 0 in rows whose geometric mean is outside (OpenRLHF's `seq-mask-tis`).
    With `none` and `bypass` the weight is 1: the ratio of `bypass` already includes w.
    """
    if kind in ("none", "bypass"):
        return (mask != 0).to(mask.dtype)
    level, _, bound = kind.partition("_")
    raw = compute_raw_weights(log_ratio, mask, level)
    if bound == "truncate":
        return mask_values(raw.clamp(low, high), mask)
    weights = compute_raw_weights(log_ratio, mask, "token") if level == "geometric" else raw
    return weights * ((raw >= low) & (raw <= high))


def normalize_weights(weights: Tensor, mask: Tensor, kind: CorrectionKind) -> Tensor:
    """Divide weights by their mean over the step's tokens, or over its rows if each row has one weight (verl)."""
    if kind.startswith("sequence"):
        rows = mask.any(1)
        mean = (compute_row_means(weights, mask).squeeze(1) * rows).sum() / rows.sum().clamp(min=1)
    else:
        mean = mask_values(weights, mask).sum() / mask.sum().clamp(min=1)
    return weights / mean if mean > 1e-8 else weights


def find_kept_tokens(log_ratio: Tensor, mask: Tensor, kind: RejectionKind, low: float, high: float) -> Tensor:
    """Return the response tokens that a rejection keeps, [B, T] bool.

    With d = log(old / sampled): k1 = -d, k2 = d² / 2, k3 = e^d - 1 - d, of a token, or its sum, mean or maximum over a
    row. k1 must lie in [log low, log high]: its bounds are those of sampled / old, the inverse of w (verl). k2 and k3
    must not exceed `high`.
    """
    response = mask != 0
    if kind == "none":
        return response
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
    # Compared as ratios, to allow a bound of 0.
    within = (values.exp() >= low) & (values.exp() <= high) if estimator == "k1" else values <= high
    return within & response


def compute_off_policy_mask(
    logps: Tensor, sampled_logps: Tensor, advantages: Tensor, mask: Tensor, limit: float
) -> Tensor:
    """Return a mask, [B, T]: 0 for tokens with A < 0 in rows whose mean of sampled - log pi exceeds the limit, else 1.

    This is the off-policy sequence mask of DeepSeek-V3.2 (arXiv 2512.02556).
    """
    off_policy = compute_row_means(compute_log_ratios(sampled_logps, logps.detach(), mask), mask) > limit
    return (~(off_policy & (advantages < 0))).to(mask.dtype)


def drop_off_policy(batch: Batch, logps: Tensor, limit: float) -> Batch:
    """Set negative advantages to 0 in rows that are too far off-policy; a limit of 0 keeps all.

    Tokens that no sampler generated keep their advantages.
    """
    if not limit:
        return batch
    sampled = find_sampled_tokens(batch)
    kept = compute_off_policy_mask(logps, batch.sampled_logps, batch.advantages, sampled, limit)
    return replace(batch, advantages=(batch.advantages * kept).where(sampled, batch.advantages))


def apply_correction(batch: Batch, settings: Correction, in_ratio: bool) -> Batch:
    """Return a step's rows with corrected advantages; with `bypass`, the sampler's log-probs replace the old ones.

    With `in_ratio` the weights multiply the ratio instead, as VESPO needs.
    """
    if settings.kind == "none" and not settings.rejects:
        return batch
    log_ratio, sampled = _read_step(batch)
    # Tokens that no sampler generated are neither weighted nor dropped.
    weights = _compute_bounded(log_ratio, sampled, settings).where(sampled != 0, 1.0)
    kept = _find_kept_by_all(log_ratio, sampled, settings) | (sampled == 0)
    if in_ratio:
        # VESPO's weight is a function of the ratio, which must then be the ratio to the sampler (as in TRL).
        tokens = sampled.sum(1, keepdim=True).clamp(min=1) if settings.kind.startswith("sequence") else 1
        batch = replace(batch, old_logps=batch.old_logps - weights.log().clamp(min=VESPO_FLOOR) / tokens)
    else:
        batch = replace(batch, advantages=batch.advantages * weights)
    batch = replace(batch, advantages=batch.advantages * kept)
    return replace(batch, old_logps=read_sampled_logps(batch)) if settings.kind == "bypass" else batch


def measure_correction(batch: Batch, settings: Correction) -> dict[str, float]:
    """Compute metrics over all rows of a step: the weights before any bound, and the share of dropped tokens."""
    log_ratio, sampled = _read_step(batch)
    raw = compute_raw_weights(log_ratio, sampled, settings.kind.partition("_")[0])
    tokens = float(sampled.sum()) or 1.0
    weights = _compute_bounded(log_ratio, sampled, settings) * _find_kept_by_all(log_ratio, sampled, settings)
    return {
        "correction/ratio_mean": float(raw.sum()) / tokens,
        "correction/ratio_max": float(raw.max()),
        "correction/outside": float((((raw < settings.low) | (raw > settings.high)) & (sampled != 0)).sum()) / tokens,
        "correction/dropped": float(((weights == 0) & (sampled != 0)).sum()) / tokens,
    }


def _find_kept_by_all(log_ratio: Tensor, mask: Tensor, settings: Correction) -> Tensor:
    """Return the tokens that every rejection keeps; each is evaluated on all tokens of a row, as in verl."""
    kept = mask != 0
    for kind, low, high in settings.bounds:
        kept = kept & find_kept_tokens(log_ratio, mask, kind, low, high)
    return kept


def _compute_bounded(log_ratio: Tensor, mask: Tensor, settings: Correction) -> Tensor:
    """Compute the weight of every sampled token, before any rejection."""
    weights = compute_importance_weights(log_ratio, mask, settings.kind, settings.low, settings.high)
    return normalize_weights(weights, mask, settings.kind) if settings.normalize else weights


def _read_step(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the log-ratios of a step's tokens, and the mask of those that a sampler generated."""
    sampled = find_sampled_tokens(batch).to(batch.mask.dtype)
    return compute_log_ratios(batch.old_logps, batch.sampled_logps, sampled), sampled
