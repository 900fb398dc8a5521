"""Log-probs and entropy from existing logits, in chunks of rows: for models that only return logits.

Training uses `logps`, which never holds the logits of a whole batch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

CHUNK_ROWS = 2048


def compute_label_logps(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute log softmax(logits)[label], in the shape of `labels`; in float32 where the logits are in half precision.

    Args:
        logits: [..., V].
        labels: [...] int64.
    """
    flat = labels.reshape(-1, 1)
    return _map_rows(logits, lambda log_probs, rows: log_probs.gather(-1, flat[rows]).squeeze(-1))


def compute_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy -sum p log p of softmax(logits), [...] from [..., V], in nats; a logit of -inf adds 0."""
    # A p of 0 has a log-prob of -inf, and 0 times that is NaN.
    return _map_rows(
        logits, lambda log_probs, _: -(log_probs.exp() * log_probs.where(log_probs > -torch.inf, 0.0)).sum(-1)
    )


def _map_rows(logits: Tensor, function: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Apply a function of log-softmax and row slice to chunks of rows; it returns a number per row."""
    flat = logits.reshape(-1, logits.shape[-1])
    half = logits.dtype in (torch.bfloat16, torch.float16)
    dtype = torch.float32 if half else logits.dtype
    chunks = [
        function(flat[rows].to(dtype).log_softmax(-1), rows)
        for start in range(0, len(flat), CHUNK_ROWS)
        for rows in [slice(start, start + CHUNK_ROWS)]
    ]
    return (torch.cat(chunks) if chunks else flat.new_zeros(0, dtype=dtype)).reshape(logits.shape[:-1])
