"""The policy losses of the papers as plain functions: what one token adds to the loss, before it is weighted.

All columns are [B, T]: `logps` under the policy with its gradient, `old_logps` of the policy that the ratio compares
with, `advantages`, and `mask`, 1 on response tokens. The result is [B, T] and 0 where the mask is 0, whatever stands
there. An old log-prob that is NaN is not known; its ratio is 1, with the gradient of a policy that has just sampled.

Write d = log pi - log pi_old, r = exp(d), A the advantage, n the response tokens of a row, sg(x) the value of x
without its gradient. Ratios of whole rows are worked out from that row alone, so cutting a batch cannot change them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

CispoClip = Literal["both", "above", "trl"]
# verl bounds the exponent of GSPO's token form, TRL the logarithm of VESPO's sequence weight and of its tokens.
GSPO_CAP = 10.0
VESPO_CAP, VESPO_FLOOR = 20.0, math.log(1e-8)


def mask_values(values: Tensor, mask: Tensor) -> Tensor:
    """Values with zeros where the mask is 0, without a gradient there; a NaN in a masked place goes nowhere."""
    return values.masked_fill(mask == 0, 0)


def fill_old_logps(old_logps: Tensor, logps: Tensor) -> Tensor:
    """Old log-probs, [B, T]; those of the policy itself, without their gradient, where they are NaN."""
    return old_logps.where(~old_logps.isnan(), logps.detach())


def compute_log_ratios(logps: Tensor, old_logps: Tensor, mask: Tensor, clamp: float = 0.0) -> Tensor:
    """d, [B, T]; with a clamp it is kept within ± that many nats and has no gradient outside (verl, OpenRLHF: 20)."""
    found = mask_values(logps, mask) - mask_values(fill_old_logps(old_logps, logps), mask)
    return found.clamp(-clamp, clamp) if clamp else found


def compute_row_means(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over each row's response tokens, [B, 1]; 0 for a row without any."""
    return mask_values(values, mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)


def compute_reinforce(logps: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """REINFORCE (Williams 1992): -A log pi. Its value carries no information, its gradient does."""
    return -mask_values(advantages, mask) * mask_values(logps, mask)


def compute_unclipped(log_ratio: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """-A r, GRPO without its clip."""
    return -mask_values(advantages, mask) * mask_values(log_ratio, mask).exp()


def compute_clipped(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float, *, dual: float = 0.0
) -> Tensor:
    """PPO (arXiv 1707.06347): -min(A r, A clip(r, 1 - low, 1 + high)).

    With `dual` = c > 0, for A < 0 at most -A c (dual clip, arXiv 1912.09729; verl: always, c = 3). TRL's `delta` bounds
    r from above before the minimum is taken: the same for A < 0 as long as delta > 1 + high, which also is what leaves
    A > 0 alone.
    """
    advantages, ratio = mask_values(advantages, mask), mask_values(log_ratio, mask).exp()
    loss = -(advantages * ratio).minimum(advantages * ratio.clamp(1 - low, 1 + high))
    return loss.minimum(-advantages * dual).where(advantages < 0, loss) if dual else loss


def compute_sequence_log_ratios(log_ratio: Tensor, mask: Tensor) -> Tensor:
    """log s of GSPO (arXiv 2507.18071), [B, T]: the mean of d over the row, at each of its tokens."""
    return mask_values(compute_row_means(log_ratio, mask).expand_as(log_ratio), mask)


def compute_sequence_token_log_ratios(log_ratio: Tensor, logps: Tensor, mask: Tensor) -> Tensor:
    """GSPO-token: the value of log s, at most 10, with the gradient of the token's own log-prob, [B, T]."""
    own = mask_values(logps, mask)
    return (own - own.detach() + compute_sequence_log_ratios(log_ratio, mask).detach()).clamp(max=GSPO_CAP)


def compute_cispo_weights(log_ratio: Tensor, mask: Tensor, low: float, high: float, clip: CispoClip) -> Tensor:
    """sg(clip(r)) of CISPO, [B, T], by one of three conventions.

    `both` clips to [1 - low, 1 + high] (verl), `above` only above at 1 + high (the paper, open-instruct), `trl` only
    above at `high` itself: there 5.0 is meant, and 0.28 would scale every update down to at most 0.28.
    """
    ratio = mask_values(log_ratio, mask).detach().exp()
    if clip == "both":
        return ratio.clamp(1 - low, 1 + high)
    return ratio.clamp(max=high if clip == "trl" else 1 + high)


def compute_cispo(logps: Tensor, advantages: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """CISPO (arXiv 2506.13585): -sg(clip(r)) A log pi. Every token keeps a gradient; the value is not bounded below."""
    return weights * compute_reinforce(logps, advantages, mask)


def compute_sapo(log_ratio: Tensor, advantages: Tensor, mask: Tensor, temperatures: tuple[float, float]) -> Tensor:
    """SAPO (arXiv 2511.20347): -A sigmoid(tau (r - 1)) 4 / tau, one tau for A > 0 and one for the others."""
    positive, negative = temperatures
    advantages, ratio = mask_values(advantages, mask), mask_values(log_ratio, mask).exp()
    gate = (positive * (ratio - 1)).sigmoid() * 4 / positive
    return -advantages * gate.where(advantages > 0, (negative * (ratio - 1)).sigmoid() * 4 / negative)


def compute_gmpo_log_ratios(log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    """log of GMPO's ratio, [B, T]: the row's mean of sign(A) min(sign(A) d, sign(A) clip(d, -low, high)).

    A token without an advantage of its own, such as one that a correction drops, counts with the sign of its row.
    """
    known, own = mask_values(advantages, mask), mask_values(log_ratio, mask)
    sign = known.sign().where(known != 0, known.sum(1, keepdim=True).sign())
    bounded = sign * (sign * own).minimum(sign * own.clamp(-low, high))
    return compute_sequence_log_ratios(bounded, mask)


def compute_vespo_weights(
    log_ratio: Tensor, advantages: Tensor, mask: Tensor, shape: tuple[float, float, float, float]
) -> Tensor:
    """phi of VESPO (arXiv 2602.10693), [B, T], without a gradient: exp(lambda + k log w - lambda w), w = prod r.

    `shape` holds k and lambda for A >= 0, then for A < 0; phi is 1 at w = 1. log w is kept within [log 1e-8, 20].
    """
    tokens = mask_values(log_ratio, mask).detach().clamp(-VESPO_CAP, VESPO_CAP)
    log_weight = tokens.sum(1, keepdim=True).clamp(VESPO_FLOOR, VESPO_CAP).expand_as(tokens)
    of_positive, of_negative = (
        (rate + k * log_weight - rate * log_weight.exp()).exp() for k, rate in (shape[:2], shape[2:])
    )
    return of_positive.where(advantages >= 0, of_negative)


def find_dppo_kept(logps: Tensor, sampled_logps: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """The tokens that DPPO keeps, [B, T] bool: those whose probability has not moved too far on its advantage's side.

    For A > 0 they have pi - pi_sampled <= high, for the others pi - pi_sampled >= -low.
    """
    moved = logps.detach().exp() - sampled_logps.exp()
    return (moved <= high).where(advantages > 0, moved >= -low)


def compute_dppo(log_ratio: Tensor, advantages: Tensor, mask: Tensor, kept: Tensor, square: float) -> Tensor:
    """DPPO (arXiv 2602.04879) as prime-rl has it: -A r on kept tokens, and `square` d² on all of them.

    d = log pi - log pi_sampled: the ratio is to what the sampler said, whatever the old policy is.
    """
    return compute_unclipped(log_ratio, advantages, mask) * kept + square * mask_values(log_ratio, mask).square()
