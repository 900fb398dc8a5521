"""Whether the disk has room for a run's checkpoints."""

from __future__ import annotations

import shutil
from typing import Any

from qed import quantized
from qed.errors import QedError
from qed.runs import Run

MARGIN = 32 * 2**20  # bytes for what is not weights or optimizer: the tokenizer, and the run's other files meanwhile


def size(model: Any, others: int | None = None, copies: int = 0) -> int:
    """The bytes of a checkpoint; for the arguments see `require`."""
    if others is None:
        others = 2 * sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    weights = {tensor.data_ptr(): quantized.size_in_full(tensor) for tensor in model.state_dict().values()}
    return (1 + copies) * sum(weights.values()) + others + MARGIN


def require(run: Run, model: Any, others: int | None = None, copies: int = 0) -> None:
    """Refuse to go on where the disk has no room for a checkpoint.

    Args:
        run: whose checkpoint it is.
        model: whose weights it holds, each once.
        others: bytes beside the weights; None reckons them before the first step, as AdamW's two moments.
        copies: of the weights beside these, such as a reference model's.

    Raises:
        QedError: what is needed, where, and what to do.
    """
    needed = size(model, others, copies)
    free = shutil.disk_usage(run.folder).free
    if free < needed:
        raise QedError(
            f"A checkpoint of this run needs {needed / 2**30:.2f} GiB, and the disk of {run.folder} has "
            f"{free / 2**30:.2f} GiB free. Nothing of it has been written, and earlier checkpoints are as they were. "
            "Free some space and go on with --resume, keep fewer checkpoints with run.keep_last (--resume applies it "
            "first), or write elsewhere with another --out."
        )
