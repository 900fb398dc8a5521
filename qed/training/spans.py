"""Attention of a packed row by spans (padded groups of similar segments), with torch's attention.

No mask is larger than `MASK_ELEMENTS`: the queries of long segments are cut into pieces, and one mask band serves all
pieces, because whether a query sees a key depends only on their distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from qed.models.precision import read_compute_dtype
from qed.models.segments import Segment
from qed.training.short_attention import attend_short, is_short

PADDING = 1.5  # largest ratio of a span's padded attention to that of its rows
MASK_ELEMENTS = 2**23  # elements of the largest mask: 32 MiB in float32
SHORTEST_PIECE = 256  # fewest queries worth a separate attention call


class Piece(NamedTuple):
    """Consecutive queries of a span's segments, and the keys that they see."""

    first: int  # first query
    last: int  # end of the queries, exclusive
    key: int  # first key that any of them sees; the last one is that of the last query


@dataclass(frozen=True)
class Span:
    """Segments whose attention is computed together, padded to the longest of them.

    Prompts are padded on the left and segments on the right, so the query in column q is `prompt_columns + q` columns
    after the first key.
    """

    queries: Tensor  # [segments * Q] int64: positions in the packed row; padding repeats the segment's first
    keys: Tensor  # [segments * (prompt_columns + Q)] int64
    segments: int
    prompt_columns: int
    not_padding: Tensor | None  # [segments, prompt_columns] bool: which are not padding; None if there is no padding
    bands: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)  # of `_get_band`, for all layers

    @property
    def width(self) -> int:
        """Q, the length of the longest segment."""
        return len(self.queries) // self.segments

    @property
    def columns(self) -> int:
        """The number of keys of each segment."""
        return self.prompt_columns + self.width

    def list_pieces(self, window: int | None) -> list[Piece]:
        """Cut the queries into pieces whose masks have at most `MASK_ELEMENTS`.

        Args:
            window: number of keys that a query attends to, including its own; None for all.
        """
        reach = self._compute_reach(window)
        height = self.width
        if self._needs_mask(reach) and self.width * self.columns > MASK_ELEMENTS:
            # A piece computes `height` keys beyond the window, so it is not much longer than the window.
            height = min(max(1, MASK_ELEMENTS // min(self.columns, 2 * reach)), max(reach, SHORTEST_PIECE))
        return [
            Piece(first, min(first + height, self.width), max(0, self.prompt_columns + first - reach + 1))
            for first in range(0, self.width, max(1, height))
        ]

    def compute_mask(self, piece: Piece, window: int | None, dtype: torch.dtype, always: bool = False) -> Tensor | None:
        """Compute a broadcastable mask of the keys that a piece's queries see; None for plain causal attention.

        Args:
            piece: one of `list_pieces`.
            window: as in `list_pieces`.
            dtype: torch.bool, or the dtype of an additive mask of 0 and -inf.
            always: compute it for plain causal attention too.
        """
        reach = self._compute_reach(window)
        if not always and not self._needs_mask(reach):
            return None
        height, columns = piece.last - piece.first, self.prompt_columns + piece.last - piece.key
        band = self._get_band(reach, dtype)
        # Align the piece's first query with the band's first row, which has at least as many keys before it.
        shift = band.shape[-1] - band.shape[-2] - (columns - height)
        return band[..., :height, shift : shift + columns]

    def _compute_reach(self, window: int | None) -> int:
        return self.columns if window is None else min(window, self.columns)

    def _needs_mask(self, reach: int) -> bool:
        return self.prompt_columns > 0 or reach < self.width

    def _get_band(self, reach: int, dtype: torch.dtype) -> Tensor:
        """Return the mask that contains the masks of all pieces, [height, distance + height] or one per segment.

        Query i sees column j where 0 <= distance + i - j < reach.
        """
        if (reach, dtype) not in self.bands:
            pieces = self.list_pieces(reach)
            height = pieces[0].last
            distance = max(self.prompt_columns + piece.first - piece.key for piece in pieces)
            device = self.queries.device
            rows, columns = torch.arange(height, device=device), torch.arange(distance + height, device=device)
            seen = (rows[:, None] + distance >= columns) & (rows[:, None] + distance < columns + reach)
            if self.not_padding is not None:  # only in a span that is small enough for one piece
                seen = seen & pad(self.not_padding, (0, height), value=True)[:, None, None, pieces[0].key :]
            if dtype != torch.bool:
                seen = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)
            self.bands[reach, dtype] = seen
        return self.bands[reach, dtype]


def build_spans(segments: Sequence[Segment], device: torch.device) -> tuple[tuple[Span, ...], Tensor]:
    """Build the spans of a packed row, and the index of each of its N inputs in their concatenated outputs, [N] int64.

    Args:
        segments: segments of the row, in order.
        device: device of the tensors.
    """
    groups = _group_by_length(segments)
    slots, slot = dict[int, int](), 0
    for members in groups:
        for segment in members:
            slots[segment.start] = slot
            slot += members[0].length
    lengths = torch.tensor([segment.length for segment in segments], device=device)
    moved = torch.tensor([slots[segment.start] - segment.start for segment in segments], device=device)
    count = sum(segment.length for segment in segments)
    order = torch.arange(count, device=device) + moved.repeat_interleave(lengths, output_size=count)
    return tuple(_build_span(members, device) for members in groups), order


def attend_spans(
    spans: Sequence[Span], query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Compute the attention of each span's padded queries, concatenated, [M, heads, D].

    Args:
        spans: spans of the packed row.
        query: [N, heads, D].
        key: [N, kv_heads, D].
        value: [N, kv_heads, D].
        scaling: multiplies the products of queries and keys; None for 1 / sqrt(D).
        window: number of inputs that an input attends to, including itself; None for all.
    """
    return torch.cat([_attend_span(span, query, key, value, scaling, window) for span in spans])


def _attend_span(
    span: Span, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Compute the attention of a span's padded queries, [segments * Q, heads, D]."""

    def select(states: Tensor, places: Tensor) -> Tensor:
        """Return the states at some places, [segments, heads, columns, D]."""
        rows = states.index_select(0, places)
        return rows.view(span.segments, -1, *rows.shape[1:]).transpose(1, 2)

    queries, keys, values = select(query, span.queries), select(key, span.keys), select(value, span.keys)
    on_cpu, dtype = query.device.type == "cpu", read_compute_dtype(query)
    if is_short(span.width, span.columns, dtype, query.device):
        (piece,) = span.list_pieces(window)
        mask = span.compute_mask(piece, window, torch.float32, always=True)
        assert mask is not None
        return (
            attend_short(queries, keys[:, :, piece.key :], values[:, :, piece.key :], mask, scaling, dtype)
            .transpose(1, 2)
            .flatten(0, 1)
        )
    group_size = query.shape[1] // key.shape[1]
    outputs = []
    for piece in span.list_pieces(window):
        # A CPU converts a bool mask in every layer, and keeps each copy for the backward pass.
        mask = span.compute_mask(piece, window, dtype if on_cpu else torch.bool)
        last = span.prompt_columns + piece.last
        seen_keys, seen_values = keys[:, :, piece.key : last], values[:, :, piece.key : last]
        if group_size > 1 and mask is not None and not on_cpu:
            # The fast kernels of other devices support either a mask or grouped-query attention, not both.
            seen_keys, seen_values = (part.repeat_interleave(group_size, 1) for part in (seen_keys, seen_values))
        attended: Tensor = scaled_dot_product_attention(
            queries[:, :, piece.first : piece.last],
            seen_keys,
            seen_values,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=query.shape[1] != seen_keys.shape[1],
        )
        outputs.append(attended.transpose(1, 2))
    return torch.cat(outputs, 1).flatten(0, 1) if len(outputs) > 1 else outputs[0].flatten(0, 1)


def _group_by_length(segments: Sequence[Segment]) -> list[list[Segment]]:
    """Group segments of similar length, the longest first, for one attention call each."""
    groups: list[list[Segment]] = []
    needed = 0  # the attention area of the last group's rows
    shortest = longest = 0  # its shortest and longest prompt
    for segment in sorted(segments, key=lambda item: (item.prompt_length > 0, -item.length, -item.prompt_length)):
        area = segment.length * (segment.prompt_length + segment.length)
        if groups and bool(longest) == bool(segment.prompt_length):
            last, columns = groups[-1], max(longest, segment.prompt_length)
            width = last[0].length
            padded = (len(last) + 1) * width * (columns + width)
            # Prompts of different lengths need a mask for each segment.
            same_prompts = shortest == columns == segment.prompt_length
            if padded <= PADDING * (needed + area) and (same_prompts or padded <= MASK_ELEMENTS):
                last.append(segment)
                needed, shortest, longest = needed + area, min(shortest, segment.prompt_length), columns
                continue
        groups.append([segment])
        needed, shortest, longest = area, segment.prompt_length, segment.prompt_length
    return groups


def _build_span(members: Sequence[Segment], device: torch.device) -> Span:
    """Build the span of segments, the longest first."""
    width, columns = members[0].length, max(segment.prompt_length for segment in members)
    start, length, prompt, prompt_length = torch.tensor(members, device=device)[:, :, None].unbind(1)
    column = torch.arange(width, device=device)
    queries = torch.where(column < length, start + column, start)
    column = torch.arange(columns, device=device) - (columns - prompt_length)
    not_padding = column >= 0
    keys = torch.cat([torch.where(not_padding, prompt + column, start), queries], 1)
    padded = any(columns != segment.prompt_length for segment in members)
    return Span(queries.flatten(), keys.flatten(), len(members), columns, not_padding if padded else None)
