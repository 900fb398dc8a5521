"""Tests the attention of decoding steps on a device: the wider a head, the more memory its kernels need."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from qed.kernels.trials import try_kernels

PROMPTS, COLUMNS = 2, 80  # number of prompts; columns of each prompt, and of each row's own part
TRIAL_ERROR = 0.02  # largest relative error allowed; bfloat16 rounding alone stays below 0.01


@cache
@torch.no_grad()
def find_fault(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, width: int) -> str:
    """Compare the attention of rows that share prompts with torch's own; return a description of a fault, or "".

    Args:
        device: device that computes.
        dtype: dtype of queries, keys and values.
        heads: number of query heads.
        kv_heads: number of key heads.
        width: width of a head.
    """
    from qed.kernels.cuda import decoding  # noqa: PLC0415 -- loads Triton, which only some machines have

    grouped = heads // kv_heads
    group = max(2, decoding.MOST_QUERIES // grouped)  # rows per prompt: enough to fill the largest block of queries
    source = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, width, generator=source).to(device, dtype)

    query = draw(PROMPTS * group, heads)
    owner = torch.arange(PROMPTS, device=device).repeat_interleave(group)
    prompts, own = ([draw(count, kv_heads, COLUMNS) for _ in range(2)] for count in (PROMPTS, PROMPTS * group))
    seen = torch.ones(PROMPTS * group, COLUMNS, dtype=torch.uint8, device=device)
    slots = torch.arange(PROMPTS * group, device=device)
    shared = decoding.Shared(prompts[0], prompts[1], COLUMNS, seen[:PROMPTS], slots, owner, group)
    layer = decoding.Heads(query, query, (heads, kv_heads, width), width**-0.5, 0, None)
    with torch.autocast(device.type, enabled=False):
        keys, values = (
            torch.cat([one[owner], other], 2).float().repeat_interleave(grouped, 1)
            for one, other in zip(prompts, own, strict=True)
        )
        expected = scaled_dot_product_attention(query[:, :, None].float(), keys, values).flatten(1)

    def compute() -> list[tuple[Tensor, Tensor]]:
        newest = owner.new_tensor([COLUMNS - 1])
        return [(layer.attend(query, (own[0], own[1]), seen, newest, shared), expected)]

    return try_kernels("The kernels of decoding steps", compute, TRIAL_ERROR)
