"""The segments of a packed row, and which inputs the attention of each of them sees.

A segment is a run of consecutive inputs: a complete row, a prompt that several rows share, or the rest of a row after
such a prompt. An input sees those before it in its own segment and the complete prompt of its segment, both only as far
as the attention window of the layer reaches. So what an input sees is two intervals of the packed row, whatever the
layout is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MULTIPLE = 64  # of inputs that a packed row has on a processor,
FILLED_SHARE = 16  # or the largest power of two below one part in so many


class Segment(NamedTuple):
    """Consecutive inputs at `start` of the packed row: a complete row, a shared prompt, or a row's rest after one."""

    start: int
    length: int
    prompt: int = 0  # the start of the prompt before it
    prompt_length: int = 0  # the tokens of that prompt; 0 where the segment begins its row


class Visible(NamedTuple):
    """What each of N inputs sees of the packed row: two intervals, [N] int32 each, each with memory of its own."""

    own: Tensor  # from here to the input itself
    prompt: Tensor  # from here
    prompt_end: Tensor  # to before here; equal to `prompt` where the input sees no shared prompt


def compute_visible(segments: Sequence[Segment], window: int | None, device: torch.device) -> Visible:
    """Compute what each input of a packed row sees.

    Args:
        segments: of the row, in its order.
        window: the number of inputs that an input sees at most, itself included; None for all.
        device: of the result.
    """
    table = torch.tensor(segments, dtype=torch.int32, device=device).reshape(-1, 4)
    count = sum(segment.length for segment in segments)
    start, _, prompt, prompt_length = table.repeat_interleave(table[:, 1].long(), dim=0, output_size=count).unbind(1)
    place = torch.arange(count, dtype=torch.int32, device=device)
    if window is None:
        return Visible(start.contiguous(), prompt.contiguous(), prompt + prompt_length)
    # The prompt ends where the segment begins in its row, wherever the two are in the packed row.
    in_prompt = prompt_length + (place - start) - (window - 1)
    return Visible(
        torch.maximum(start, place - (window - 1)),
        prompt + torch.minimum(in_prompt.clamp(min=0), prompt_length),
        prompt + prompt_length,
    )


def count_missing(length: int, device: torch.device) -> int:
    """Count how many inputs a packed row lacks for a length that computes fast.

    On a processor that is a multiple of 64, or of less for short rows, so that at most a 16th is added: oneDNN prepares
    a product for each number of inputs that it has not met lately, which takes as long as a small product.
    """
    multiple = 1 << min(MULTIPLE, length // FILLED_SHARE).bit_length() >> 1
    return -length % multiple if multiple and device.type == "cpu" else 0
