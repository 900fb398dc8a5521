"""The papers' policy losses as plain functions that return the loss of each token, before weighting.

All arguments are [B, T]: `logps` under the policy, with gradient; `old_logps` of the policy in the ratio's denominator;
`advantages`; and `mask`, 1 on response tokens. The result is [B, T], and 0 where the mask is 0, whatever the values
there. An old log-prob of NaN is unknown; its ratio is 1, with the gradient of an on-policy token.

Write d = log pi - log pi_old, r = exp(d), A the advantage, n the number of response tokens in a row, sg(x) x
without its gradient. The ratio of a row is computed from that row alone, so micro-batches cannot change it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

CispoClip = Literal["both", "above", "trl"]
# Bounds on log-ratios: verl's for GSPO-token, TRL's for VESPO's sequence weight and tokens.
GSPO_CAP = 10.0
VESPO_CAP, VESPO_FLOOR = 20.0, math.log(1e-8)


def mask_values(values: Tensor, mask: Tensor) -> Tensor:
    """Set values to 0, without gradient, where the mask is 0, so that a masked NaN cannot propagate."""
    return values.masked_fill(mask == 0, 0)


def fill_old_logps(old_logps: Tensor, logps: Tensor) -> Tensor:
    """Replace NaN in old log-probs, [B, T], with the policy's log-probs, without gradient."""
    return old_logps.where(~old_logps.isnan(), logps.detach())


def compute_log_ratios(logps: Tensor, old_logps: Tensor, mask: Tensor, clamp: float = 0.0) -> Tensor:
    """Compute d, [B, T]; a clamp bounds it to ± that many nats, with no gradient outside (verl, OpenRLHF: 20)."""
    log_ratio = mask_values(logps, mask) - mask_values(fill_old_logps(old_logps, logps), mask)
    return log_ratio.clamp(-clamp, clamp) if clamp else log_ratio


def compute_row_means(values: Tensor, mask: Tensor) -> Tensor:
    """Compute the mean over each row's response tokens, [B, 1]; 0 for a row without any."""
    return mask_values(values, mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def compute_reinforce(logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Compute REINFORCE (Williams 1992): -A log pi. Only its gradient is meaningful, not its value."""
    return -mask_values(advantages, mask) * mask_values(logps, mask)


def compute_unclipped(log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Compute -A r, GRPO without its clip."""
    return -mask_values(advantages, mask) * mask_values(log_ratio, mask).exp()


def compute_clipped(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float, *, dual: float = 0.0
) -> Tensor:
    """Compute PPO's loss (arXiv 1707.06347): -min(A r, A clip(r, 1 - low, 1 + high)).

    With `dual` = c > 0 the loss for A < 0 is at most -A c (dual clip, arXiv 1912.09729; verl: always, c = 3). TRL's
    `delta` bounds r from above before the minimum is taken: the same for A < 0 as long as delta > 1 + high, which also
    leaves A > 0 unchanged.
    """
    advantages, ratio = mask_values(advantages, mask), mask_values(log_ratio, mask).exp()
    loss = -(advantages * ratio).minimum(advantages * ratio.clamp(1 - low, 1 + high))
    return loss.minimum(-advantages * dual).where(advantages < 0, loss) if dual else loss


def compute_sequence_log_ratios(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """Compute log s of GSPO (arXiv 2507.18071), [B, T]: the mean of d over the row, repeated for each token."""
    return mask_values(compute_row_means(log_ratio, mask).expand_as(log_ratio), mask)


def compute_sequence_token_log_ratios(log_ratio: Tensor, logps: Tensor, mask: Tensor) -> Tensor:
    """Compute GSPO-token's log-ratio, [B, T]: the value of log s, at most 10, with the gradient of log pi."""
    values = mask_values(logps, mask)
    return (values - values.detach() + compute_sequence_log_ratios(log_ratio, mask).detach()).clamp(max=GSPO_CAP)


def compute_cispo_weights(log_ratio: Tensor, mask: Tensor, low: float, high: float, clip: CispoClip) -> Tensor:
    """Compute sg(clip(r)) of CISPO, [B, T], by one of three conventions.

    `both` clips to [1 - low, 1 + high] (verl), `above` only above at 1 + high (the paper, open-instruct), `trl` only
    above at `high` itself: use a value such as 5.0 there, because 0.28 would scale every update to at most 0.28.
    """
    ratio = mask_values(log_ratio, mask).detach().exp()
    if clip == "both":
        return ratio.clamp(1 - low, 1 + high)
    return ratio.clamp(max=high if clip == "trl" else 1 + high)


def compute_cispo(logps: Tensor, advantages: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """Compute CISPO (arXiv 2506.13585): -sg(clip(r)) A log pi. Every token keeps a gradient; the value is unbounded."""
    return weights * compute_reinforce(logps, advantages, mask)


def compute_sapo(log_ratio: Tensor, advantages: Tensor, mask: Tensor, temperatures: tuple[float, float]) -> Tensor:
    """Compute SAPO (arXiv 2511.20347): -A sigmoid(tau (r - 1)) 4 / tau, with one tau for A > 0 and one for the rest."""
    positive, negative = temperatures
    advantages, ratio = mask_values(advantages, mask), mask_values(log_ratio, mask).exp()
    gate = (positive * (ratio - 1)).sigmoid() * 4 / positive
    return -advantages * gate.where(advantages > 0, (negative * (ratio - 1)).sigmoid() * 4 / negative)


def compute_gmpo_log_ratios(log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    """Compute GMPO's log-ratio, [B, T]: the row's mean of sign(A) min(sign(A) d, sign(A) clip(d, -low, high)).

    A token with an advantage of 0, such as one dropped by a correction, takes the sign of its row.
    """
    advantages, log_ratio = mask_values(advantages, mask), mask_values(log_ratio, mask)
    sign = advantages.sign().where(advantages != 0, advantages.sum(1, keepdim=True).sign())
    bounded = sign * (sign * log_ratio).minimum(sign * log_ratio.clamp(-low, high))
    return compute_sequence_log_ratios(bounded, mask)


def compute_vespo_weights(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, shape: tuple[float, float, float, float]
) -> Tensor:
    """Compute phi of VESPO (arXiv 2602.10693), [B, T], without gradient: exp(lambda + k log w - lambda w), w = prod r.

    `shape` holds k and lambda for A >= 0, then for A < 0; phi is 1 at w = 1. log w is clamped to [log 1e-8, 20].
    """
    tokens = mask_values(log_ratio, mask).detach().clamp(-VESPO_CAP, VESPO_CAP)
    log_weight = tokens.sum(1, keepdim=True).clamp(VESPO_FLOOR, VESPO_CAP).expand_as(tokens)
    of_positive, of_negative = (
        (rate + k * log_weight - rate * log_weight.exp()).exp() for k, rate in (shape[:2], shape[2:])
    )
    return of_positive.where(advantages >= 0, of_negative)


def find_dppo_kept_tokens(logps: Tensor, sampled_logps: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Return the tokens that DPPO keeps, [B, T] bool: those whose probability is within a bound of the sampler's.

    The bound is pi - pi_sampled <= high for A > 0, and pi - pi_sampled >= -low otherwise.
    """
    change = logps.detach().exp() - sampled_logps.exp()
    return (change <= high).where(advantages > 0, change >= -low)


def find_ipo_kept_tokens(logps: Tensor, sampled_logps: Tensor, low: float, high: float) -> Tensor:
    """Return the tokens that prime-rl's IPO keeps, [B, T] bool: -low <= pi - pi_sampled <= high, regardless of A."""
    change = logps.detach().exp() - sampled_logps.exp()
    return (change <= high) & (change >= -low)


def compute_dppo(log_ratio: Tensor, advantages: Tensor, mask: Tensor, kept: Tensor, square: float) -> Tensor:
    """Compute DPPO (arXiv 2602.04879) as in prime-rl: -A r on kept tokens, and `square` d² on all of them.

    d = log pi - log pi_sampled: the ratio is to the sampler's log-probs, not to those of the old policy.
    """
    return compute_unclipped(log_ratio, advantages, mask) * kept + square * mask_values(log_ratio, mask).square()
