"""The operations of a decoding step on a CUDA device between its matrix products, for states in half precision.

With torch's own operations a step launches more than fifty kernels for each layer, including the matrix products, and a
small batch spends its time on launches. Here there are seven besides the products. Attention is computed in parts, over
the rows' own columns and over the prompts that rows share, each in several runs of columns, whose results are averaged
by the sums of their exponentials (FlashAttention, arXiv 2205.14135; in runs: arXiv 2311.01282). No shape depends on how
many columns are in use, and nothing waits for the device, so a CUDA graph can repeat a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 64  # of a block of keys
QUERIES = 16  # the fewest rows of a product on tensor cores
MOST_QUERIES = 64
FEW_COLUMNS = 128  # the fewest columns that are worth a separate run
MOST_RUNS = 16  # the most runs whose results a program averages, all of them in registers
WIDE = 128  # the widest head whose next blocks of keys and values are prefetched
PROGRAMS_PER_UNIT = 2  # the fewest that a launch has, if there is work for them
GATES = 1024  # outputs of a program of `gate`


@triton.jit
def _norm(
    states, change, weight, out, epsilon, width, states_row, change_row, BLOCK: tl.constexpr, CHANGES: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside = place < width
    loaded = tl.load(states + row * states_row + place, mask=inside, other=0.0)
    wide = loaded.to(tl.float32)
    if CHANGES:
        added = tl.load(change + row * change_row + place, mask=inside, other=0.0).to(tl.float32)
        summed = (wide + added).to(loaded.dtype)
        tl.store(states + row * states_row + place, summed, mask=inside)
        wide = summed.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    normed = (wide * scale).to(loaded.dtype).to(tl.float32)
    scaled = normed * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * width + place, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _turn(source, norm, cos, sin, epsilon, HALF: tl.constexpr, NORMED: tl.constexpr):
    """Load a head, normalise it if it has a norm, rotate it, and return its two halves in float32."""
    half = tl.arange(0, HALF)
    loaded = tl.load(source + half)
    first, second = loaded.to(tl.float32), tl.load(source + HALF + half).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt((tl.sum(first * first, 0) + tl.sum(second * second, 0)) / (2 * HALF) + epsilon)
        before, behind = tl.load(norm + half), tl.load(norm + HALF + half)
        first = (first * scale).to(loaded.dtype).to(tl.float32) * before.to(tl.float32)
        second = (second * scale).to(loaded.dtype).to(tl.float32) * behind.to(tl.float32)
        first, second = first.to(before.dtype).to(tl.float32), second.to(before.dtype).to(tl.float32)
    cos_first, cos_second = tl.load(cos + half).to(tl.float32), tl.load(cos + HALF + half).to(tl.float32)
    sin_first, sin_second = tl.load(sin + half).to(tl.float32), tl.load(sin + HALF + half).to(tl.float32)
    return first * cos_first + second * sin_first, second * cos_second + first * sin_second


@triton.jit
def _rotate(
    query, key, value, cos, sin, positions, column, query_norm, key_norm, out, keys, values, epsilon, query_row,
    key_row, value_row, cache_row, cache_head, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
    NORMED: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    half = tl.arange(0, HALF)
    angle = tl.load(positions + row) * (2 * HALF)
    slot = row * cache_row + tl.load(column) * (2 * HALF)
    if head < HEADS:
        source = query + row * query_row + head * (2 * HALF)
        first, second = _turn(source, query_norm, cos + angle, sin + angle, epsilon, HALF, NORMED)
        target = out + (row * HEADS + head) * (2 * HALF) + half
        tl.store(target, first.to(out.dtype.element_ty))
        tl.store(target + HALF, second.to(out.dtype.element_ty))
    if (head >= HEADS) & (head < HEADS + KV_HEADS):
        key_source = key + row * key_row + (head - HEADS) * (2 * HALF)
        key_first, key_second = _turn(key_source, key_norm, cos + angle, sin + angle, epsilon, HALF, NORMED)
        key_target = keys + slot + (head - HEADS) * cache_head + half
        tl.store(key_target, key_first.to(keys.dtype.element_ty))
        tl.store(key_target + HALF, key_second.to(keys.dtype.element_ty))
    if head >= HEADS + KV_HEADS:
        value_source = value + row * value_row + (head - HEADS - KV_HEADS) * (2 * HALF) + half
        value_target = values + slot + (head - HEADS - KV_HEADS) * cache_head + half
        tl.store(value_target, tl.load(value_source).to(values.dtype.element_ty))
        tl.store(value_target + HALF, tl.load(value_source + HALF).to(values.dtype.element_ty))


@triton.jit
def _attend_columns(
    query, keys, values, visible, begin, end, first, scaling, QUERIES: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Attend from queries to the visible columns of a run; return sums of values, largest scores and masses."""
    wide = tl.arange(0, WIDTH)
    total = tl.zeros([QUERIES, WIDTH], dtype=tl.float32)
    peak = tl.full([QUERIES], float("-inf"), dtype=tl.float32)
    mass = tl.zeros([QUERIES], dtype=tl.float32)
    for start in range(begin, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < end
        seen = inside & (columns >= first) & (tl.load(visible + columns, mask=inside, other=0) != 0)
        key = tl.load(keys + columns[None, :] * WIDTH + wide[:, None], mask=inside[None, :], other=0.0)
        scores = tl.where(seen[None, :], tl.dot(query, key) * scaling, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp(scores - shift[:, None])
        kept = tl.exp(peak - shift)
        value = tl.load(values + columns[:, None] * WIDTH + wide[None, :], mask=inside[:, None], other=0.0)
        mass = mass * kept + tl.sum(weights, 1)
        total = total * kept[:, None] + tl.dot(weights.to(value.dtype), value)
        peak = higher
    return total, peak, mass


@triton.jit(do_not_specialize=["window", "runs"])
def _attend_own(
    query, keys, values, visible, column, totals, peaks, masses, scaling, cache_row, cache_head, visible_row, window,
    runs, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, head, run = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    grouped: tl.constexpr = HEADS // KV_HEADS
    last = (tl.load(column) + 1).to(tl.int32)
    first = tl.where(window > 0, tl.maximum(last - window, 0), 0)
    step = tl.cdiv(tl.cdiv(last - first, runs), BLOCK) * BLOCK
    begin = first + run * step
    end = tl.minimum(begin + step, last)
    one, wide = tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    index = row * HEADS + head * grouped + one
    held = one < grouped
    asked = tl.load(query + index[:, None] * WIDTH + wide[None, :], mask=held[:, None], other=0.0)
    base = row * cache_row + head * cache_head
    total, peak, mass = _attend_columns(
        asked, keys + base, values + base, visible + row * visible_row, begin, end, first, scaling, QUERIES, WIDTH,
        BLOCK,
    )  # fmt: skip
    index += run * tl.num_programs(0).to(tl.int64) * HEADS
    tl.store(totals + index[:, None] * WIDTH + wide[None, :], total, mask=held[:, None])
    tl.store(peaks + index, peak, mask=held)
    tl.store(masses + index, mass, mask=held)


@triton.jit(do_not_specialize=["group", "used", "runs", "before", "rows"])
def _attend_prefix(
    query, keys, values, visible, row_of_slot, owner, totals, peaks, masses, scaling, cache_row, cache_head,
    visible_row, group, used, runs, before, rows, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    prompt, head = (tl.program_id(0) // KV_HEADS).to(tl.int64), (tl.program_id(0) % KV_HEADS).to(tl.int64)
    run = tl.program_id(2)
    grouped: tl.constexpr = HEADS // KV_HEADS
    one, wide = tl.program_id(1) * QUERIES + tl.arange(0, QUERIES), tl.arange(0, WIDTH)
    slot = one // grouped
    row = tl.load(row_of_slot + prompt * group + slot, mask=slot < group, other=0)
    # A slot without a row contains the index of some row, possibly of another prompt.
    held = (slot < group) & (tl.load(owner + row) == prompt)
    index = row * HEADS + head * grouped + one % grouped
    asked = tl.load(query + index[:, None] * WIDTH + wide[None, :], mask=held[:, None], other=0.0)
    step = tl.cdiv(tl.cdiv(used, runs), BLOCK) * BLOCK
    begin = run * step
    end = tl.where(tl.sum(held.to(tl.int32), 0) > 0, tl.minimum(begin + step, used), begin)
    base = prompt * cache_row + head * cache_head
    total, peak, mass = _attend_columns(
        asked, keys + base, values + base, visible + prompt * visible_row, begin, end, 0, scaling, QUERIES, WIDTH, BLOCK
    )
    index += (before + run).to(tl.int64) * rows * HEADS
    tl.store(totals + index[:, None] * WIDTH + wide[None, :], total, mask=held[:, None])
    tl.store(peaks + index, peak, mask=held)
    tl.store(masses + index, mass, mask=held)


@triton.jit(do_not_specialize=["runs"])
def _join(totals, peaks, masses, out, runs, WIDTH: tl.constexpr, RUNS: tl.constexpr):
    index, count = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    run, wide = tl.arange(0, RUNS), tl.arange(0, WIDTH)
    there = run < runs
    place = run * count + index
    peak = tl.load(peaks + place, mask=there, other=float("-inf"))
    shares = tl.exp(peak - tl.max(peak, 0))
    mass = tl.sum(shares * tl.load(masses + place, mask=there, other=0.0), 0)
    total = tl.load(totals + place[:, None] * WIDTH + wide[None, :], mask=there[:, None], other=0.0)
    joined = tl.sum(total * shares[:, None], 0) / mass
    tl.store(out + index * WIDTH + wide, joined.to(out.dtype.element_ty))


@triton.jit
def _gate(gates, ups, out, width, gates_row, ups_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    gate = tl.load(gates + row * gates_row + place, mask=inside, other=0.0)
    up = tl.load(ups + row * ups_row + place, mask=inside, other=0.0)
    opened = (gate.to(tl.float32) * tl.sigmoid(gate.to(tl.float32))).to(gate.dtype)
    tl.store(out + row * width + place, (opened.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


class Shared(NamedTuple):
    """A layer's keys and values of P prompts, each shared by several rows; see `SharedPrefix`."""

    keys: Tensor  # [P, kv_heads, columns, width]
    values: Tensor
    used: int  # columns in use
    visible: Tensor  # [P, columns] uint8
    row_of_slot: Tensor  # [P * group] int64
    owner: Tensor  # [R] int64
    group: int


def norm(states: Tensor, change: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """Add a change, [R, H] or None, to the states in place, and return their RMSNorm (arXiv 1910.07467), [R, H]."""
    rows, width = states.shape
    out = torch.empty(rows, width, dtype=dtype, device=states.device)
    added = states if change is None else change
    block = triton.next_power_of_2(width)
    strides, warps = (states.stride(0), added.stride(0)), count_warps(block)
    _norm[(rows,)](
        states, added, weight, out, epsilon, width, *strides, BLOCK=block, CHANGES=change is not None, num_warps=warps
    )
    return out


def gate(gates: Tensor, ups: Tensor) -> Tensor:
    """Return silu(gates) * ups, [R, F], each rounded; the rows of both are contiguous."""
    rows, width = gates.shape
    out = gates.new_empty(rows, width)
    _gate[(rows, triton.cdiv(width, GATES))](gates, ups, out, width, gates.stride(0), ups.stride(0), BLOCK=GATES)
    return out


class Heads:
    """The rotations and attention of one layer.

    Args:
        cos: [columns, width], of RoPE (arXiv 2104.09864).
        sin: [columns, width], with a negative sign in the first half.
        sizes: query heads, key heads, width of a head.
        scaling: multiplies the scores.
        window: columns that a token attends to, including its own; 0 for all.
        norms: weights [width] of the norms of queries and keys, and their epsilon, or None.
    """

    def __init__(
        self,
        cos: Tensor,
        sin: Tensor,
        sizes: tuple[int, int, int],
        scaling: float,
        window: int,
        norms: tuple[Tensor, Tensor, float] | None,
    ) -> None:
        self.cos, self.sin = cos, sin
        self.heads, self.kv_heads, self.width = sizes
        self.scaling, self.window, self.norms = scaling, window, norms
        self.units = count_units(cos.device)

    def rotate(self, states: Any, positions: Tensor, column: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        """Rotate queries and keys, [R, heads * width] each, and write keys and values into a column of the cache.

        Args:
            states: queries, keys and values of the new tokens; their rows are contiguous.
            positions: [R] int64.
            column: [1] int64.
            cache: keys and values, [R, kv_heads, columns, width].

        Returns:
            the queries, [R, heads, width].
        """
        query, key, value = states
        keys, values = cache
        assert keys.stride() == values.stride()
        out = torch.empty(len(query), self.heads, self.width, dtype=keys.dtype, device=keys.device)
        query_norm, key_norm, epsilon = self.norms or (self.cos, self.cos, 0.0)
        _rotate[(len(query), self.heads + 2 * self.kv_heads)](
            query, key, value, self.cos, self.sin, positions, column, query_norm, key_norm, out, keys, values, epsilon,
            query.stride(0), key.stride(0), value.stride(0), *keys.stride()[:2],
            HEADS=self.heads, KV_HEADS=self.kv_heads, HALF=self.width // 2, NORMED=self.norms is not None, num_warps=1,
        )  # fmt: skip
        return out

    def attend(
        self, query: Tensor, cache: tuple[Tensor, Tensor], visible: Tensor, column: Tensor, shared: Shared | None
    ) -> Tensor:
        """Compute the attention of each row to its own visible columns up to `column` and to those of its prompt.

        Args:
            query: [R, heads, width].
            cache: keys and values, [R, kv_heads, columns, width].
            visible: [R, columns] uint8; 0 at columns that do not belong to the row.
            column: [1] int64, the newest one.
            shared: the shared prompts; None if all columns are the rows' own.

        Returns:
            [R, heads * width].
        """
        rows, grouped = len(query), self.heads // self.kv_heads
        keys, values = cache
        own = self._count_runs(rows * self.kv_heads, visible.shape[1])
        queries = max(QUERIES, triton.next_power_of_2(grouped))
        blocks, at_once, others = 0, queries, 0
        if shared is not None:
            wanted = shared.group * grouped
            at_once = min(MOST_QUERIES, max(queries, triton.next_power_of_2(wanted)))
            blocks = triton.cdiv(wanted, at_once)
            others = self._count_runs(len(shared.keys) * self.kv_heads * blocks, shared.used)
        runs = own + others
        totals = torch.empty(runs, rows, self.heads, self.width, dtype=torch.float32, device=query.device)
        peaks, masses = torch.empty(2, runs, rows, self.heads, dtype=torch.float32, device=query.device)
        sizes = {"HEADS": self.heads, "KV_HEADS": self.kv_heads, "WIDTH": self.width, "BLOCK": COLUMNS}
        sizes["num_stages"] = count_stages(self.width)
        _attend_own[(rows, self.kv_heads, own)](
            query, keys, values, visible, column, totals, peaks, masses, self.scaling, *keys.stride()[:2],
            visible.stride(0), self.window, own, **sizes, QUERIES=queries,
        )  # fmt: skip
        if shared is not None:
            _attend_prefix[(len(shared.keys) * self.kv_heads, blocks, others)](
                query, shared.keys, shared.values, shared.visible, shared.row_of_slot, shared.owner, totals, peaks,
                masses, self.scaling, *shared.keys.stride()[:2], shared.visible.stride(0), shared.group, shared.used,
                others, own, rows, **sizes, QUERIES=at_once,
            )  # fmt: skip
        out = query.new_empty(rows, self.heads * self.width)
        _join[(rows * self.heads,)](
            totals, peaks, masses, out, runs, WIDTH=self.width, RUNS=triton.next_power_of_2(runs), num_warps=1
        )
        return out

    def _count_runs(self, programs: int, columns: int) -> int:
        """Compute the number of runs into which columns are divided, so that the whole device has work."""
        wanted = triton.cdiv(PROGRAMS_PER_UNIT * self.units, max(1, programs))
        return int(max(1, min(wanted, triton.cdiv(columns, FEW_COLUMNS), MOST_RUNS)))


def count_warps(block: int) -> int:
    """Return the number of warps of a program that holds a row of states."""
    return 8 if block >= 4096 else 4


def count_stages(width: int) -> int:
    """Return how many blocks of keys and values of a head are loaded at once: all must fit in shared memory."""
    return 3 if width <= WIDE else 1


def count_units(device: torch.device) -> int:
    """Return the number of a device's multiprocessors."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1
