"""Several documents in one row: windows of a concatenated stream, and rows that share a computation but not a context.

In a window attention crosses from one document to the next, as in pre-training. Rows that are packed for the
computation alone stand one behind the other without padding, and the prompt that several of them begin with stands
there once. Attention looks up what each row may see, so every row has the log-probs that it has by itself.
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

WORTH_SHARING = 8  # tokens of a prompt from which on computing it once is worth the separate attention
PADDING = 1.5  # a span's padded attention may be so many times that of its rows


def cut_windows(documents: Iterable[Sequence[int]], length: int) -> Tensor:
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


@dataclass(frozen=True)
class Segment:
    """Consecutive inputs of a row at `start` of the packed row: all of them, a shared prompt, or what follows one."""

    start: int
    length: int
    prompt: int = 0  # where the prompt before it stands,
    prompt_length: int = 0  # and its tokens; 0 where the segment begins its row


@dataclass(frozen=True)
class Span:
    """Segments whose attention is computed in one call, padded to the longest of them.

    Prompts are padded on the left and segments on the right, so the query in column q stands `prompt_columns + q`
    columns behind the first key.
    """

    queries: Tensor  # [segments * Q] int64: places in the packed row; a padded one repeats its segment's first
    keys: Tensor  # [segments * (prompt_columns + Q)] int64
    segments: int
    prompt_columns: int
    there: Tensor | None  # [segments, prompt_columns] bool: which are no padding; None where all are

    @property
    def width(self) -> int:
        """Q, the tokens of the longest segment."""
        return len(self.queries) // self.segments

    @cached_property
    def whole(self) -> Tensor | None:
        """What the queries see where attention reaches back to the beginning; all layers share it."""
        return self._seen(self.prompt_columns + self.width)

    def seen(self, window: int | None) -> Tensor | None:
        """Which keys the queries see, as a bool that broadcasts; None where a plain causal mask says it.

        Args:
            window: how many keys back attention reaches, itself included; None for all.
        """
        if window is None or window >= self.prompt_columns + self.width:
            return self.whole
        return self._seen(window)

    def _seen(self, reach: int) -> Tensor | None:
        columns, total = self.prompt_columns, self.prompt_columns + self.width
        if columns == 0 and reach == total:
            return None
        place = torch.arange(total, device=self.queries.device)
        behind = place[columns:, None] - place
        seen = (behind >= 0) & (behind < reach)
        if self.there is None:
            return seen
        return seen & pad(self.there, (0, self.width), value=True)[:, None, None]


@dataclass(frozen=True)
class Layout:
    """The rows of a batch in one row of N inputs."""

    ids: Tensor  # [1, N] int64
    positions: Tensor  # [1, N] int64, counted from each row's beginning
    place: Tensor  # [B, T] int64: where each input of the batch stands; rows with the same prompt share its places
    spans: tuple[Span, ...]
    order: Tensor  # [N] int64: where each input's attention stands in the spans' outputs, one behind the other


class _Row:
    """The packed row as it grows."""

    def __init__(self, inputs: list[list[int]]) -> None:
        self.inputs = inputs
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.place = [[0] * len(row) for row in inputs]

    def add(self, row: int, first: int, last: int) -> int:
        """Let some inputs of a row stand at the end; where they begin."""
        start = len(self.ids)
        self.ids += self.inputs[row][first:last]
        self.positions += range(first, last)
        self.place[row][first:last] = range(start, len(self.ids))
        return start


def pack_batch(batch: Batch) -> Layout:
    """The rows of a batch without padding, and each prompt that several of them begin with only once."""
    lengths: list[int] = batch.attention.sum(1).tolist()
    packed = _Row(batch.inputs.tolist())
    segments: list[Segment] = []
    for rows, shared in _group_by_prompt(batch, lengths):
        begin = packed.add(rows[0], 0, shared)
        segments.append(Segment(begin, shared))
        if len(rows) == 1:
            continue
        for row in rows:
            packed.place[row][:shared] = range(begin, begin + shared)
            if lengths[row] > shared:
                start = packed.add(row, shared, lengths[row])
                segments.append(Segment(start, lengths[row] - shared, begin, shared))
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
    """The inputs of each row before its first response token, which several rows may have in common; nothing where
    they are too few to be worth sharing."""
    before = (batch.mask != 0).long().argmax(1) + 1
    return [
        tuple(row[:length]) if length >= WORTH_SHARING else ()
        for row, length in zip(batch.inputs.tolist(), before.tolist(), strict=True)
    ]


def cut_packed_microbatches(batch: Batch, budget: int, together: int = 1) -> list[list[int]]:
    """The rows of each micro-batch, at most `budget` tokens that are computed: rows with the same prompt side by side.

    Every `together` consecutive rows stay in one part; what is longer than the budget stands alone.
    """
    own, lengths = list_prompts(batch), batch.attention.sum(1).tolist()
    bundles: dict[tuple[int, ...], list[range]] = defaultdict(list)
    for start in range(0, len(batch), together):
        bundles[own[start] or (-1 - start,)].append(range(start, start + together))
    parts: list[list[int]] = []
    room = 0
    for prompt, alike in bundles.items():
        begun = False  # whether this prompt stands in the last part
        for bundle in alike:
            shared = {own[row] for row in bundle if own[row]}
            tokens = sum(lengths[row] - len(own[row]) for row in bundle)
            new = sum(len(one) for one in shared if not (begun and one == prompt))
            if not parts or tokens + new > room:
                parts.append([])
                room, new = budget, sum(map(len, shared))
            parts[-1] += bundle
            room -= tokens + new
            begun = True
    return parts


def _group_by_prompt(batch: Batch, lengths: Sequence[int]) -> list[tuple[list[int], int]]:
    """Rows that begin with the same prompt and its tokens; a row that shares none, and all of its tokens."""
    alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, prompt in enumerate(list_prompts(batch)):
        alike[prompt or (-1 - row,)].append(row)
    return [(rows, len(prompt) if len(rows) > 1 else lengths[rows[0]]) for prompt, rows in alike.items()]


def _group_by_length(segments: Iterable[Segment]) -> list[list[Segment]]:
    """Segments that are computed in one call: of like length, each group's longest first."""
    groups: list[list[Segment]] = []
    needed = longest = 0  # the attention of the last group's rows, and its longest prompt
    for segment in sorted(segments, key=lambda one: (one.prompt_length > 0, -one.length, -one.prompt_length)):
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
    width, columns = members[0].length, max(one.prompt_length for one in members)
    queries, keys = [], []
    for one in members:
        own = [*range(one.start, one.start + one.length), *[one.start] * (width - one.length)]
        queries += own
        keys += [one.start] * (columns - one.prompt_length)
        keys += [*range(one.prompt, one.prompt + one.prompt_length), *own]
    missing = torch.tensor([columns - one.prompt_length for one in members], device=device)
    there = torch.arange(columns, device=device) >= missing[:, None]
    return Span(
        torch.tensor(queries, device=device),
        torch.tensor(keys, device=device),
        len(members),
        columns,
        there if any(columns != one.prompt_length for one in members) else None,
    )
