"""Attention of many short rows on a CPU, as a few float32 products of all rows.

torch's fused attention prepares every row and head separately. For rows of a few dozen tokens this takes several times
as long as their products: in bfloat16, 23 ms instead of 1.2 for 128 rows of 8 queries and 36 keys with 4 heads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

QUERIES = {torch.float32: 48, torch.bfloat16: 192}  # largest number of queries for which the products are faster
COLUMNS = 256  # beyond this, the stored probabilities would be larger than a layer's other states


def is_short(queries: int, columns: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether `attend_short` is faster for rows of this many queries and keys, computed in a dtype."""
    fits = device.type == "cpu" and columns <= COLUMNS and queries <= QUERIES.get(dtype, 0)
    return fits and not torch.compiler.is_compiling()


def attend_short(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None, dtype: torch.dtype
) -> Tensor:
    """Compute attention, [B, heads, Q, D].

    Args:
        query: [B, heads, Q, D].
        key: [B, kv_heads, K, D].
        value: [B, kv_heads, K, D].
        mask: float32 mask of 0 and -inf, broadcasts to [B, heads, Q, K].
        scaling: multiplies the products of queries and keys; None for 1 / sqrt(D).
        dtype: dtype that operands are rounded to; sums, probabilities and gradients are float32.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    attended: Tensor = _ShortAttention.apply(query, key, value, mask, scale, dtype)
    return attended


class _ShortAttention(torch.autograd.Function):
    """Computes softmax(scale * q k^T + mask) v; query heads that share a key head are rows of one product."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, dtype: torch.dtype
    ) -> Tensor:
        batch, kv_heads = key.shape[:2]
        with torch.autocast("cpu", enabled=False):
            queries, keys, values = (
                states.to(dtype).to(torch.float32).reshape(batch * kv_heads, -1, states.shape[-1])
                for states in (query, key, value)
            )
            scores = queries.bmm(keys.transpose(1, 2)).view(*query.shape[:3], -1).mul_(scale).add_(mask)
            probabilities = scores.softmax(-1).view(batch * kv_heads, -1, key.shape[2])
            attended = probabilities.bmm(values).view(query.shape)
        ctx.save_for_backward(queries, keys, values, probabilities)
        ctx.scale, ctx.given = scale, [(states.shape, states.dtype) for states in (query, key, value)]
        return attended.to(dtype)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, probabilities = ctx.saved_tensors
        with torch.autocast("cpu", enabled=False):
            slopes = slope.to(torch.float32).reshape(queries.shape)
            of_probabilities = slopes.bmm(values.transpose(1, 2))
            of_scores = torch._softmax_backward_data(of_probabilities, probabilities, -1, torch.float32).mul_(ctx.scale)
            gradients = (
                of_scores.bmm(keys),
                of_scores.transpose(1, 2).bmm(queries),
                probabilities.transpose(1, 2).bmm(slopes),
            )
        found = [gradient.view(shape).to(dtype) for gradient, (shape, dtype) in zip(gradients, ctx.given, strict=True)]
        return (*found, None, None, None)
