"""Layouts built of tensors are those that are built token by token."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from hypothesis import given
from hypothesis import strategies as st

from qed.models.segments import Segment
from qed.training.batch import COLUMNS, Batch
from qed.training.packing import WORTH_SHARING, cut_packed_microbatches, pack_batch
from qed.training.spans import PADDING
from qed.training.spreading import count_packed_tokens

Ids = tuple[int, ...]


class PlainSpan(NamedTuple):
    queries: list[int]
    keys: list[int]
    segments: int
    columns: int
    not_padding: list[list[bool]]


class PlainRow:
    """A packed row under construction, in lists of tokens."""

    def __init__(self, inputs: list[list[int]]) -> None:
        self.inputs = inputs
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.place = [[0] * len(row) for row in inputs]

    def add(self, row: int, first: int, last: int) -> int:
        start = len(self.ids)
        self.ids += self.inputs[row][first:last]
        self.positions += range(first, last)
        self.place[row][first:last] = range(start, len(self.ids))
        return start


def list_plain_prompts(batch: Batch) -> list[Ids]:
    before = (batch.mask != 0).long().argmax(1) + 1
    rows = zip(batch.inputs.tolist(), before.tolist(), strict=True)
    return [tuple(row[:length]) if length >= WORTH_SHARING else () for row, length in rows]


def pack_plainly(batch: Batch) -> tuple[PlainRow, list[Segment], list[PlainSpan], list[int]]:
    lengths: list[int] = batch.attention.sum(1).tolist()
    packed = PlainRow(batch.inputs.tolist())
    groups: dict[Ids, list[int]] = defaultdict(list)
    for row, prompt in enumerate(list_plain_prompts(batch)):
        groups[prompt or (-1 - row,)].append(row)
    segments: list[Segment] = []
    for prompt, rows in groups.items():
        shared = len(prompt) if len(rows) > 1 else lengths[rows[0]]
        start = packed.add(rows[0], 0, shared)
        segments.append(Segment(start, shared))
        for row in rows if len(rows) > 1 else ():
            packed.place[row][:shared] = range(start, start + shared)
            if lengths[row] > shared:
                segments.append(Segment(packed.add(row, shared, lengths[row]), lengths[row] - shared, start, shared))
    spans, order, slot = [], [0] * len(packed.ids), 0
    for members in group_plainly(segments):
        spans.append(build_plain_span(members))
        for segment in members:
            order[segment.start : segment.start + segment.length] = range(slot, slot + segment.length)
            slot += members[0].length
    return packed, segments, spans, order


def group_plainly(segments: Sequence[Segment]) -> list[list[Segment]]:
    groups: list[list[Segment]] = []
    needed = longest = 0
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


def build_plain_span(members: Sequence[Segment]) -> PlainSpan:
    width, columns = members[0].length, max(segment.prompt_length for segment in members)
    queries, keys = [], []
    for start, length, prompt, prompt_length in members:
        positions = [*range(start, start + length), *[start] * (width - length)]
        queries += positions
        keys += [start] * (columns - prompt_length)
        keys += [*range(prompt, prompt + prompt_length), *positions]
    seen = [[column >= columns - segment.prompt_length for column in range(columns)] for segment in members]
    return PlainSpan(queries, keys, len(members), columns, [] if all(map(all, seen)) else seen)


def cut_plainly(batch: Batch, budget: int, together: int) -> list[list[int]]:
    prompts, lengths = list_plain_prompts(batch), batch.attention.sum(1).tolist()
    bundles: dict[Ids, list[range]] = defaultdict(list)
    for start in range(0, len(batch), together):
        bundles[prompts[start] or (-1 - start,)].append(range(start, start + together))
    parts: list[list[int]] = []
    free = 0
    for prompt, same_prompt in bundles.items():
        included = False
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


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Rows of few different tokens, so that prompts are equal, start alike, or are the start of another."""
    token = st.integers(0, 1)
    prompts = draw(st.lists(st.lists(token, min_size=1, max_size=14), min_size=1, max_size=3))
    prompts += [prompt + [0] * draw(st.integers(0, 3)) for prompt in prompts]
    answer = st.lists(token, min_size=1, max_size=12)
    row = st.tuples(st.sampled_from(prompts), answer)
    rows = draw(st.lists(row, min_size=1, max_size=10))
    width = max(len(prompt) + len(output) for prompt, output in rows) - 1
    inputs = torch.zeros(len(rows), width + 1, dtype=torch.int64)
    attention, mask = torch.zeros(len(rows), width, dtype=torch.int64), torch.zeros(len(rows), width)
    for number, (prompt, output) in enumerate(rows):
        inputs[number, : len(prompt) + len(output)] = torch.tensor([*prompt, *output])
        attention[number, : len(prompt) + len(output) - 1] = 1
        mask[number, len(prompt) - 1 : len(prompt) + len(output) - 1] = 1
    unread = dict.fromkeys(COLUMNS[4:], torch.zeros_like(mask))
    return Batch(inputs[:, :-1], inputs[:, 1:], attention, mask, **unread)


@given(batch=batches())
def test_a_layout_is_that_of_its_tokens(batch: Batch) -> None:
    # A row of one token has no input, and the plain way does not compute such rows.
    batch = batch.select(batch.attention.sum(1).nonzero().flatten())
    if len(batch) == 0:
        return
    layout = pack_batch(batch, fill=False)
    packed, segments, spans, order = pack_plainly(batch)
    assert layout.ids.tolist() == [packed.ids]
    assert layout.positions.tolist() == [packed.positions]
    assert layout.place.tolist() == packed.place
    assert layout.order.tolist() == order
    assert list(layout.segments) == segments
    assert layout.longest == int(batch.attention.sum(1).max())
    found = [
        PlainSpan(
            span.queries.tolist(),
            span.keys.tolist(),
            span.segments,
            span.prompt_columns,
            [] if span.not_padding is None else span.not_padding.tolist(),
        )
        for span in layout.spans
    ]
    assert found == spans


@given(batch=batches(), budget=st.integers(1, 80), together=st.sampled_from([1, 2, 3]))
def test_cuts_are_those_of_the_tokens(batch: Batch, budget: int, together: int) -> None:
    batch = batch.select(range(len(batch) // together * together))
    if len(batch) == 0:
        return
    parts = cut_packed_microbatches(batch, budget, together)
    assert parts == cut_plainly(batch, budget, together)
    for part in parts:
        assert count_packed_tokens(batch)(part) == pack_batch(batch.select(part), fill=False).ids.numel()


def test_rows_without_inputs_are_packed() -> None:
    """A row of one token is no input of another, and a batch may hold nothing else."""
    one = torch.ones(2, 3, dtype=torch.int64)
    attention = torch.tensor([[0, 0, 0], [1, 1, 0]])
    unread = dict.fromkeys(COLUMNS[3:], torch.zeros(2, 3))
    layout = pack_batch(Batch(one, one, attention, **unread))
    assert layout.ids.tolist() == [[1, 1]]
    assert layout.place.tolist() == [[0, 0, 0], [0, 1, 0]]
    assert pack_batch(Batch(one, one, torch.zeros_like(attention), **unread)).ids.shape == (1, 0)


@given(batch=batches(), copies=st.integers(1, 20))
def test_nothing_reads_what_fills_a_row(batch: Batch, copies: int) -> None:
    """The exact layout is the beginning of the filled one, which is at most a 16th longer."""
    batch = batch.select(list(range(len(batch))) * copies)
    exact, filled = pack_batch(batch, fill=False), pack_batch(batch)
    tokens, more = exact.ids.numel(), filled.ids.numel() - exact.ids.numel()
    assert 0 <= more <= tokens / 16
    assert tokens < 64 * 16 or filled.ids.numel() % 64 == 0
    assert filled.ids[:, :tokens].equal(exact.ids)
    assert filled.positions[:, :tokens].equal(exact.positions)
    assert filled.place.equal(exact.place)
    assert filled.segments[: len(exact.segments)] == exact.segments
    assert all(segment.prompt_length == 0 for segment in filled.segments[len(exact.segments) :])
