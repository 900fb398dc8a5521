"""The segments of a packed row, and the inputs that each segment's attention sees.

A segment is a run of consecutive inputs: a complete row, a prompt shared by several rows, or the rest of a row after
such a prompt. An input sees the earlier inputs of its segment and the segment's complete prompt, as far as the layer's
attention window reaches. So each input sees two intervals of the packed row, whatever the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MULTIPLE = 64  # on a CPU, the number of inputs of a packed row is a multiple of this,
FILLED_SHARE = 16  # or of the largest power of two up to 1 / this of its length


class Segment(NamedTuple):
    """Consecutive inputs from `start` of the packed row: a complete row, a shared prompt, or the rest of a row."""

    start: int
    length: int
    prompt: int = 0  # start of the prompt before it
    prompt_length: int = 0  # tokens of that prompt; 0 if the segment begins its row


class Visible(NamedTuple):
    """What each of N inputs sees of the packed row: two intervals, as [N] int32 tensors with separate memory."""

    own: Tensor  # start of the interval that ends with the input itself
    prompt: Tensor  # start of the visible prompt
    prompt_end: Tensor  # its end, exclusive; equal to `prompt` if the input sees no shared prompt


def compute_visible(segments: Sequence[Segment], window: int | None, device: torch.device) -> Visible:
    """Compute what each input of a packed row sees.

    Args:
        segments: segments of the row, in order.
        window: largest number of inputs that an input sees, including itself; None for all.
        device: device of the result.
    """
    table = torch.tensor(segments, dtype=torch.int32, device=device).reshape(-1, 4)
    count = sum(segment.length for segment in segments)
    start, _, prompt, prompt_length = table.repeat_interleave(table[:, 1].long(), dim=0, output_size=count).unbind(1)
    place = torch.arange(count, dtype=torch.int32, device=device)
    if window is None:
        return Visible(start.contiguous(), prompt.contiguous(), prompt + prompt_length)
    # In its row, the segment begins where the prompt ends, wherever the two are in the packed row.
    in_prompt = prompt_length + (place - start) - (window - 1)
    return Visible(
        torch.maximum(start, place - (window - 1)),
        prompt + torch.minimum(in_prompt.clamp(min=0), prompt_length),
        prompt + prompt_length,
    )


def count_missing(length: int, device: torch.device) -> int:
    """Count how many inputs to add to a packed row for a length that computes fast.

    On a CPU that is a multiple of 64, or of less for short rows, so that at most a 16th is added: oneDNN prepares a
    product for each number of inputs that it has not seen recently, which takes as long as a small product.
    """
    multiple = 1 << min(MULTIPLE, length // FILLED_SHARE).bit_length() >> 1
    return -length % multiple if multiple and device.type == "cpu" else 0
