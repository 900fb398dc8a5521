"""The size of a checkpoint in bytes."""

from __future__ import annotations

from typing import Any

from qed.models import qlora
from qed.sampling.device_memory import count_state_bytes

MARGIN = 32 * 2**20  # bytes for the rest: the tokenizer, and what the run writes at the same time


def checkpoint_bytes(model: Any, others: int | None = None, copies: int = 0) -> int:
    """Compute the bytes of a checkpoint.

    Args:
        model: the model, whose weights are each counted once.
        others: bytes besides the weights; None estimates them before the first step, as AdamW's state.
        copies: further copies of the weights, such as a reference model.
    """
    if others is None:
        others = sum(count_state_bytes(parameter) for parameter in model.parameters() if parameter.requires_grad)
    weights = {tensor.data_ptr(): qlora.count_full_bytes(tensor) for tensor in model.state_dict().values()}
    return (1 + copies) * sum(weights.values()) + others + MARGIN
