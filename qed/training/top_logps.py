"""Computes the most likely tokens at each trained position of a batch, without a [B, T, V] tensor."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from qed.models.families import read_logit_transform, split_head
from qed.training.batch import Batch
from qed.training.logps import compute_states
from qed.training.output_tiles import TILE_ELEMENTS
from qed.training.packing import Layout
from qed.training.support import HIDDEN, build_label_support


@torch.no_grad()
def compute_top_logps(
    model: nn.Module, batch: Batch, temperature: float, count: int, *, layout: Layout | None = None
) -> list[Tensor]:
    """Compute the most likely tokens at each trained label of a batch, and their log-probs.

    If the batch has a support, log-probs are of the softmax over it; tokens outside it, which fill up a smaller
    support, have a log-prob of -inf.

    Args:
        model: the policy.
        batch: batch of rows.
        temperature: divides the logits.
        count: number of tokens, at most the size of the vocabulary.
        layout: layout of packed rows.

    Returns:
        `count` columns of log-probs, the most likely first, and `count` of their tokens, as floats: [B, T] each, 0
        where
        the mask is 0.
    """
    _, head = split_head(model)
    chosen = batch.mask.bool()
    hidden = compute_states(model, batch, layout)
    transform, support = read_logit_transform(model), build_label_support(batch.support, chosen)
    height = max(1, TILE_ELEMENTS["cpu" if hidden.device.type == "cpu" else "other"] // len(head.weight))
    found = hidden.new_zeros(2 * count, len(hidden), dtype=torch.promote_types(batch.mask.dtype, torch.float32))
    for begin in range(0, len(hidden), height):
        rows = slice(begin, min(begin + height, len(hidden)))
        logits = functional.linear(hidden[rows], head.weight.to(hidden.dtype), head.bias)
        logits = transform.apply(logits.to(found.dtype)) / temperature
        if support is not None:
            support.hide(logits, rows, 0)
        values, tokens = logits.log_softmax(-1).topk(count)
        found[:count, rows] = values.masked_fill(values < HIDDEN / 2, -torch.inf).T
        found[count:, rows] = tokens.to(found.dtype).T
    blank = torch.zeros(batch.labels.shape, dtype=found.dtype, device=found.device)
    return [blank.masked_scatter(chosen, column) for column in found]
