"""The attention of a packed row on a CUDA device, forward and backward, without masks and without repeated keys.

A token attends to two runs of the row: the prompt of its segment, and its own segment up to itself. So a block of
queries reads the blocks of keys of both; only the last block of the prompt and those on the diagonal are masked. A
block of keys is read by the queries from its first key to the end of its segment, or of the following segments whose
prompt it is. The method is that of FlashAttention-2 (arXiv 2307.08691). No two programs add to the same number, so
results are deterministic.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from qed.kernels.attention_blocks import Blocks, Launch, Launches

LOG2_E = 1.4426950408889634


@triton.jit
def _load(source, places, end, row, wide, WIDTH: tl.constexpr, WIDE: tl.constexpr, BOUNDED: tl.constexpr):
    """Load rows of a head, with zeros from `end` on and beyond the width."""
    pointers = source + places[:, None].to(tl.int64) * row + wide[None, :]
    if BOUNDED:
        return tl.load(pointers, mask=(places[:, None] < end) & (wide[None, :] < WIDTH), other=0.0)
    if WIDE > WIDTH:
        return tl.load(pointers, mask=wide[None, :] < WIDTH, other=0.0)
    return tl.load(pointers)


@triton.jit
def _read_block(blocks, positions, window, KEYS: tl.constexpr, WINDOWED: tl.constexpr):
    """Read a block of queries: the first one, the end and start of its segment, and the start and end of its prompt.

    With a window, segment and prompt start at the first key in the window of the first query, in steps of KEYS.
    """
    place = blocks + tl.program_id(1) * 5
    begin, end = tl.load(place), tl.load(place + 1)
    own, prompt, prompt_end = tl.load(place + 2), tl.load(place + 3), tl.load(place + 4)
    if WINDOWED:
        length = prompt_end - prompt
        unseen = tl.maximum(tl.load(positions + begin) - window + 1, 0)
        own += tl.maximum(unseen - length, 0) // KEYS * KEYS
        prompt += tl.minimum(unseen, length) // KEYS * KEYS
    return begin, end, own, prompt, prompt_end


@triton.jit
def _reaches(queries, keys, positions, window):
    """Return whether earlier keys are within the window of queries; the two broadcast."""
    return tl.load(positions + queries) - tl.load(positions + keys) < window


@triton.jit
def _find_whole(number, whole, own, prompt, one, asking, positions, window, KEYS: tl.constexpr, WINDOWED: tl.constexpr):
    """Return the keys of a block that is before all queries, and which of them the queries attend to."""
    columns = tl.where(number < whole, prompt, own - whole * KEYS) + number * KEYS + one
    seen = columns[None, :] >= 0
    if WINDOWED:
        seen = _reaches(asking, columns[None, :], positions, window)
    return columns, seen


@triton.jit
def _find_rest(
    number, rest, whole, prompt, prompt_end, begin, last, one, rows, asking, positions, window, KEYS: tl.constexpr,
    WINDOWED: tl.constexpr,
):  # fmt: skip
    """Return the same for the rest of the prompt, if there is one, or for a block on the diagonal, and its end."""
    behind = number < rest
    columns = tl.where(behind, prompt + whole * KEYS, begin + (number - rest) * KEYS) + one
    stop = tl.where(behind, prompt_end, last)
    seen = (columns[None, :] < stop) & (behind | (columns[None, :] <= rows[:, None]))
    if WINDOWED:
        seen = seen & _reaches(asking, tl.minimum(columns, stop - 1)[None, :], positions, window)
    return columns, stop, seen


@triton.jit
def _fold(
    total, peak, mass, asked, keys, values, columns, end, seen, scale, key_row, value_row, wide, WIDTH: tl.constexpr,
    WIDE: tl.constexpr, MASKED: tl.constexpr, WINDOWED: tl.constexpr, BOUNDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the attention to a block of keys; `peak` is the largest score so far, by which the sums are scaled."""
    key = _load(keys, columns, end, key_row, wide, WIDTH, WIDE, BOUNDED)
    scores = tl.dot(asked, tl.trans(key), input_precision=PRECISION) * scale
    if MASKED:
        scores = tl.where(seen, scores, float("-inf"))
    higher = tl.maximum(peak, tl.max(scores, 1))
    shift = higher
    if WINDOWED:  # without a window every query attends to a key of its first block
        shift = tl.where(higher == float("-inf"), 0.0, higher)
    weights = tl.exp2(scores - shift[:, None])
    kept = tl.exp2(peak - shift)
    value = _load(values, columns, end, value_row, wide, WIDTH, WIDE, BOUNDED)
    total = tl.dot(weights.to(value.dtype), value, total * kept[:, None], input_precision=PRECISION)
    return total, higher, mass * kept + tl.sum(weights, 1)


@triton.jit(do_not_specialize=["window", "count"])
def _attend(
    query, key, value, blocks, positions, out, sums, scale, window, query_row, query_head, key_row, key_head, value_row,
    value_head, count, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    begin, end, own, prompt, prompt_end = _read_block(blocks, positions, window, KEYS, WINDOWED)
    kv_head = head // (HEADS // KV_HEADS)
    keys, values = key + kv_head * key_head, value + kv_head * value_head
    wide, one = tl.arange(0, WIDE), tl.arange(0, KEYS)
    rows = begin + tl.arange(0, QUERIES)
    asked = _load(query + head * query_head, rows, end, query_row, wide, WIDTH, WIDE, True)
    asking = tl.minimum(rows, end - 1)[:, None]
    total = tl.zeros([QUERIES, WIDE], dtype=tl.float32)
    peak = tl.full([QUERIES], float("-inf"), dtype=tl.float32)
    mass = tl.zeros([QUERIES], dtype=tl.float32)
    whole, before = (prompt_end - prompt) // KEYS, (begin - own) // KEYS
    for number in range(0, whole + before):
        columns, seen = _find_whole(number, whole, own, prompt, one, asking, positions, window, KEYS, WINDOWED)
        total, peak, mass = _fold(
            total, peak, mass, asked, keys, values, columns, end, seen, scale, key_row, value_row, wide, WIDTH, WIDE,
            WINDOWED, WINDOWED, False, PRECISION,
        )  # fmt: skip
    # The rest of the prompt, and the blocks on the diagonal.
    rest = tl.minimum((prompt_end - prompt) % KEYS, 1)
    last = tl.minimum(begin + QUERIES, end)
    for number in range(0, rest + tl.cdiv(last - begin, KEYS)):
        columns, stop, seen = _find_rest(
            number, rest, whole, prompt, prompt_end, begin, last, one, rows, asking, positions, window, KEYS, WINDOWED
        )
        total, peak, mass = _fold(
            total, peak, mass, asked, keys, values, columns, stop, seen, scale, key_row, value_row, wide, WIDTH, WIDE,
            True, WINDOWED, True, PRECISION,
        )  # fmt: skip
    held = rows < end
    place = (rows[:, None].to(tl.int64) * HEADS + head) * WIDTH + wide[None, :]
    result = (total / mass[:, None]).to(out.dtype.element_ty)
    tl.store(out + place, result, mask=held[:, None] & (wide[None, :] < WIDTH))
    tl.store(sums + head * count + rows, peak + tl.log2(mass), mask=held)


@triton.jit
def _add_slopes(
    found, asked, slope, level, delta, keys, values, columns, end, seen, scale, key_row, value_row, wide,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, MASKED: tl.constexpr, BOUNDED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contribution of a block of keys to the gradient of queries, without its scale."""
    key = _load(keys, columns, end, key_row, wide, WIDTH, WIDE, BOUNDED)
    weights = tl.exp2(tl.dot(asked, tl.trans(key), input_precision=PRECISION) * scale - level[:, None])
    if MASKED:
        weights = tl.where(seen, weights, 0.0)
    value = _load(values, columns, end, value_row, wide, WIDTH, WIDE, BOUNDED)
    change = weights * (tl.dot(slope, tl.trans(value), input_precision=PRECISION) - delta[:, None])
    return tl.dot(change.to(key.dtype), key, found, input_precision=PRECISION)


@triton.jit(do_not_specialize=["window", "count"])
def _reverse_queries(
    query, key, value, out, slopes, sums, blocks, positions, deltas, of_query, scale, scaling, window, query_row,
    query_head, key_row, key_head, value_row, value_head, count, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    begin, end, own, prompt, prompt_end = _read_block(blocks, positions, window, KEYS, WINDOWED)
    kv_head = head // (HEADS // KV_HEADS)
    keys, values = key + kv_head * key_head, value + kv_head * value_head
    wide, one = tl.arange(0, WIDE), tl.arange(0, KEYS)
    rows = begin + tl.arange(0, QUERIES)
    held, asking = rows < end, tl.minimum(rows, end - 1)[:, None]
    asked = _load(query + head * query_head, rows, end, query_row, wide, WIDTH, WIDE, True)
    slope = _load(slopes + head * WIDTH, rows, end, HEADS * WIDTH, wide, WIDTH, WIDE, True)
    result = _load(out + head * WIDTH, rows, end, HEADS * WIDTH, wide, WIDTH, WIDE, True)
    delta = tl.sum(slope.to(tl.float32) * result.to(tl.float32), 1)
    tl.store(deltas + head * count + rows, delta, mask=held)
    level = tl.load(sums + head * count + rows, mask=held, other=0.0)
    found = tl.zeros([QUERIES, WIDE], dtype=tl.float32)
    # The same blocks as in the forward pass.
    whole, before = (prompt_end - prompt) // KEYS, (begin - own) // KEYS
    for number in range(0, whole + before):
        columns, seen = _find_whole(number, whole, own, prompt, one, asking, positions, window, KEYS, WINDOWED)
        found = _add_slopes(
            found, asked, slope, level, delta, keys, values, columns, end, seen, scale, key_row, value_row, wide, WIDTH,
            WIDE, WINDOWED, False, PRECISION,
        )  # fmt: skip
    rest = tl.minimum((prompt_end - prompt) % KEYS, 1)
    last = tl.minimum(begin + QUERIES, end)
    for number in range(0, rest + tl.cdiv(last - begin, KEYS)):
        columns, stop, seen = _find_rest(
            number, rest, whole, prompt, prompt_end, begin, last, one, rows, asking, positions, window, KEYS, WINDOWED
        )
        found = _add_slopes(
            found, asked, slope, level, delta, keys, values, columns, stop, seen, scale, key_row, value_row, wide,
            WIDTH, WIDE, True, True, PRECISION,
        )  # fmt: skip
    place = (rows[:, None].to(tl.int64) * HEADS + head) * WIDTH + wide[None, :]
    result = (found * scaling).to(of_query.dtype.element_ty)
    tl.store(of_query + place, result, mask=held[:, None] & (wide[None, :] < WIDTH))


@triton.jit(do_not_specialize=["window", "count"])
def _reverse_keys(
    query, key, value, slopes, sums, deltas, blocks, positions, of_key, of_value, scale, scaling, window, query_row,
    query_head, key_row, key_head, value_row, value_head, count, HEADS: tl.constexpr, KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0).to(tl.int64)
    place = blocks + tl.program_id(1) * 3
    begin, end, last = tl.load(place), tl.load(place + 1), tl.load(place + 2)
    if WINDOWED:  # other segments may begin anywhere in the window
        last = tl.where(last == end, tl.minimum(last, begin + KEYS + window), last)
    kv_head = head // (HEADS // KV_HEADS)
    wide, one = tl.arange(0, WIDE), tl.arange(0, QUERIES)
    columns = begin + tl.arange(0, KEYS)
    keys = _load(key + kv_head * key_head, columns, end, key_row, wide, WIDTH, WIDE, True)
    values = _load(value + kv_head * value_head, columns, end, value_row, wide, WIDTH, WIDE, True)
    asked_from, slopes_from = query + head * query_head, slopes + head * WIDTH
    sums += head * count
    deltas += head * count
    of_keys = tl.zeros([KEYS, WIDE], dtype=tl.float32)
    of_values = tl.zeros([KEYS, WIDE], dtype=tl.float32)
    # Blocks on the diagonal, then those after it. From `last` on the gradients are zero, so nothing is added.
    for diagonal in tl.static_range(2):
        first = begin if diagonal == 0 else begin + KEYS
        stop = tl.minimum(begin + KEYS, last) if diagonal == 0 else last
        for start in range(first, stop, QUERIES):
            rows = start + one
            inside = rows < last
            asked = _load(asked_from, rows, last, query_row, wide, WIDTH, WIDE, True)
            slope = _load(slopes_from, rows, last, HEADS * WIDTH, wide, WIDTH, WIDE, True)
            level = tl.load(sums + rows, mask=inside, other=0.0)
            delta = tl.load(deltas + rows, mask=inside, other=0.0)
            weights = tl.exp2(tl.dot(keys, tl.trans(asked), input_precision=PRECISION) * scale - level[None, :])
            if diagonal == 0:
                weights = tl.where(columns[:, None] <= rows[None, :], weights, 0.0)
            if WINDOWED:
                asking, there = tl.minimum(rows, last - 1)[None, :], tl.minimum(columns, end - 1)[:, None]
                weights = tl.where(_reaches(asking, there, positions, window), weights, 0.0)
            of_values = tl.dot(weights.to(slope.dtype), slope, of_values, input_precision=PRECISION)
            change = weights * (tl.dot(values, tl.trans(slope), input_precision=PRECISION) - delta[None, :])
            of_keys = tl.dot(change.to(asked.dtype), asked, of_keys, input_precision=PRECISION)
    target = (columns[:, None].to(tl.int64) * HEADS + head) * WIDTH + wide[None, :]
    mask = (columns[:, None] < end) & (wide[None, :] < WIDTH)
    tl.store(of_key + target, (of_keys * scaling).to(of_key.dtype.element_ty), mask=mask)
    tl.store(of_value + target, of_values.to(of_value.dtype.element_ty), mask=mask)


def attend(
    query: Tensor, key: Tensor, value: Tensor, blocks: Blocks, scaling: float, launch: Launch
) -> tuple[Tensor, Tensor]:
    """Compute the attention of a packed row.

    Args:
        query: [N, heads, D]; each head is contiguous, also in the other tensors.
        key: [N, kv_heads, D].
        value: [N, kv_heads, D].
        blocks: the blocks of the row.
        scaling: multiplies the scores.
        launch: the launch with the sizes of `blocks.queries`.

    Returns:
        [N, heads, D] contiguous, and the base-2 logarithms of the sums of the exponentials, [heads, N] float32.
    """
    count, heads, width = query.shape
    out = torch.empty(count, heads, width, dtype=query.dtype, device=query.device)
    sums = torch.empty(heads, count, dtype=torch.float32, device=query.device)
    with torch.cuda.device_of(query):
        _attend[(heads, len(blocks.queries))](
            query, key, value, blocks.queries, blocks.positions, out, sums, scaling * LOG2_E, blocks.window,
            *_list_strides(query, key, value), count, **_describe(query, key, blocks), **launch.options,
        )  # fmt: skip
    return out, sums


def reverse(
    states: tuple[Tensor, Tensor, Tensor], out: Tensor, sums: Tensor, slopes: Tensor, blocks: Blocks, scaling: float,
    launches: Launches,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients of queries, keys and values.

    Args:
        states: queries, keys and values.
        out: the first result of `attend`.
        sums: the second result of `attend`.
        slopes: the gradient of `out`; contiguous.
        blocks: the blocks of the row.
        scaling: the factor of the scores.
        launches: the launches with the sizes of `blocks`.
    """
    query, key, value = states
    count, heads, width = query.shape
    strides, options = _list_strides(*states), _describe(query, key, blocks)
    of_query = torch.empty(count, heads, width, dtype=query.dtype, device=query.device)
    deltas = torch.empty_like(sums)
    # The gradients of query heads that share a key head are added afterwards, in float32.
    grouped = heads // key.shape[1]
    dtype = key.dtype if grouped == 1 else torch.float32
    of_key, of_value = torch.empty(2, count, key.shape[1], grouped, width, dtype=dtype, device=key.device)
    with torch.cuda.device_of(query):
        _reverse_queries[(heads, len(blocks.slopes))](
            query, key, value, out, slopes, sums, blocks.slopes, blocks.positions, deltas, of_query, scaling * LOG2_E,
            scaling, blocks.window, *strides, count, **options, **launches.queries.options,
        )  # fmt: skip
        _reverse_keys[(heads, len(blocks.keys))](
            query, key, value, slopes, sums, deltas, blocks.keys, blocks.positions, of_key, of_value, scaling * LOG2_E,
            scaling, blocks.window, *strides, count, **options, **launches.keys.options,
        )  # fmt: skip
    if grouped == 1:
        return of_query, of_key.squeeze(2), of_value.squeeze(2)
    return of_query, of_key.sum(2).to(key.dtype), of_value.sum(2).to(value.dtype)


def _list_strides(*states: Tensor) -> list[int]:
    return [stride for each in states for stride in each.stride()[:2]]


def _describe(query: Tensor, key: Tensor, blocks: Blocks) -> dict[str, object]:
    heads, width = query.shape[1:]
    return {
        "HEADS": heads,
        "KV_HEADS": key.shape[1],
        "WIDTH": width,
        "WIDE": max(16, triton.next_power_of_2(width)),
        "WINDOWED": blocks.window > 0,
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
    }
