"""Statistics over the places of a tensor that a mask keeps.

What stands at a masked place is never multiplied, only left out, so a NaN there reaches neither a value nor a gradient.
Nothing here imports torch at run time, so that algorithms can use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def masked_sum(tensor: Tensor, mask: Tensor, dim: int | None = None) -> Tensor:
    """The sum over the places where the mask is not 0; an empty slice gives 0.

    Args:
        tensor: of any shape, floating point.
        mask: of the same shape, or one that broadcasts to it; bool or numbers.
        dim: the dimension that is summed over and lost; None sums everything.
    """
    kept = tensor.where(mask.bool(), 0.0)
    return kept.sum() if dim is None else kept.sum(dim)


def masked_mean(tensor: Tensor, mask: Tensor, dim: int | None = None, empty: float = 0.0) -> Tensor:
    """The mean over the places where the mask is not 0; arguments as in `masked_sum`.

    Args:
        tensor: of any shape, floating point.
        mask: of the same shape, or one that broadcasts to it.
        dim: the dimension that is averaged over and lost; None averages everything.
        empty: the mean of a slice of which the mask keeps nothing. 0 is right in training; statistics that are read
            may want NaN.
    """
    count = _count(tensor, mask, dim)
    return (masked_sum(tensor, mask, dim) / count.clamp(min=1)).where(count > 0, empty)


def masked_normalize(tensor: Tensor, mask: Tensor, dim: int | None = None, constant: float = 1.0) -> Tensor:
    """The sum over the places where the mask is not 0, divided by a constant; an empty slice gives 0."""
    return masked_sum(tensor, mask, dim) / constant


def masked_variance(tensor: Tensor, mask: Tensor, dim: int | None = None, empty: float = 0.0) -> Tensor:
    """The variance with n - 1 over the places where the mask is not 0; arguments as in `masked_mean`.

    `empty` is the variance of a slice of which the mask keeps fewer than two places.
    """
    mean = masked_mean(tensor, mask, dim)
    # Left out before the square, whose derivative at a masked NaN would be NaN.
    centred = (tensor - (mean if dim is None else mean.unsqueeze(dim))).where(mask.bool(), 0.0)
    count = _count(tensor, mask, dim)
    return (masked_sum(centred**2, mask, dim) / (count - 1).clamp(min=1)).where(count > 1, empty)


def whiten(tensor: Tensor, mask: Tensor, shift_mean: bool = True, epsilon: float = 1e-8) -> Tensor:
    """(x - mean) / sqrt(variance + epsilon) over all places that the mask keeps; 0 at the others.

    Args:
        tensor: of any shape, floating point.
        mask: of the same shape.
        shift_mean: False adds the mean again, so that only the scale changes.
        epsilon: added to the variance; fewer than two places, or equal values, give 0 (or the mean).
    """
    mean = masked_mean(tensor, mask)
    centred = (tensor - mean).where(mask.bool(), 0.0)
    scaled = centred * (masked_variance(tensor, mask) + epsilon).rsqrt()
    return scaled if shift_mean else (scaled + mean).where(mask.bool(), 0.0)


def _count(tensor: Tensor, mask: Tensor, dim: int | None) -> Tensor:
    kept = mask.bool().expand_as(tensor)
    return kept.sum() if dim is None else kept.sum(dim)
