"""Surrogates: which policy loss is minimised, by name, with the sums for the metrics that belong to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from qed.algorithms.parts import losses

if TYPE_CHECKING:
    from torch import Tensor

    from qed.algorithms.parts.policy_gradient import PolicyGradient
    from qed.training.batch import Batch

Surrogate = Literal["clip", "plain", "unclipped", "gspo", "gspo_token", "cispo", "sapo", "gmpo", "vespo", "dppo"]
Terms = tuple["Tensor", dict[str, "Tensor"]]
# Those that stop a token by its ratio or its probability; the others have no clip that could bind.
CLIPPING = ("clip", "gspo", "gspo_token", "cispo", "gmpo", "dppo")


class Tokens(NamedTuple):
    """What a surrogate reads, [B, T] each; the old log-probs are known everywhere."""

    logps: Tensor
    old_logps: Tensor
    log_ratio: Tensor
    advantages: Tensor
    mask: Tensor


def terms(batch: Batch, logps: Tensor, settings: PolicyGradient) -> Terms:
    """What each token of a batch adds to the policy loss, [B, T]; DPPO's ratio is to the sampler's log-probs."""
    old = rolled(batch) if settings.surrogate == "dppo" else batch.old_logps
    return policy_loss(logps, old, batch.advantages, batch.mask, settings)


def policy_loss(logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, settings: PolicyGradient) -> Terms:
    """The loss of each token by the settings' `surrogate`, and sums for the metrics.

    Args:
        logps: [B, T], of the policy, with its gradient.
        old_logps: [B, T], of the policy that the ratio compares with; NaN where it is not known.
        advantages: [B, T].
        mask: [B, T], 1 on response tokens.
        settings: of an algorithm of this family.

    Returns:
        the loss of each token, [B, T], to be weighted and summed, and metrics: `clip/low` and `clip/high` count the
        tokens whose clipped branch is strictly larger than the free one, for A < 0 and for A > 0; `kl/old` sums -d, and
        `ratio/log_max` is the largest |d|; both are left out where the mask is 0 everywhere.
    """
    if settings.surrogate == "plain":
        return losses.plain(logps, advantages, mask), {}
    known = losses.known(old_logps, logps)
    log_ratio = losses.log_ratios(logps, known, mask, settings.ratio_clamp)
    # Every choice that is not among these is -A r, with or without a clip.
    chosen = {"cispo": _cispo, "sapo": _sapo, "gmpo": _gmpo, "vespo": _vespo, "dppo": _dppo}
    tokens = Tokens(logps, known, log_ratio, advantages, mask)
    loss, stats = chosen.get(settings.surrogate, _by_ratio)(tokens, settings)
    if not bool((mask != 0).any()):
        return loss, stats  # all of it was given: there is no ratio, and a largest one of 0 would seem to be stuck
    moved = log_ratio.detach()
    return loss, {**stats, "kl/old": -moved.sum(), "ratio/log_max": moved.abs().max()}


def own_tokens(batch: Batch) -> Batch:
    """The batch as the terms of the policy's own tokens read it: given ones are masked."""
    return replace(batch, mask=batch.mask * (1 - batch.expert))


def rolled(batch: Batch) -> Tensor:
    """The sampler's log-probs, [B, T]; the old ones where no sampler wrote the token or its log-prob is not known."""
    return batch.sampled_logps.where(sampled(batch), batch.old_logps)


def sampled(batch: Batch) -> Tensor:
    """The response tokens that a sampler wrote, with a log-prob that is known, [B, T] bool.

    Given tokens are marked; demonstrations have no sampler, so that none of their log-probs is known.
    """
    return ~batch.sampled_logps.isnan() & (batch.expert == 0) & (batch.mask != 0)


def _bound(which: Tensor, tokens: Tokens) -> dict[str, Tensor]:
    """Counts of the response tokens that a clip stops, by the sign of their advantage."""
    which = which & (tokens.mask != 0)
    return {"clip/low": (which & (tokens.advantages < 0)).sum(), "clip/high": (which & (tokens.advantages > 0)).sum()}


def _by_ratio(tokens: Tokens, settings: PolicyGradient) -> Terms:
    """-A r with or without a clip; r is a token's or, in GSPO, a whole row's."""
    logps, _, log_ratio, advantages, mask = tokens
    if settings.surrogate == "gspo":
        log_ratio = losses.sequence_log_ratios(log_ratio, mask)
    elif settings.surrogate == "gspo_token":
        log_ratio = losses.sequence_token_log_ratios(log_ratio, logps, mask)
    free = losses.unclipped(log_ratio, advantages, mask)
    if settings.surrogate == "unclipped":
        return free, {}
    low, high, dual = settings.clip_low, settings.clip_high, settings.clip_dual
    loss = losses.clipped(log_ratio, advantages, mask, low, high)
    stats = _bound(loss.detach() > free.detach(), tokens)
    if dual:
        loss = losses.clipped(log_ratio, advantages, mask, low, high, dual=dual)
        stats["clip/dual"] = (free.detach() > loss.detach()).sum()
    return loss, stats


def _cispo(tokens: Tokens, settings: PolicyGradient) -> Terms:
    logps, _, log_ratio, advantages, mask = tokens
    weights = losses.cispo_weights(log_ratio, mask, settings.clip_low, settings.clip_high, settings.cispo_clip)
    return losses.cispo(logps, advantages, mask, weights), _bound(weights != log_ratio.detach().exp(), tokens)


def _sapo(tokens: Tokens, settings: PolicyGradient) -> Terms:
    return losses.sapo(tokens.log_ratio, tokens.advantages, tokens.mask, settings.sapo_temperatures), {}


def _gmpo(tokens: Tokens, settings: PolicyGradient) -> Terms:
    _, _, log_ratio, advantages, mask = tokens
    low, high = settings.clip_low, settings.clip_high
    of_row = losses.gmpo_log_ratios(log_ratio, advantages, mask, low, high)
    stopped = (log_ratio > high).where(advantages > 0, log_ratio < -low)
    return losses.unclipped(of_row, advantages, mask), _bound(stopped, tokens)


def _vespo(tokens: Tokens, settings: PolicyGradient) -> Terms:
    logps, _, log_ratio, advantages, mask = tokens
    weights = losses.vespo_weights(log_ratio, advantages, mask, settings.vespo_shape)
    return weights * losses.plain(logps, advantages, mask), {}


def _dppo(tokens: Tokens, settings: PolicyGradient) -> Terms:
    logps, sampled_logps, log_ratio, advantages, mask = tokens
    kept = losses.dppo_kept(logps, sampled_logps, advantages, settings.clip_low, settings.clip_high)
    return losses.dppo(log_ratio, advantages, mask, kept, settings.dppo_square), _bound(~kept, tokens)
