"""Packing: windows of a concatenated stream of documents, and batches of rows without padding.

In a window, attention crosses from one document to the next, as in pre-training. Packed rows are concatenated
without padding, and a prompt that several of them share is computed once. Attention stays within a row, so every row
has the same log-probs as in a padded batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from qed.training.batch import Batch

WORTH_SHARING = 8  # the shortest prompt in tokens that is worth computing once with separate attention
PADDING = 1.5  # the largest ratio of a span's padded attention to that of its rows


def cut_windows(documents: Iterable[Sequence[int]], length: int) -> Tensor:
    """Cut the concatenated documents into consecutive windows, [N, length + 1] int64.

    The inputs of a window are all but its last token, its labels all but its first. So the inputs of two windows do not
    overlap, and every token of the stream but the first is a label once. N = (tokens - 1) // length; the rest of the
    stream is dropped.
    """
    stream = torch.tensor([token for document in documents for token in document], dtype=torch.int64)
    count = max(0, len(stream) - 1) // length
    if count == 0:
        return stream.new_zeros(0, length + 1)
    return stream[: count * length + 1].unfold(0, length + 1, length)


@dataclass(frozen=True)
class Segment:
    """Consecutive inputs at `start` of the packed row: a complete row, a shared prompt, or a row's rest after one."""

    start: int
    length: int
    prompt: int = 0  # the start of the prompt before it
    prompt_length: int = 0  # the tokens of that prompt; 0 where the segment begins its row


@dataclass(frozen=True)
class Span:
    """Segments whose attention is computed in one call, padded to the longest of them.

    Prompts are padded on the left and segments on the right, so the query in column q is `prompt_columns + q` columns
    after the first key.
    """

    queries: Tensor  # [segments * Q] int64: positions in the packed row; padding repeats the segment's first
    keys: Tensor  # [segments * (prompt_columns + Q)] int64
    segments: int
    prompt_columns: int
    not_padding: Tensor | None  # [segments, prompt_columns] bool: which are not padding; None where none is

    @property
    def width(self) -> int:
        """Q, the length of the longest segment."""
        return len(self.queries) // self.segments

    @cached_property
    def full_mask(self) -> Tensor | None:
        """The mask of full attention, which all layers share."""
        return self._compute_mask(self.prompt_columns + self.width)

    def get_mask(self, window: int | None) -> Tensor | None:
        """Return which keys the queries attend to, a bool that broadcasts; None for a plain causal mask.

        Args:
            window: the number of keys that a query attends to, itself included; None for all.
        """
        if window is None or window >= self.prompt_columns + self.width:
            return self.full_mask
        return self._compute_mask(window)

    def _compute_mask(self, reach: int) -> Tensor | None:
        columns, total = self.prompt_columns, self.prompt_columns + self.width
        if columns == 0 and reach == total:
            return None
        position = torch.arange(total, device=self.queries.device)
        distance = position[columns:, None] - position
        mask = (distance >= 0) & (distance < reach)
        if self.not_padding is None:
            return mask
        return mask & pad(self.not_padding, (0, self.width), value=True)[:, None, None]


@dataclass(frozen=True)
class Layout:
    """The rows of a batch in one row of N inputs."""

    ids: Tensor  # [1, N] int64
    positions: Tensor  # [1, N] int64, counted from the start of each row
    place: Tensor  # [B, T] int64: the position of each input of the batch; rows share the positions of their prompt
    spans: tuple[Span, ...]
    order: Tensor  # [N] int64: the index of each input's attention in the concatenated outputs of the spans


class _Row:
    """A packed row under construction."""

    def __init__(self, inputs: list[list[int]]) -> None:
        self.inputs = inputs
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.place = [[0] * len(row) for row in inputs]

    def add(self, row: int, first: int, last: int) -> int:
        """Append inputs of a row, and return where they start."""
        start = len(self.ids)
        self.ids += self.inputs[row][first:last]
        self.positions += range(first, last)
        self.place[row][first:last] = range(start, len(self.ids))
        return start


def pack_batch(batch: Batch) -> Layout:
    """Pack the rows of a batch without padding, with each shared prompt only once."""
    lengths: list[int] = batch.attention.sum(1).tolist()
    packed = _Row(batch.inputs.tolist())
    segments: list[Segment] = []
    for rows, shared in _group_by_prompt(batch, lengths):
        prompt_start = packed.add(rows[0], 0, shared)
        segments.append(Segment(prompt_start, shared))
        if len(rows) == 1:
            continue
        for row in rows:
            packed.place[row][:shared] = range(prompt_start, prompt_start + shared)
            if lengths[row] > shared:
                start = packed.add(row, shared, lengths[row])
                segments.append(Segment(start, lengths[row] - shared, prompt_start, shared))
    device, order, slot = batch.inputs.device, [0] * len(packed.ids), 0
    spans = []
    for members in _group_by_length(segments):
        spans.append(_build_span(members, device))
        for segment in members:
            order[segment.start : segment.start + segment.length] = range(slot, slot + segment.length)
            slot += members[0].length
    ids, positions, place, places = (
        torch.tensor(values, device=device) for values in ([packed.ids], [packed.positions], packed.place, order)
    )
    return Layout(ids, positions, place, tuple(spans), places)


def list_prompts(batch: Batch) -> list[tuple[int, ...]]:
    """List the inputs of each row before its first response token; () where they are too few to be worth sharing."""
    before = (batch.mask != 0).long().argmax(1) + 1
    return [
        tuple(row[:length]) if length >= WORTH_SHARING else ()
        for row, length in zip(batch.inputs.tolist(), before.tolist(), strict=True)
    ]


def cut_packed_microbatches(batch: Batch, budget: int, together: int = 1) -> list[list[int]]:
    """Return the rows of each micro-batch, at most `budget` computed tokens, with rows of the same prompt together.

    Every `together` consecutive rows stay in one micro-batch. Rows longer than the budget get one of their own.
    """
    prompts, lengths = list_prompts(batch), batch.attention.sum(1).tolist()
    bundles: dict[tuple[int, ...], list[range]] = defaultdict(list)
    for start in range(0, len(batch), together):
        bundles[prompts[start] or (-1 - start,)].append(range(start, start + together))
    parts: list[list[int]] = []
    free = 0  # tokens left in the last part
    for prompt, same_prompt in bundles.items():
        included = False  # whether the last part already has this prompt
        for bundle in same_prompt:
            shared = {prompts[row] for row in bundle if prompts[row]}
            tokens = sum(lengths[row] - len(prompts[row]) for row in bundle)
            new = sum(len(other) for other in shared if not (included and other == prompt))
            if not parts or tokens + new > free:
                parts.append([])
                free, new = budget, sum(map(len, shared))
            parts[-1] += bundle
            free -= tokens + new
            included = True
    return parts


def _group_by_prompt(batch: Batch, lengths: Sequence[int]) -> list[tuple[list[int], int]]:
    """Group rows by prompt, each group with the length of its prompt; a row that shares none, with its full length."""
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, prompt in enumerate(list_prompts(batch)):
        groups[prompt or (-1 - row,)].append(row)
    return [(rows, len(prompt) if len(rows) > 1 else lengths[rows[0]]) for prompt, rows in groups.items()]


def _group_by_length(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Group segments of similar length, the longest first, for one attention call each."""
    groups: list[list[Segment]] = []
    needed = longest = 0  # the attention area of the last group's rows, and its longest prompt
    for segment in sorted(segments, key=lambda item: (item.prompt_length > 0, -item.length, -item.prompt_length)):
        area = segment.length * (segment.prompt_length + segment.length)
        if groups and bool(longest) == bool(segment.prompt_length):
            last, columns = groups[-1], max(longest, segment.prompt_length)
            width = last[0].length
            if (len(last) + 1) * width * (columns + width) <= PADDING * (needed + area):
                last.append(segment)
                needed, longest = needed + area, columns
                continue
        groups.append([segment])
        needed, longest = area, segment.prompt_length
    return groups


def _build_span(members: Sequence[Segment], device: torch.device) -> Span:
    """Build the span of segments, the longest first."""
    width, columns = members[0].length, max(segment.prompt_length for segment in members)
    queries, keys = [], []
    for segment in members:
        start, length = segment.start, segment.length
        positions = [*range(start, start + length), *[start] * (width - length)]
        queries += positions
        keys += [start] * (columns - segment.prompt_length)
        keys += [*range(segment.prompt, segment.prompt + segment.prompt_length), *positions]
    missing = torch.tensor([columns - segment.prompt_length for segment in members], device=device)
    not_padding = torch.arange(columns, device=device) >= missing[:, None]
    return Span(
        torch.tensor(queries, device=device),
        torch.tensor(keys, device=device),
        len(members),
        columns,
        not_padding if any(columns != segment.prompt_length for segment in members) else None,
    )
