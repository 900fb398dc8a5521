"""Attention for packed rows, which have no padding between them, as an attention implementation for transformers.

Every linear layer and norm of a model processes one row of all tokens; only attention must know which tokens belong
together, and reads that from a layout (`packing.py`). So this works for every model whose attention transformers can
replace, including with adapters, gradient checkpointing and autocast.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from qed.models.block_attention import RowBlocks, Shape, attend_blocks, find_refusal, refuse
from qed.models.compiled_layers import PackedRow, can_compile_layers, compute_compiled_states
from qed.models.layer_windows import compute_layer_windows
from qed.models.own_layers import prepare_fused_layers, read_part
from qed.models.precision import read_compute_dtype
from qed.models.segments import count_missing
from qed.training.batch import COLUMNS, Batch
from qed.training.packing import Layout, pack_batch
from qed.training.spans import Span, attend_spans

NAME = "qed_packed"
# The rows on which `supports_packing` tests a model; the first two share a prompt.
PROBE = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1], [1, 2, 3, 4, 5, 6, 7, 8, 2, 3], [3, 1, 2], [2, 2])
PROBE_PROMPTS = (8, 8, 1, 1)
READ_SHARE = 0.875  # largest share of inputs to read for which skipping the others in the last layer pays


def compute_packed_states(body: nn.Module, layout: Layout, read: Tensor | None = None, **extra: Any) -> Tensor:
    """Compute the hidden states of a packed row, [N, H], or only those at some positions.

    Args:
        body: the decoder.
        layout: layout of the row.
        read: [M] int64, positions of the states to return, [M, H]; None for all.
        extra: passed to every layer's attention.
    """
    if not extra and can_compile_layers(body, layout.longest):
        return compute_compiled_states(body, PackedRow(layout.ids, layout.positions, layout.segments), read)
    part = None
    if read is not None and 0 < len(read) <= READ_SHARE * layout.ids.shape[1]:
        part = read_part(body, torch.cat([read, read[:1].expand(count_missing(len(read), read.device))]))
    if part is not None:
        extra["read"] = part
    if prepare_fused_layers(body):
        extra["fused"] = True
    with use_packed_attention(body.config):
        states: Tensor = body(
            input_ids=layout.ids,
            position_ids=layout.positions,
            attention_mask=None,
            use_cache=False,
            layout=layout,
            **extra,
        ).last_hidden_state
    if read is None:
        return states[0]
    return states[0].index_select(0, read) if part is None else states[0, : len(read)]


@torch.no_grad()
def supports_packing(body: nn.Module) -> bool:
    """Test whether a model gives packed rows the same hidden states as padded rows.

    The probe rows are shorter than most attention windows, so each layer must also pass its window to the attention. A
    model that applies its window only by a mask, which is not built here, would attend to everything in longer rows.
    """
    if not getattr(body, "_supports_attention_backend", False) or not _can_read_probe(body.config):
        return False
    device, width = next(body.parameters()).device, max(map(len, PROBE))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in PROBE], device=device)
    attention = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in PROBE], device=device)
    mask = (torch.arange(width)[None] >= torch.tensor(PROBE_PROMPTS)[:, None] - 1).to(device) * attention.float()
    unread: dict[str, Any] = dict.fromkeys(COLUMNS[4:], torch.zeros_like(mask))
    batch = Batch(ids, ids, attention, mask, **unread)
    separate = body(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
    layout, windows = pack_batch(batch), list[int | None]()
    try:
        packed = compute_packed_states(body, layout, windows=windows)[layout.place]
    except (TypeError, ValueError, KeyError, RuntimeError):
        return False
    if compute_layer_windows(body.config) != tuple(windows):
        return False
    half = torch.is_autocast_enabled(device.type) or separate.dtype in (torch.bfloat16, torch.float16)
    valid, tolerance = attention.bool(), 0.05 if half else 1e-3
    largest = float(separate[valid].abs().max())
    return torch.allclose(separate[valid], packed[valid], rtol=tolerance, atol=tolerance * largest)


def _can_read_probe(config: Any) -> bool:
    """Return whether a model has the probe's tokens and positions; a very small one may not, and needs no packing."""
    tokens, positions = (getattr(config, name, None) for name in ("vocab_size", "max_position_embeddings"))
    return (tokens is None or tokens > max(map(max, PROBE))) and (not positions or positions >= max(map(len, PROBE)))


@contextmanager
def use_packed_attention(config: Any) -> Iterator[None]:
    """Replace a model's attention with this one; also needed around backward passes with gradient checkpointing."""
    original = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = original


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of a packed row, [1, N, heads, D].

    `query` is [1, heads, N, D], `key` and `value` are [1, kv_heads, N, D].
    """
    layout: Layout = settings["layout"]
    if settings.get("softcap") is not None or settings.get("s_aux") is not None:
        raise ValueError("attention with a cap on its logits or with sinks is not packed")
    window = settings.get("sliding_window") or None
    if "windows" in settings:
        settings["windows"].append(window)
    if window is not None and window >= layout.longest:
        window = None
    return _attend_by_choice(layout, query, key, value, settings.get("scaling"), window), None


# Blocks have a kernel that is compiled separately, and spans would be recompiled for each number of segments.
@torch.compiler.disable  # type: ignore[untyped-decorator]
def _attend_by_choice(
    layout: Layout, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Compute the attention of a packed row by blocks if possible, otherwise by spans, [1, N, heads, D]."""
    shape = Shape(query.device, read_compute_dtype(query), query.shape[1], key.shape[1], query.shape[-1])
    if not find_refusal(shape):
        try:
            return _attend_by_blocks(layout.blocks, query, key, value, scaling, window)
        except Exception as error:  # noqa: BLE001 -- a compiler fails in many ways
            reason = refuse(shape, error)
            warnings.warn(f"{reason}. Attention is computed by spans from here on.", stacklevel=1)
    return _attend_in_order(layout.spans, layout.order, query, key, value, scaling, window)


def _attend_by_blocks(
    row: RowBlocks, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Compute the attention of a packed row by blocks, [1, N, heads, D]."""
    dtype = read_compute_dtype(query)
    queries, keys, values = (each[0].transpose(0, 1).to(dtype) for each in (query, key, value))
    factor = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend_blocks(row, queries, keys, values, factor, window)[None]


def _attend_in_order(
    spans: Sequence[Span],
    order: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """Compute the attention of a packed row by spans, [1, N, heads, D]; `order` is that of `build_spans`."""
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    return attend_spans(spans, queries, keys, values, scaling, window).index_select(0, order)[None]


AttentionInterface.register(NAME, _attend)
# transformers must not build a mask from positions: the layout determines what each token sees.
AttentionMaskInterface.register(NAME, lambda *_, **__: None)
