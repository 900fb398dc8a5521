"""The logits of an output layer on a processor, of a slice of its vocabulary: their sums, and their slopes.

All tensors are contiguous but for `sums`. Logits are float32 or bfloat16, and so are their slopes; everything else is
float32. What the functions compute does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qed.kernels.functions import call_function


def reduce_logits(logits: Tensor, labels: Tensor, first: int, factor: float, chosen: Tensor, sums: Tensor) -> None:
    """Reduce logits [N, W], times a factor, of the tokens from the first on.

    Args:
        logits: of each row.
        labels: [N] int64, tokens.
        first: the first token.
        factor: of the logits.
        chosen: [N], gets the logit of each label that is one of these tokens.
        sums: [4, N], a part of a tensor, gets m = max z, sum e^(z - m), sum e^(z - m) (z - m) and sum e^2(z - m).
    """
    sizes = *logits.shape, torch.get_num_threads()
    call_function("reduce_logits", logits.dtype, logits, labels, first, factor, *sizes, chosen, sums, sums.stride(0))


def reverse_logits(
    logits: Tensor,
    labels: Tensor,
    first: int,
    factor: float,
    slopes: Sequence[Tensor | None],
    out: tuple[Tensor, Tensor | None, Tensor | None],
) -> None:
    """Compute the slopes of logits [N, W], times a factor, of the tokens from the first on.

    Args:
        logits: of each row.
        labels: [N] int64, tokens.
        first: the first token.
        factor: of the logits.
        slopes: [N] each: the normalisers log sum_v e^(z_v), the entropies H, and the slopes a of the labels' log-probs
            and b of the entropies, or None, both times the factor: d = e_y a - p ((log p + H) b + a).
        out: [N, W] get them, and may be the logits; [N, W] bfloat16 get what they lose by being rounded, and [W, N] get
            them in float32, None each if nobody needs them.
    """
    assert out[0].dtype == logits.dtype
    sizes = *logits.shape, torch.get_num_threads()
    call_function("reverse_logits", logits.dtype, logits, labels, first, factor, *slopes, *sizes, *out)
