"""Several documents in one row: windows of a concatenated stream, and rows that share a computation but not a context.

In a window attention crosses from one document to the next, as in pre-training. Rows that are packed for the
computation alone have positions that begin anew and attention that stays within each row, so they give the log-probs
that each row gives by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from qed.batch import Batch
from qed.errors import ModelError


def windows(documents: Iterable[Sequence[int]], length: int) -> Tensor:
    """Consecutive windows of the documents written one after the other, [N, length + 1] int64.

    The inputs of a window are all but its last token, its labels all but its first, so that the inputs of two windows
    do not overlap and every token of the stream but the first is a label once. N = (tokens - 1) // length; what
    remains of the stream is dropped.
    """
    stream = torch.tensor([token for document in documents for token in document], dtype=torch.int64)
    count = max(0, len(stream) - 1) // length
    if count == 0:
        return stream.new_zeros(0, length + 1)
    return stream[: count * length + 1].unfold(0, length + 1, length)


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """The rows of each bin by best fit decreasing: the longest row first, each into the fullest bin that it fits in.

    Args:
        lengths: of the rows, each at most the capacity.
        capacity: of a bin.
    """
    bins: list[list[int]] = []
    room: list[int] = []  # of each bin
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        fitting = [number for number, left in enumerate(room) if left >= lengths[row]]
        if fitting:
            chosen = min(fitting, key=room.__getitem__)
        else:
            chosen = len(bins)
            bins.append([])
            room.append(capacity)
        bins[chosen].append(row)
        room[chosen] -= lengths[row]
    return bins


def packed_states(body: nn.Module, batch: Batch, chosen: Tensor) -> Tensor | None:
    """The hidden states of the chosen places of a batch, [N, H], its rows packed into bins as wide as the longest.

    Args:
        body: the model without its output layer, for which `check_packing` holds.
        batch: the rows.
        chosen: [B, T] bool, places with an input.

    Returns:
        None where packing would save no row.
    """
    rows, width = batch.inputs.shape
    lengths: list[int] = batch.attention.sum(1).tolist()
    bins = best_fit(lengths, width)
    if len(bins) == rows:
        return None
    starts = [0] * rows
    for number, members in enumerate(bins):
        at = number * width
        for row in members:
            starts[row] = at
            at += lengths[row]
    steps = torch.arange(width, device=batch.inputs.device).expand(rows, width)
    place, there = steps + torch.tensor(starts, device=steps.device)[:, None], batch.attention.bool()
    ids, positions = batch.inputs.new_zeros(2, len(bins) * width)
    ids[place[there]], positions[place[there]] = batch.inputs[there], steps[there]
    shape = (len(bins), width)
    return _states(body, ids.reshape(shape), positions.reshape(shape)).flatten(0, 1)[place[chosen]]


@torch.no_grad()
def check_packing(body: nn.Module) -> None:
    """Ask a model for four short rows by themselves and packed into two.

    Raises:
        ModelError: the answers differ, because the model's layers do not keep packed rows apart.
    """
    device = next(body.parameters()).device
    alone = torch.tensor([[1, 2, 3], [3, 1, 0], [2, 2, 1], [0, 1, 2]], device=device)
    positions = torch.arange(3, device=device)
    separate = body(input_ids=alone, use_cache=False).last_hidden_state
    together = _states(body, alone.reshape(2, 6), positions.repeat(2, 2)).reshape(separate.shape)
    if not torch.allclose(separate, together, rtol=1e-3, atol=1e-3 * float(separate.abs().max())):
        raise ModelError(
            f"{type(body).__name__} does not keep packed rows apart, so learner.packing would change what it learns. "
            "Leave it off."
        )


def _states(body: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
    # Without an attention mask, transformers begins a new document wherever the position is not one more than the last,
    # and lets attention see no other. A padded place has position 0, so it is a document by itself.
    states: Tensor = body(input_ids=ids, position_ids=positions, attention_mask=None, use_cache=False).last_hidden_state
    return states
