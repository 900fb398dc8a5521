"""Surrogates: the policy losses by name, with the sums for their metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from qed.algorithms.base import require
from qed.algorithms.parts import losses
from qed.algorithms.parts.losses import CispoClip

if TYPE_CHECKING:
    from torch import Tensor

    from qed.training.batch import Batch

SurrogateKind = Literal[
    "clip", "plain", "unclipped", "gspo", "gspo_token", "cispo", "sapo", "gmpo", "vespo", "dppo", "ipo"
]
Terms = tuple["Tensor", dict[str, "Tensor"]]
# Kinds that clip or mask a token by its ratio or its probability; the others have no clip.
CLIPPING = ("clip", "gspo", "gspo_token", "cispo", "gmpo", "dppo", "ipo")
ROW_RATIOS = ("gspo", "gspo_token")
CLIP, CLAMP = ("clip_low", "clip_high"), ("ratio_clamp",)
READ: dict[SurrogateKind, tuple[str, ...]] = {  # the settings that each kind reads
    "clip": (*CLIP, *CLAMP, "clip_dual"),
    "plain": (),
    "unclipped": CLAMP,
    "gspo": (*CLIP, *CLAMP, "clip_dual"),
    "gspo_token": (*CLIP, *CLAMP, "clip_dual"),
    "cispo": (*CLIP, *CLAMP, "cispo_clip"),
    "sapo": (*CLAMP, "sapo_temperatures"),
    "gmpo": (*CLIP, *CLAMP),
    "vespo": (*CLAMP, "vespo_shape"),
    "dppo": (*CLIP, *CLAMP, "dppo_square"),
    "ipo": (*CLIP, *CLAMP, "dppo_square"),
}
TO_SAMPLER = ("dppo", "ipo")  # kinds whose ratio uses the sampler's log-probs


@dataclass(frozen=True)
class Surrogate:
    """The policy loss and its bounds."""

    kind: SurrogateKind = "clip"
    """The policy loss of a token with a given advantage."""
    clip_low: float = 0.2
    """Clip the ratio (in gspo, that of the row) below at 1 - clip_low; gmpo bounds its logarithm, dppo and ipo the
    change of the probability. 1 never clips a ratio."""
    clip_high: float = 0.2
    """Clip the ratio (in gspo, that of the row) above at 1 + clip_high; gmpo bounds its logarithm, dppo and ipo the
    change of the probability. Infinity never clips."""
    clip_dual: float = 0.0
    """For a negative advantage A, the loss is at most -A times this (dual clip; verl: 3); 0 sets no bound."""
    ratio_clamp: float = 0.0
    """Clamp log-ratios to plus or minus this many nats (verl and OpenRLHF: 20); 0 does not clamp them."""
    cispo_clip: CispoClip = "both"
    """Where cispo clips: on both sides, only above at 1 + clip_high, or, as in TRL, only above at clip_high itself."""
    sapo_temperatures: tuple[float, float] = (1.0, 1.05)
    """The temperatures of sapo's gate, for positive advantages and for the others."""
    vespo_shape: tuple[float, float, float, float] = (2.0, 3.0, 3.0, 2.0)
    """vespo's k and lambda for advantages of 0 or more, then for negative ones."""
    dppo_square: float = 1e-3
    """Weight of the squared log-ratio to the sampler in dppo and ipo, on all tokens."""

    def __post_init__(self) -> None:
        """Reject settings out of range."""
        require(0 <= self.clip_low <= 1, "algorithm.clip_low must lie in [0, 1].")
        require(self.clip_high >= 0, "algorithm.clip_high must not be negative.")
        require(self.clip_dual == 0 or self.clip_dual > 1, "algorithm.clip_dual must be 0, or above 1.")
        require(self.ratio_clamp >= 0, "algorithm.ratio_clamp must not be negative.")
        require(
            all(0 < value < math.inf for value in self.sapo_temperatures),
            "algorithm.sapo_temperatures must both be finite numbers above 0.",
        )
        require(
            all(0 < value < math.inf for value in self.vespo_shape),
            "algorithm.vespo_shape must hold finite numbers above 0.",
        )
        require(0 <= self.dppo_square < math.inf, "algorithm.dppo_square must be a finite number, 0 or more.")

    @property
    def unread(self) -> dict[str, str]:
        """The settings that have no effect with this kind, each with the setting that disables it."""
        unread = dict.fromkeys(set().union(*READ.values()) - {*READ[self.kind]}, f"surrogate={self.kind}")
        only_above = self.kind == "cispo" and self.cispo_clip != "both"
        return unread | ({"clip_low": f"cispo_clip={self.cispo_clip}"} if only_above else {})

    @property
    def row_ratios(self) -> bool:
        """Whether there is one ratio per row."""
        return self.kind in ROW_RATIOS

    @property
    def to_sampler(self) -> bool:
        """Whether the ratio uses the sampler's log-probs, so that there is no old policy."""
        return self.kind in TO_SAMPLER

    @property
    def pulls_every_row(self) -> bool:
        """Whether rows without an advantage have a gradient."""
        return self.to_sampler and self.dppo_square > 0


class Tokens(NamedTuple):
    """Input of a surrogate, [B, T] each; unknown old log-probs are already filled in."""

    logps: Tensor
    old_logps: Tensor
    log_ratio: Tensor
    advantages: Tensor
    mask: Tensor


def compute_terms(batch: Batch, logps: Tensor, settings: Surrogate) -> Terms:
    """Compute the policy loss of each token of a batch, [B, T]."""
    old = read_sampled_logps(batch) if settings.to_sampler else batch.old_logps
    return policy_loss(logps, old, batch.advantages, batch.mask, settings)


def policy_loss(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, settings: Surrogate) -> Terms:
    """Compute the loss of each token by `settings.kind`, and sums for the metrics.

    Args:
        logps: [B, T], log-probs of the policy, with gradient.
        old_logps: [B, T], log-probs of the policy that the ratio compares with; NaN where unknown.
        advantages: [B, T].
        mask: [B, T], 1 on response tokens.
        settings: the kind of loss, and its bounds.

    Returns:
        The loss of each token, [B, T], to be weighted and summed, and metrics: `clip/low` and `clip/high` count the
        tokens whose clipped loss is strictly larger than the unclipped one, for A < 0 and for A > 0; `kl/old` sums -d,
        and `ratio/log_max` is the largest |d|; both are omitted if the mask is 0 everywhere.
    """
    if settings.kind == "plain":
        return losses.compute_reinforce(logps, advantages, mask), {}
    old_logps = losses.fill_old_logps(old_logps, logps)
    log_ratio = losses.compute_log_ratios(logps, old_logps, mask, settings.ratio_clamp)
    # Every other kind is -A r, with or without a clip.
    functions = {
        "cispo": _compute_cispo,
        "sapo": _compute_sapo,
        "gmpo": _compute_gmpo,
        "vespo": _compute_vespo,
        "dppo": _compute_dppo,
        "ipo": _compute_dppo,
    }
    tokens = Tokens(logps, old_logps, log_ratio, advantages, mask)
    loss, stats = functions.get(settings.kind, _compute_by_ratio)(tokens, settings)
    if not bool((mask != 0).any()):
        return loss, stats  # without sampled tokens, a `ratio/log_max` of 0 would look like an error
    detached = log_ratio.detach()
    return loss, {**stats, "kl/old": -detached.sum(), "ratio/log_max": detached.abs().max()}


def mask_off_policy(batch: Batch) -> Batch:
    """Mask the tokens that the policy did not sample."""
    return replace(batch, mask=batch.mask * (1 - batch.expert))


def read_sampled_logps(batch: Batch) -> Tensor:
    """Return the sampler's log-probs, [B, T]; the old ones if the token was not sampled or has no log-prob."""
    return batch.sampled_logps.where(find_tokens_with_logps(batch), batch.old_logps)


def find_sampled_tokens(batch: Batch) -> Tensor:
    """Return the response tokens that a sampler generated, [B, T] bool.

    `batch.expert` marks the other tokens of a completion; a demonstration in SFT is a row without any log-prob.
    """
    sampled = (batch.expert == 0) & (batch.mask != 0)
    has_logps = (sampled & ~batch.sampled_logps.isnan()).any(1, keepdim=True)
    return has_logps & sampled


def find_tokens_with_logps(batch: Batch) -> Tensor:
    """Return the response tokens that a sampler generated with a known log-prob, [B, T] bool."""
    return find_sampled_tokens(batch) & ~batch.sampled_logps.isnan()


def _count_clipped(clipped: Tensor, tokens: Tokens) -> dict[str, Tensor]:
    """Count the response tokens whose gradient a clip stops, by the sign of their advantage."""
    clipped, advantages = clipped & (tokens.mask != 0), tokens.advantages
    return {"clip/low": (clipped & (advantages < 0)).sum(), "clip/high": (clipped & (advantages > 0)).sum()}


def _compute_by_ratio(tokens: Tokens, settings: Surrogate) -> Terms:
    """Compute -A r with or without a clip; r is the ratio of a token or, in GSPO, of a row."""
    logps, _, log_ratio, advantages, mask = tokens
    if settings.kind == "gspo":
        log_ratio = losses.compute_sequence_log_ratios(log_ratio, mask)
    elif settings.kind == "gspo_token":
        log_ratio = losses.compute_sequence_token_log_ratios(log_ratio, logps, mask)
    unclipped = losses.compute_unclipped(log_ratio, advantages, mask)
    if settings.kind == "unclipped":
        return unclipped, {}
    low, high, dual = settings.clip_low, settings.clip_high, settings.clip_dual
    loss = losses.compute_clipped(log_ratio, advantages, mask, low, high)
    stats = _count_clipped(loss.detach() > unclipped.detach(), tokens)
    if dual:
        loss = losses.compute_clipped(log_ratio, advantages, mask, low, high, dual=dual)
        stats["clip/dual"] = (unclipped.detach() > loss.detach()).sum()
    return loss, stats


def _compute_cispo(tokens: Tokens, settings: Surrogate) -> Terms:
    logps, _, log_ratio, advantages, mask = tokens
    weights = losses.compute_cispo_weights(log_ratio, mask, settings.clip_low, settings.clip_high, settings.cispo_clip)
    return losses.compute_cispo(logps, advantages, mask, weights), _count_clipped(
        weights != log_ratio.detach().exp(), tokens
    )


def _compute_sapo(tokens: Tokens, settings: Surrogate) -> Terms:
    return losses.compute_sapo(tokens.log_ratio, tokens.advantages, tokens.mask, settings.sapo_temperatures), {}


def _compute_gmpo(tokens: Tokens, settings: Surrogate) -> Terms:
    _, _, log_ratio, advantages, mask = tokens
    low, high = settings.clip_low, settings.clip_high
    of_row = losses.compute_gmpo_log_ratios(log_ratio, advantages, mask, low, high)
    stopped = (log_ratio > high).where(advantages > 0, log_ratio < -low)
    return losses.compute_unclipped(of_row, advantages, mask), _count_clipped(stopped, tokens)


def _compute_vespo(tokens: Tokens, settings: Surrogate) -> Terms:
    logps, _, log_ratio, advantages, mask = tokens
    weights = losses.compute_vespo_weights(log_ratio, advantages, mask, settings.vespo_shape)
    return weights * losses.compute_reinforce(logps, advantages, mask), {}


def _compute_dppo(tokens: Tokens, settings: Surrogate) -> Terms:
    logps, sampled_logps, log_ratio, advantages, mask = tokens
    low, high = settings.clip_low, settings.clip_high
    if settings.kind == "ipo":
        kept = losses.find_ipo_kept_tokens(logps, sampled_logps, low, high)
    else:
        kept = losses.find_dppo_kept_tokens(logps, sampled_logps, advantages, low, high)
    return losses.compute_dppo(log_ratio, advantages, mask, kept, settings.dppo_square), _count_clipped(~kept, tokens)
