"""The operations of Llama-like layers between matrix products on a CUDA device, forward and backward.

torch computes a norm by seven operations that read and write states in float32, and keeps most of them for the backward
pass. Here each operation is one kernel that reads its inputs once and uses float32 only in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from qed.kernels.cuda.decoding import GATES, count_units, count_warps

TURNED = 2048  # elements of the heads that a program rotates
PROGRAMS_PER_UNIT = 4  # in a norm's backward pass; each adds up the gradient of the weight over its rows


@triton.jit
def _norm(states, change, weight, summed, out, scales, epsilon, width, BLOCK: tl.constexpr, CHANGES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, BLOCK)
    inside, here = place < width, row * width + place
    loaded = tl.load(states + here, mask=inside, other=0.0)
    wide = loaded.to(tl.float32)
    if CHANGES:
        added = (wide + tl.load(change + here, mask=inside, other=0.0).to(tl.float32)).to(loaded.dtype)
        tl.store(summed + here, added, mask=inside)
        wide = added.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / width + epsilon)
    tl.store(scales + row, scale)
    normed = (wide * scale).to(loaded.dtype).to(tl.float32)
    scaled = normed * tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + here, scaled.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _reverse_norm(
    slopes, of_summed, summed, weight, scales, of_states, of_change, of_weight, rows, width, BLOCK: tl.constexpr,
    CHANGES: tl.constexpr, TRAINED: tl.constexpr,
):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    place = tl.arange(0, BLOCK)
    inside = place < width
    factor = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    of_factor = tl.zeros([BLOCK], dtype=tl.float32)
    for row in range(program, rows, programs):
        here = tl.cast(row, tl.int64) * width + place
        scale = tl.load(scales + row)
        normed = tl.load(summed + here, mask=inside, other=0.0).to(tl.float32) * scale
        slope = tl.load(slopes + here, mask=inside, other=0.0).to(tl.float32)
        if TRAINED:
            of_factor += slope * normed
        slope *= factor
        found = scale * (slope - normed * (tl.sum(slope * normed, 0) / width))
        found += tl.load(of_summed + here, mask=inside, other=0.0).to(tl.float32)
        tl.store(of_states + here, found.to(of_states.dtype.element_ty), mask=inside)
        if CHANGES:
            tl.store(of_change + here, found.to(of_change.dtype.element_ty), mask=inside)
    if TRAINED:
        tl.store(of_weight + program * width + place, of_factor, mask=inside)


@triton.jit
def _reverse_gate(slopes, gates, ups, of_gates, of_ups, width, gates_row, ups_row, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, here = place < width, row * width + place
    slope = tl.load(slopes + here, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gates + row * gates_row + place, mask=inside, other=0.0)
    up = tl.load(ups + row * ups_row + place, mask=inside, other=0.0).to(tl.float32)
    wide = gate.to(tl.float32)
    share = tl.sigmoid(wide)
    opened = (wide * share).to(gate.dtype).to(tl.float32)
    tl.store(of_ups + here, (slope * opened).to(of_ups.dtype.element_ty), mask=inside)
    change = slope * up * share * (1.0 + wide * (1.0 - share))
    tl.store(of_gates + here, change.to(of_gates.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _rotate(
    states, cos, sin, norm, out, epsilon, states_row, count, HEADS: tl.constexpr, HALF: tl.constexpr,
    PAIRS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    row, head = (pair // HEADS).to(tl.int64)[:, None], (pair % HEADS)[:, None]
    half, inside = tl.arange(0, HALF)[None, :], (pair < count)[:, None]
    here = states + row * states_row + head * (2 * HALF) + half
    loaded = tl.load(here, mask=inside, other=0.0)
    first, second = loaded.to(tl.float32), tl.load(here + HALF, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + epsilon)[:, None]
        first = (first * scale).to(loaded.dtype).to(tl.float32) * tl.load(norm + half).to(tl.float32)
        second = (second * scale).to(loaded.dtype).to(tl.float32) * tl.load(norm + HALF + half).to(tl.float32)
        first, second = first.to(norm.dtype.element_ty).to(tl.float32), second.to(norm.dtype.element_ty).to(tl.float32)
    angle = row * (2 * HALF) + half
    cos_first = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    sin_first = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    target = out + (row * HEADS + head) * (2 * HALF) + half
    tl.store(target, (first * cos_first - second * sin_first).to(out.dtype.element_ty), mask=inside)
    tl.store(target + HALF, (second * cos_second + first * sin_second).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _reverse_rotate(
    slopes, states, cos, sin, norm, of_states, of_norm, epsilon, states_row, count, HEADS: tl.constexpr,
    HALF: tl.constexpr, PAIRS: tl.constexpr, NORMED: tl.constexpr,
):  # fmt: skip
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    row, head = (pair // HEADS).to(tl.int64)[:, None], (pair % HEADS)[:, None]
    half, inside = tl.arange(0, HALF)[None, :], (pair < count)[:, None]
    angle, place = row * (2 * HALF) + half, (row * HEADS + head) * (2 * HALF) + half
    cos_first = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    cos_second = tl.load(cos + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    sin_first = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
    sin_second = tl.load(sin + angle + HALF, mask=inside, other=0.0).to(tl.float32)
    of_first = tl.load(slopes + place, mask=inside, other=0.0).to(tl.float32)
    of_second = tl.load(slopes + place + HALF, mask=inside, other=0.0).to(tl.float32)
    first, second = of_first * cos_first + of_second * sin_second, of_second * cos_second - of_first * sin_first
    if NORMED:
        here = states + row * states_row + head * (2 * HALF) + half
        raw_first = tl.load(here, mask=inside, other=0.0).to(tl.float32)
        raw_second = tl.load(here + HALF, mask=inside, other=0.0).to(tl.float32)
        squares = tl.sum(raw_first * raw_first, 1) + tl.sum(raw_second * raw_second, 1)
        scale = tl.where(inside, tl.rsqrt(squares / (2 * HALF) + epsilon)[:, None], 0.0)
        raw_first, raw_second = raw_first * scale, raw_second * scale
        own = of_norm + tl.program_id(0) * (2 * HALF) + tl.arange(0, HALF)
        tl.store(own, tl.sum(first * raw_first, 0))
        tl.store(own + HALF, tl.sum(second * raw_second, 0))
        first *= tl.load(norm + half).to(tl.float32)
        second *= tl.load(norm + HALF + half).to(tl.float32)
        mean = ((tl.sum(first * raw_first, 1) + tl.sum(second * raw_second, 1)) / (2 * HALF))[:, None]
        first, second = scale * (first - raw_first * mean), scale * (second - raw_second * mean)
    tl.store(of_states + place, first.to(of_states.dtype.element_ty), mask=inside)
    tl.store(of_states + place + HALF, second.to(of_states.dtype.element_ty), mask=inside)


def norm(
    states: Tensor, change: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Add a change, [N, H] or None, to states [N, H], and compute the RMSNorm (arXiv 1910.07467); all contiguous.

    Returns:
        the sums (the states themselves without a change), their norm in a dtype, and its scales, [N] float32.
    """
    rows, width = states.shape
    out = torch.empty(rows, width, dtype=dtype, device=states.device)
    summed = states if change is None else torch.empty_like(states)
    scales = torch.empty(rows, dtype=torch.float32, device=states.device)
    block = triton.next_power_of_2(width)
    with torch.cuda.device_of(states):
        _norm[(rows,)](
            states, states if change is None else change, weight, summed, out, scales, epsilon, width, BLOCK=block,
            CHANGES=change is not None, num_warps=count_warps(block),
        )  # fmt: skip
    return summed, out, scales


def reverse_norm(
    slopes: Tensor, of_summed: Tensor, summed: Tensor, weight: Tensor, scales: Tensor, change: torch.dtype | None,
    trained: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Compute the gradients of states, change and weight.

    Args:
        slopes: the gradient of the norm, [N, H] contiguous.
        of_summed: the gradient of the sums, [N, H] contiguous.
        summed: the sums.
        weight: the weight of the norm.
        scales: the scales that `norm` returned.
        change: the dtype of the change; None if there is none.
        trained: whether the weight needs a gradient.
    """
    rows, width = summed.shape
    of_states = torch.empty_like(summed)
    of_change = None if change is None else torch.empty(rows, width, dtype=change, device=summed.device)
    programs = min(rows, PROGRAMS_PER_UNIT * count_units(summed.device))
    of_weight = torch.empty(programs if trained else 0, width, dtype=torch.float32, device=summed.device)
    block = triton.next_power_of_2(width)
    with torch.cuda.device_of(summed):
        _reverse_norm[(programs,)](
            slopes, of_summed, summed, weight, scales, of_states, of_states if of_change is None else of_change,
            of_weight, rows, width, BLOCK=block, CHANGES=change is not None, TRAINED=trained,
            num_warps=count_warps(block),
        )  # fmt: skip
    return of_states, of_change, of_weight.sum(0).to(weight.dtype) if trained else None


def reverse_gate(slopes: Tensor, gates: Tensor, ups: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the gradients of both inputs of `qed.kernels.cuda.decoding.gate`, [N, F]; `slopes` is contiguous."""
    rows, width = gates.shape
    of_gates, of_ups = gates.new_empty(rows, width), ups.new_empty(rows, width)
    with torch.cuda.device_of(gates):
        _reverse_gate[(rows, triton.cdiv(width, GATES))](
            slopes, gates, ups, of_gates, of_ups, width, gates.stride(0), ups.stride(0), BLOCK=GATES
        )
    return of_gates, of_ups


def rotate(states: Tensor, cos: Tensor, sin: Tensor, norm: Tensor | None, epsilon: float, width: int) -> Tensor:
    """Normalise heads if they have a norm, and rotate them (RoPE, arXiv 2104.09864).

    Args:
        states: [N, heads * width], with contiguous rows.
        cos: [N, width] contiguous.
        sin: [N, width] contiguous.
        norm: [width], the weight of the heads' norm, or None.
        epsilon: the epsilon of the norm.
        width: the width of a head.

    Returns:
        [N, heads, width].
    """
    heads = states.shape[1] // width
    out = torch.empty(len(states), heads, width, dtype=states.dtype, device=states.device)
    count, pairs = len(states) * heads, _count_pairs(width)
    with torch.cuda.device_of(states):
        _rotate[(triton.cdiv(count, pairs),)](
            states, cos, sin, cos if norm is None else norm, out, epsilon, states.stride(0), count, HEADS=heads,
            HALF=width // 2, PAIRS=pairs, NORMED=norm is not None,
        )  # fmt: skip
    return out


def reverse_rotate(
    slopes: Tensor, states: Tensor, cos: Tensor, sin: Tensor, norm: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor | None]:
    """Compute the gradients of states, [N, heads * width], and of the norm's weight; `slopes` is contiguous."""
    rows, heads, width = slopes.shape
    count, pairs = rows * heads, _count_pairs(width)
    programs = triton.cdiv(count, pairs)
    of_states = torch.empty(rows, heads * width, dtype=states.dtype, device=states.device)
    of_norm = torch.empty(programs if norm is not None else 0, width, dtype=torch.float32, device=states.device)
    with torch.cuda.device_of(states):
        _reverse_rotate[(programs,)](
            slopes, states, cos, sin, cos if norm is None else norm, of_states, of_norm, epsilon, states.stride(0),
            count, HEADS=heads, HALF=width // 2, PAIRS=pairs, NORMED=norm is not None,
        )  # fmt: skip
    return of_states, None if norm is None else of_norm.sum(0).to(norm.dtype)


def _count_pairs(width: int) -> int:
    """Return the number of heads that a program rotates."""
    return max(1, TURNED // width)
