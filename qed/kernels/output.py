"""The logits of an output layer on the CPU, for a slice of its vocabulary: their sums and their gradients ("slopes").

All tensors except `sums` are contiguous. Logits and their gradients are float32 or bfloat16, everything else is
float32. The results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qed.kernels.functions import call_function


def reduce_logits(logits: Tensor, labels: Tensor, first: int, factor: float, chosen: Tensor, sums: Tensor) -> None:
    """Reduce logits [N, W] of W consecutive tokens, times a factor, to sums of each row.

    Args:
        logits: the logits of each row.
        labels: [N] int64, tokens.
        first: the token of the first column.
        factor: multiplies the logits.
        chosen: [N], receives the logit of each label that is one of these tokens.
        sums: [4, N], a slice of a tensor, receives m = max z, sum e^(z - m), sum e^(z - m) (z - m) and sum e^2(z - m).
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
    """Compute the gradients of logits [N, W] of W consecutive tokens, times a factor.

    Args:
        logits: the logits of each row.
        labels: [N] int64, tokens.
        first: the token of the first column.
        factor: multiplies the logits.
        slopes: [N] each: the normalisers log sum_v e^(z_v), the entropies H, and the gradients a of the labels'
            log-probs and b of the entropies, or None, both times the factor: d = e_y a - p ((log p + H) b + a).
        out: [N, W] for the gradients, which may be the logits; [N, W] bfloat16 for their rounding errors; [W, N] for
            the gradients in float32. The last two are None if not needed.
    """
    assert out[0].dtype == logits.dtype
    sizes = *logits.shape, torch.get_num_threads()
    call_function("reverse_logits", logits.dtype, logits, labels, first, factor, *slopes, *sizes, *out)
