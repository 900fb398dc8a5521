"""Samples the next token; all samplers in this process use these functions.

A token is sampled by inverting the cumulative distribution at a uniform random number. The number depends only on the
sequence's seed and the token's position, so a sequence does not depend on its batch, except where rounding decides.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qed.kernels.decoding import draw, shape
from qed.kernels.functions import KINDS, has_cuda_kernels, has_kernels
from qed.sampling.base import Sampling

NUCLEUS = 1024  # most likely tokens searched first for the end of the top-p, because sorting all takes longer
BLOCK = 256  # tokens per block; the block is found first, then the token in it,
BLOCKS_FROM = 4096  # in vocabularies above this size


def shape_logits(scores: Tensor, sampling: Sampling, ends: Tensor | None = None, early: Tensor | None = None) -> Tensor:
    """Compute the logits to sample from, [B, V]; tokens that cannot be sampled have minus infinity.

    The most likely token can always be sampled, and so can all tokens that equal the least likely of the `top_k`, as in
    transformers. Of equally likely tokens at the edge of the `top_p`, the first ones can be sampled.

    Args:
        scores: [B, V], the model's logits.
        sampling: temperature and truncation; temperature 0 changes nothing.
        ends: [E] int64, tokens that end an answer.
        early: [B, 1] bool, rows that may not end yet; None if all may.

    Returns:
        Logits in float64 if the scores are, otherwise in float32; unchanged scores keep their precision if a kernel
        samples from them.
    """
    if ends is not None and early is not None:
        scores = scores.index_copy(1, ends, scores[:, ends].masked_fill(early, -torch.inf))
    changes = sampling.temperature > 0 and not (sampling.whole and sampling.temperature == 1)
    if _has_kernel(scores):
        if not changes:
            return scores
        if scores.device.type == "cpu":
            return shape(scores, sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
    logits = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return _keep_candidates(logits / sampling.temperature, sampling) if changes else logits


def _keep_candidates(logits: Tensor, sampling: Sampling) -> Tensor:
    """Set the logits of tokens that top-k, top-p or min-p exclude, after the temperature, to minus infinity."""
    if sampling.top_k:
        smallest = logits.topk(min(sampling.top_k, logits.shape[-1]), -1).values[:, -1:]
        logits = logits.masked_fill(logits < smallest, -torch.inf)
    if sampling.top_p < 1:
        logits = _keep_nucleus(logits, sampling.top_p)
    if sampling.min_p:
        floor = logits.amax(-1, keepdim=True) + math.log(sampling.min_p)
        logits = logits.masked_fill(logits < floor, -torch.inf)
    return logits


def _keep_nucleus(logits: Tensor, share: float) -> Tensor:
    """Set all logits to minus infinity except those of the smallest set of likely tokens that reaches `share`."""
    ordered = logits.topk(min(NUCLEUS, logits.shape[-1])).values
    top = ordered[:, :1]
    wanted = share * (logits - top).exp().sum(-1, keepdim=True)
    until = (ordered - top).exp().cumsum(-1)
    if ordered.shape[-1] < logits.shape[-1] and bool((until[:, -1:] < wanted).any()):
        ordered = logits.sort(descending=True).values
        until = (ordered - top).exp().cumsum(-1)
    count = 1 + (until[:, :-1] < wanted).sum(-1, keepdim=True)
    least = ordered.gather(-1, count - 1)
    equal = logits == least
    left = count - (ordered > least).sum(-1, keepdim=True)
    beyond = equal & (equal.cumsum(-1, dtype=torch.int32) > left)
    return logits.masked_fill((logits < least) | beyond, -torch.inf)


def draw_tokens(logits: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sample the next token of every row, with its log-prob under the distribution that it was sampled from.

    Args:
        logits: [B, V], from `shape_logits`.
        uniform: [B] float64 in [0, 1), random numbers of the rows for this position; None takes the most likely token.

    Returns:
        Tokens [B] int64, and log-probs [B] in the precision of the logits, but at least float32.
    """
    if _has_kernel(logits):
        if logits.device.type == "cpu":
            return draw(logits, uniform)
        from qed.kernels.cuda import drawing  # noqa: PLC0415 -- loads Triton, which only some machines have

        return drawing.draw(logits, uniform)
    logps = logits.log_softmax(-1)
    if uniform is None:
        chosen = logits.argmax(-1)
    else:
        # With NaN logits the index is out of range. Then any token will do, because its log-prob is NaN too.
        tokens = _invert_cumulative(logps.to(uniform.device).exp(), uniform).clamp_(max=logits.shape[-1] - 1)
        chosen = tokens.to(logits.device)
    return chosen, logps.gather(-1, chosen[:, None]).squeeze(-1)


def _has_kernel(logits: Tensor) -> bool:
    """Return whether a kernel on the device samples from such logits in their own precision."""
    if logits.stride(-1) != 1:
        return False
    if logits.device.type == "cpu":
        return logits.dtype in KINDS and has_kernels()
    return logits.is_cuda and logits.dtype != torch.float64 and has_cuda_kernels(logits.device)


def _invert_cumulative(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """Return the tokens [B] at which the cumulative probabilities [B, V] exceed the numbers [B].

    In a large vocabulary the block of tokens is found first, then the token in it, so that only block sums are
    accumulated over the vocabulary. Sums are float64, because float32 would lose tokens of small probability.
    """
    size = probabilities.shape[-1]
    if size <= BLOCKS_FROM:
        cumulative = probabilities.cumsum(-1, dtype=torch.float64)
        return _find_passed(cumulative, uniform[:, None] * cumulative[:, -1:]).squeeze(-1)
    in_blocks = size - size % BLOCK
    sums = probabilities[:, :in_blocks].view(len(probabilities), -1, BLOCK).sum(-1, dtype=torch.float64)
    rest = probabilities[:, in_blocks:].sum(-1, keepdim=True, dtype=torch.float64)
    ends = torch.cat([sums, rest], -1).cumsum(-1)
    target = uniform[:, None] * ends[:, -1:]
    block = _find_passed(ends, target)
    before = ends.gather(-1, (block - 1).clamp(min=0)).where(block > 0, 0.0)
    places = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = probabilities.gather(-1, places.clamp(max=size - 1)).where(places < size, 0.0)
    return (block * BLOCK + _find_passed(inside.cumsum(-1, dtype=torch.float64), target - before)).squeeze(-1)


def _find_passed(cumulative: Tensor, target: Tensor) -> Tensor:
    """Return the first indices [B, 1] where the cumulative sums [B, N] exceed the targets [B, 1].

    The target is kept below the last sum, so rounding never selects a token of probability 0.
    """
    below = torch.nextafter(cumulative[:, -1:], torch.zeros_like(target))
    return torch.searchsorted(cumulative, torch.minimum(target, below), right=True)
