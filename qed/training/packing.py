"""Packing: batches of rows without padding.

Rows are concatenated without padding, and a prompt shared by several of them is computed once. Attention stays within a
row, so every row has the same log-probs as in a padded batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from qed.models.block_attention import RowBlocks
from qed.models.segments import Segment, count_missing
from qed.training.batch import Batch
from qed.training.spans import Span, build_spans

WORTH_SHARING = 8  # shortest prompt, in tokens, that is worth computing once with separate attention


class Prompt(NamedTuple):
    """The prompt of a row: rows of a batch have the same number if their prompts are identical."""

    number: int
    length: int  # 0 if it is too short to be worth sharing; then no other row has its number


@dataclass(frozen=True)
class Layout:
    """The rows of a batch in one row of N inputs."""

    ids: Tensor  # [1, N] int64
    positions: Tensor  # [1, N] int64, counted from the start of each row
    place: Tensor  # [B, T] int64: packed position of each input of the batch; rows share their prompt's positions
    segments: tuple[Segment, ...]  # of the N inputs, in order
    longest: int  # length of the longest row; no attention reaches further

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The segments, in groups whose attention is computed in one call."""
        return self._spans_and_order[0]

    @cached_property
    def order(self) -> Tensor:
        """The index of each input's attention in the concatenated outputs of the spans, [N] int64."""
        return self._spans_and_order[1]

    @cached_property
    def blocks(self) -> RowBlocks:
        """The blocks for attention on a device."""
        return RowBlocks(self.segments, self.ids.device)

    @cached_property
    def _spans_and_order(self) -> tuple[tuple[Span, ...], Tensor]:
        return build_spans(self.segments, self.ids.device)


class _Row:
    """A packed row under construction: its segments, and the row and column of the batch where each begins."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.sources: list[tuple[int, int]] = []
        self.length = 0

    def add(self, row: int, first: int, last: int, prompt: int = 0) -> int:
        """Append the inputs of a row from `first` to before `last`, and return where they start."""
        start = self.length
        if last > first:
            self.segments.append(Segment(start, last - first, prompt, first))
            self.sources.append((row, first))
            self.length += last - first
        return start


def pack_batch(batch: Batch, fill: bool = True) -> Layout:
    """Pack the rows of a batch without padding, with each shared prompt only once.

    Args:
        batch: batch of rows.
        fill: whether to pad the packed row with unused inputs to a length that a CPU computes fast.
    """
    lengths: list[int] = batch.attention.sum(1).tolist()
    packed = _Row()
    # For each row: where its prompt starts in the packed row, the prompt's length, and where the rest starts.
    places = [(0, 0, 0)] * len(batch)
    for rows, shared in _group_by_prompt(batch, lengths):
        prompt = packed.add(rows[0], 0, shared)
        for row in rows:
            places[row] = (prompt, shared, packed.add(row, shared, lengths[row], prompt))
    device = batch.inputs.device
    if fill:
        _fill_up(packed, lengths, device)
    table = [(*source, one.start, one.length) for source, one in zip(packed.sources, packed.segments, strict=True)]
    columns = torch.tensor(table, dtype=torch.int64, device=device).reshape(-1, 4)
    # Each input gets the values of its segment; without `output_size` this would wait for the device.
    source, first, start, _ = columns.repeat_interleave(columns[:, 3], dim=0, output_size=packed.length).unbind(1)
    positions = first + torch.arange(packed.length, device=device) - start
    return Layout(
        batch.inputs[source, positions][None],
        positions[None],
        _compute_place(places, lengths, batch.inputs),
        tuple(packed.segments),
        max(lengths, default=0),
    )


def _fill_up(packed: _Row, lengths: Sequence[int], device: torch.device) -> None:
    """Append unused inputs, see `count_missing`."""
    row = max(range(len(lengths)), key=lengths.__getitem__, default=0)
    missing = count_missing(packed.length, device)
    while missing:
        added = min(missing, lengths[row])
        packed.add(row, 0, added)
        missing -= added


def _compute_place(places: Sequence[tuple[int, int, int]], lengths: Sequence[int], inputs: Tensor) -> Tensor:
    """Compute the position in the packed row of each input of a batch, [B, T] int64; 0 for padding.

    Args:
        places: for each row, where its prompt starts, the prompt's length, and where the rest starts.
        lengths: length of each row, in inputs.
        inputs: [B, T].
    """
    prompt, shared, rest = torch.tensor(places, device=inputs.device).reshape(-1, 3, 1).unbind(1)
    column = torch.arange(inputs.shape[1], device=inputs.device)
    place = torch.where(column < shared, prompt + column, rest + column - shared)
    return place.masked_fill(column >= torch.tensor(lengths, device=inputs.device)[:, None], 0)


def list_prompts(batch: Batch) -> list[Prompt]:
    """Return the prompt of each row, its inputs before the first response token; equal prompts have equal numbers."""
    lengths: list[int] = ((batch.mask != 0).long().argmax(1) + 1).tolist()
    tokens = batch.inputs[:, : max(lengths, default=0)].cpu().numpy()
    # Bytes are hashed and compared without an object for each id.
    known: dict[bytes | int, int] = {}
    prompts = []
    for row, length in enumerate(lengths):
        shareable = length >= WORTH_SHARING
        number = known.setdefault(tokens[row, :length].tobytes() if shareable else row, len(known))
        prompts.append(Prompt(number, length if shareable else 0))
    return prompts


def cut_packed_microbatches(batch: Batch, budget: int, together: int = 1) -> list[list[int]]:
    """Return the rows of each micro-batch, at most `budget` computed tokens, with rows of the same prompt together.

    Every `together` consecutive rows stay in one micro-batch. Rows longer than the budget get their own.
    """
    prompts, lengths = list_prompts(batch), batch.attention.sum(1).tolist()
    bundles: dict[Prompt, list[range]] = defaultdict(list)
    for start in range(0, len(batch), together):
        bundles[prompts[start]].append(range(start, start + together))
    parts: list[list[int]] = []
    free = 0  # tokens left in the last part
    for prompt, same_prompt in bundles.items():
        included = False  # whether the last part already has this prompt
        for bundle in same_prompt:
            shared = {prompts[row] for row in bundle}
            tokens = sum(lengths[row] - prompts[row].length for row in bundle)
            new = sum(other.length for other in shared if not (included and other == prompt))
            if not parts or tokens + new > free:
                parts.append([])
                free, new = budget, sum(other.length for other in shared)
            parts[-1] += bundle
            free -= tokens + new
            included = True
    return parts


def _group_by_prompt(batch: Batch, lengths: Sequence[int]) -> list[tuple[list[int], int]]:
    """Group rows by prompt, each group with its prompt's length; rows without a shared prompt, with their length."""
    groups: dict[Prompt, list[int]] = defaultdict(list)
    for row, prompt in enumerate(list_prompts(batch)):
        groups[prompt].append(row)
    return [(rows, prompt.length if len(rows) > 1 else lengths[rows[0]]) for prompt, rows in groups.items()]
