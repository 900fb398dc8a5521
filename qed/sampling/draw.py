"""The draw of the next token, by which all samplers in this process draw alike.

A token is found by inverting the cumulative distribution at a number that belongs to the answer's seed and the token's
position, so an answer does not depend on which others share its batch, except where rounding decides.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qed.sampling.base import Sampling

BLOCK = 256  # tokens whose probabilities are added up before one of them is looked for,
BLOCKS_FROM = 4096  # in vocabularies above this size


def keep_candidates(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [B, V], after the temperature, with minus infinity for the tokens that are not drawn; the likeliest one
    always stays."""
    if sampling.top_k:
        smallest = logits.topk(min(sampling.top_k, logits.shape[-1]), -1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        ordered, places = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1)
        beyond = probabilities.cumsum(-1) - probabilities >= sampling.top_p
        beyond[:, 0] = False
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, places, beyond), -torch.inf)
    if sampling.min_p:
        floor = logits.amax(-1, keepdim=True) + math.log(sampling.min_p)
        logits = logits.masked_fill(logits < floor, -torch.inf)
    return logits


def draw_tokens(scores: Tensor, uniform: Tensor | None, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The next token of every row and its log-prob under the distribution that it was drawn from, in float32.

    Args:
        scores: [B, V], the model's logits.
        uniform: [B] float64 in [0, 1), the rows' numbers for this position; None takes the likeliest token.
        sampling: how.

    Returns:
        tokens [B] int64 and log-probs [B] float32.
    """
    logits = scores.float()
    if sampling.temperature not in (0, 1):
        logits = logits / sampling.temperature
    if uniform is not None and not sampling.whole:
        logits = keep_candidates(logits, sampling)
    logps = logits.log_softmax(-1)
    if uniform is None:
        chosen = logits.argmax(-1)
    else:
        # Among numbers that are not finite nothing is found: any token will do, its log-prob says what is wrong.
        found = _invert_cumulative(logps.to(uniform.device).exp(), uniform).clamp_(max=scores.shape[-1] - 1)
        chosen = found.to(scores.device)
    return chosen, logps.gather(-1, chosen[:, None]).squeeze(-1)


def _invert_cumulative(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The tokens [B] at which the cumulative probabilities [B, V] pass the numbers [B].

    In a large vocabulary the block of tokens is found first, then the token in it, so that only sums of blocks are
    accumulated over the whole. Sums are float64: at float32 tokens of small probability would be lost.
    """
    size = probabilities.shape[-1]
    if size <= BLOCKS_FROM:
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        return _find_passed(cumulative, uniform[:, None] * cumulative[:, -1:]).squeeze(-1)
    whole = size - size % BLOCK
    sums = probabilities[:, :whole].view(len(probabilities), -1, BLOCK).sum(-1, dtype=torch.float64)
    rest = probabilities[:, whole:].sum(-1, keepdim=True, dtype=torch.float64)
    ends = torch.cat([sums, rest], -1).cumsum(-1)
    target = uniform[:, None] * ends[:, -1:]
    block = _find_passed(ends, target)
    before = ends.gather(-1, (block - 1).clamp(min=0)).where(block > 0, 0.0)
    places = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = probabilities.gather(-1, places.clamp(max=size - 1)).where(places < size, 0.0)
    return (block * BLOCK + _find_passed(inside.cumsum(-1, dtype=torch.float64), target - before)).squeeze(-1)


def _find_passed(cumulative: Tensor, target: Tensor) -> Tensor:
    """The first places [B, 1] where the cumulative sums [B, N] are above the targets [B, 1]: never one that adds
    nothing, also where rounding has made the target as large as the last sum."""
    below = torch.nextafter(cumulative[:, -1:], torch.zeros_like(target))
    return torch.searchsorted(cumulative, torch.minimum(target, below), right=True)
