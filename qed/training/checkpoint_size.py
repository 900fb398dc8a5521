"""The size of a checkpoint in bytes."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from qed.models import qlora
from qed.models.weights import identify
from qed.sampling.device_memory import count_state_bytes
from qed.training.slices import Part, Slice

MARGIN = 32 * 2**20  # bytes for everything else: the tokenizer, and what the run writes at the same time


def checkpoint_bytes(model: Any, others: int | None = None, copies: int = 0) -> int:
    """Compute the size of a checkpoint of all ranks together, in bytes.

    Args:
        model: the model; shared weights count once.
        others: bytes besides the weights; None estimates them before the first step, as AdamW's state.
        copies: further copies of the weights, such as a reference model.
    """
    if others is None:
        others = sum(count_state_bytes(parameter) for parameter in model.parameters() if parameter.requires_grad)
    state: dict[str, Tensor] = model.state_dict(keep_vars=True)
    weights = {identify(tensor): qlora.count_full_bytes(tensor) for tensor in state.values()}
    return (1 + copies) * sum(weights.values()) + others + MARGIN


def count_bytes(part: Part) -> int:
    """Count the bytes of a complete tensor, even if this rank holds only some of its rows."""
    if isinstance(part, Slice):
        return math.prod(part.layout.shape) * part.rows.dtype.itemsize
    return part.nbytes
