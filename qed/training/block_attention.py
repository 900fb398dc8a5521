"""Attention of a packed row by blocks, with FlexAttention (arXiv 2412.05496), on CUDA devices.

One compiled kernel computes the row as it is: no key is gathered or repeated, and no mask of queries times keys is
built. Blocks of 128 queries times 128 keys without a visible pair are skipped, and only those with some invisible pairs
are masked. The kernel is compiled on its first use, which takes some tens of seconds once and a few seconds with a warm
cache, and serves rows of every length.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from qed.models.segments import Segment, Visible, compute_visible

BLOCK = 128  # queries and keys of a block
KERNELS = 64  # that may be compiled in a process
BLOCKS_AT_ONCE = 32  # of queries whose visible keys are counted at once


def build_block_mask(segments: Sequence[Segment], window: int | None, device: torch.device) -> BlockMask:
    """Build the block mask of a packed row of N inputs, in O(N^2 / 128) time and without an [N, N] tensor.

    Args:
        segments: of the row, in its order.
        window: the number of inputs that an input attends to, itself included; None for all.
        device: of the row.
    """
    visible = compute_visible(segments, window, device)
    own, prompt, prompt_end = visible
    count = len(own)

    def is_visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ((key >= own[query]) & (key <= query)) | ((key >= prompt[query]) & (key < prompt_end[query]))

    pairs = count_visible_pairs(visible)
    full = pairs == BLOCK * BLOCK
    partial = (pairs > 0) & ~full
    return BlockMask.from_kv_blocks(
        *_list_blocks(partial),
        *_list_blocks(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=is_visible,
        seq_lengths=(count, count),
    )


def count_visible_pairs(visible: Visible) -> Tensor:
    """Count the visible pairs of a query and a key in each block, [blocks, blocks] int64."""
    count = len(visible.own)
    blocks = -(-count // BLOCK)
    ends = torch.arange(count, dtype=torch.int32, device=visible.own.device) + 1
    # Queries after the last one see nothing.
    bounds = pad(torch.stack([visible.own, ends, visible.prompt, visible.prompt_end]), (0, blocks * BLOCK - count))
    first_keys = torch.arange(blocks, dtype=torch.int32, device=bounds.device) * BLOCK
    counts = []
    for part in torch.split(bounds, BLOCK * BLOCKS_AT_ONCE, 1):
        # The keys of a block that come before each bound.
        before = (part[:, :, None] - first_keys).clamp_(0, BLOCK)
        seen = before[1] - before[0] + before[3] - before[2]
        counts.append(seen.view(-1, BLOCK, blocks).sum(1))
    return torch.cat(counts)


def _list_blocks(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """List the chosen blocks of each row as FlexAttention reads them: [1, 1, rows] counts, [1, 1, rows, columns]."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[None, None], order.int()[None, None]


@cache
def compile_attention() -> Callable[..., Tensor]:
    """Compile FlexAttention for rows of any length.

    With `fullgraph` an error is raised where FlexAttention would not be compiled: its other way builds all scores. It
    is compiled anew for every shape of heads, dtype and scaling, with and without gradients; torch gives up after 8.
    """
    # Later versions of torch keep the global limit by thread, and take one as an argument.
    torch._dynamo.config.recompile_limit = max(KERNELS, torch._dynamo.config.recompile_limit)
    named = "recompile_limit" in inspect.signature(torch.compile).parameters
    options: dict[str, Any] = {"recompile_limit": KERNELS} if named else {}
    compiled: Callable[..., Tensor] = torch.compile(flex_attention, dynamic=True, fullgraph=True, **options)
    return compiled


def attend_blocks(mask: BlockMask, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
    """Compute the attention of a packed row, [1, heads, N, D].

    Args:
        mask: of the row.
        query: [1, heads, N, D].
        key: [1, kv_heads, N, D].
        value: [1, kv_heads, N, D].
        scaling: multiplies the products of queries and keys; None for 1 / sqrt(D).
    """
    device = query.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)  # autocast does not apply to FlexAttention
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    return compile_attention()(
        query,
        key,
        value,
        block_mask=mask,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        # The kernel for few queries is compiled for a fixed number of them.
        kernel_options={"FORCE_USE_FLEX_ATTENTION": True},
    )
