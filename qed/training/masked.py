"""Statistics over the unmasked elements of a tensor.

Masked elements are left out, not multiplied by 0, so a NaN there affects neither a value nor a gradient.
Nothing here imports torch at run time, so that algorithms can use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def masked_sum(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """Compute the sum over the elements where the mask is not 0; an empty slice gives 0.

    Args:
        tensor: of any shape, floating point.
        mask: of the same shape, or one that broadcasts to it; bool or numbers.
        dim: the dimension to sum over; None sums over all.
    """
    values = tensor.where(mask.bool(), 0.0)
    return values.sum() if dim is None else values.sum(dim)


def masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None, empty: float = 0.0) -> Tensor:
    """Compute the mean over the elements where the mask is not 0.

    Args:
        tensor: of any shape, floating point.
        mask: of the same shape, or one that broadcasts to it.
        dim: the dimension to average over; None averages over all.
        empty: the mean of a slice without unmasked elements. 0 is right in training; for statistics that people read,
            NaN may be better.
    """
    count = _count(tensor, mask, dim)
    return (masked_sum(tensor, mask, dim) / count.clamp(min=1)).where(count > 0, empty)


def masked_normalize(tensor: Tensor, mask: Tensor, dim: int | None = None, constant: float = 1.0) -> Tensor:
    """Compute the sum over the elements where the mask is not 0, divided by a constant; an empty slice gives 0."""
    return masked_sum(tensor, mask, dim) / constant


def masked_variance(tensor: Tensor, mask: Tensor, dim: int | None = None, empty: float = 0.0) -> Tensor:
    """Compute the variance with n - 1 over the elements where the mask is not 0; arguments as in `masked_mean`.

    `empty` is the variance of a slice with fewer than two unmasked elements.
    """
    mean = masked_mean(tensor, mask, dim)
    # Masked before the square, whose derivative at a masked NaN would be NaN.
    centred = (tensor - (mean if dim is None else mean.unsqueeze(dim))).where(mask.bool(), 0.0)
    count = _count(tensor, mask, dim)
    return (masked_sum(centred**2, mask, dim) / (count - 1).clamp(min=1)).where(count > 1, empty)


def whiten(tensor: Tensor, mask: Tensor, shift_mean: bool = True, epsilon: float = 1e-8) -> Tensor:
    """Compute (x - mean) / sqrt(variance + epsilon) over all unmasked elements; 0 at the others.

    Args:
        tensor: of any shape, floating point.
        mask: of the same shape.
        shift_mean: False keeps the mean, so that only the scale changes.
        epsilon: added to the variance; fewer than two elements, or equal values, give 0 (or the mean).
    """
    mean = masked_mean(tensor, mask)
    centred = (tensor - mean).where(mask.bool(), 0.0)
    scaled = centred * (masked_variance(tensor, mask) + epsilon).rsqrt()
    return scaled if shift_mean else (scaled + mean).where(mask.bool(), 0.0)


def _count(tensor: Tensor, mask: Tensor, dim: int | None) -> Tensor:
    """Count the unmasked elements along a dimension, or all."""
    unmasked = mask.bool().expand_as(tensor)
    return unmasked.sum() if dim is None else unmasked.sum(dim)
