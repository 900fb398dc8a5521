"""Draw the next tokens on a CUDA device, reading each logit once, and those of the chosen block twice."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits


@triton.jit
def _sum_blocks(logits, tops, sums, size, stride, BLOCK: tl.constexpr):
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = block * BLOCK + tl.arange(0, BLOCK)
    loaded = tl.load(logits + row * stride + place, mask=place < size, other=float("-inf"))
    wide = loaded.to(tl.float32)
    top = tl.max(wide, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    index = row * tl.num_programs(1) + block
    tl.store(tops + index, top)
    tl.store(sums + index, tl.sum(tl.exp(wide - shift), 0))


@triton.jit
def _find_passed(masses, target, COUNT: tl.constexpr):
    """Return the first index whose cumulative mass exceeds the target, or the last one with a mass."""
    place = tl.arange(0, COUNT)
    passed = (tl.cumsum(masses, 0) > target) & (masses > 0)
    last = tl.max(tl.where(masses > 0, place, 0), 0)
    return tl.minimum(tl.min(tl.where(passed, place, COUNT), 0), last)


@triton.jit
def _find_token(
    logits, tops, sums, uniform, tokens, logps, size, stride, blocks, BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr, DRAWS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number = tl.arange(0, BLOCKS)
    there = number < blocks
    highest = tl.load(tops + row * blocks + number, mask=there, other=float("-inf"))
    top = tl.max(highest, 0)
    # Sums over the vocabulary are float64, because float32 would lose tokens of small probability.
    masses = tl.load(sums + row * blocks + number, mask=there, other=0.0).to(tl.float64)
    masses = masses * tl.exp(highest - top).to(tl.float64)
    total = tl.sum(masses, 0)
    if DRAWS:
        target = tl.load(uniform + row) * total
        block = _find_passed(masses, target, BLOCKS)
        target -= tl.sum(tl.where(number < block, masses, 0.0), 0)
    else:
        block = tl.min(tl.where(highest == top, number, blocks - 1), 0)
    inside = tl.arange(0, BLOCK)
    place = block * BLOCK + inside
    loaded = tl.load(logits + row * stride + place, mask=place < size, other=float("-inf"))
    wide = loaded.to(tl.float32)
    if DRAWS:
        found = _find_passed(tl.exp(wide - top).to(tl.float64), target, BLOCK)
    else:
        found = tl.min(tl.where(wide == top, inside, BLOCK - 1), 0)
    token = tl.minimum(block * BLOCK + found, size - 1)
    chosen = tl.load(logits + row * stride + token).to(tl.float32)
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(logps + row, ((chosen - top).to(tl.float64) - tl.log(total)).to(tl.float32))


def draw(logits: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw a token of each row, see `qed.sampling.draw.draw_tokens`.

    Args:
        logits: [B, V], in float32 or half precision, with contiguous rows.
        uniform: [B] float64, or None.
    """
    rows, size = logits.shape
    blocks = triton.cdiv(size, BLOCK)
    width = BLOCK if blocks > 1 else triton.next_power_of_2(size)
    tops, sums = torch.empty(2, rows, blocks, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logps = torch.empty(rows, dtype=torch.float32, device=logits.device)
    numbers = logits if uniform is None else uniform.contiguous()
    # Triton launches on the current device, regardless of the tensors' device.
    with torch.cuda.device_of(logits):
        _sum_blocks[(rows, blocks)](logits, tops, sums, size, logits.stride(0), BLOCK=width)
        _find_token[(rows,)](
            logits, tops, sums, numbers, tokens, logps, size, logits.stride(0), blocks, BLOCK=width,
            BLOCKS=triton.next_power_of_2(blocks), DRAWS=uniform is not None,
        )  # fmt: skip
    return tokens, logps
