"""How many bytes a checkpoint takes."""

from __future__ import annotations

from typing import Any

from qed.models import qlora

MARGIN = 32 * 2**20  # bytes for what is not weights or optimizer: the tokenizer, and the run's other files meanwhile


def checkpoint_bytes(model: Any, others: int | None = None, copies: int = 0) -> int:
    """Compute the bytes of a checkpoint.

    Args:
        model: whose weights it holds, each once.
        others: bytes beside the weights; None reckons them before the first step, as AdamW's two moments.
        copies: of the weights beside these, such as a reference model's.
    """
    if others is None:
        others = 2 * sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    weights = {tensor.data_ptr(): qlora.count_full_bytes(tensor) for tensor in model.state_dict().values()}
    return (1 + copies) * sum(weights.values()) + others + MARGIN
