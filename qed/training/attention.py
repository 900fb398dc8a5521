"""Attention for packed rows, which have no padding between them, as an attention implementation for transformers.

Every linear layer and norm of a model processes one row of all tokens; only attention must know which tokens belong
together, and reads it from a layout (`packing.py`). So this works for every model whose attention transformers can
replace, together with adapters, gradient checkpointing and autocast.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from qed.models.layer_windows import compute_layer_windows
from qed.training.batch import COLUMNS, Batch
from qed.training.packing import Layout, Span, pack_batch

NAME = "qed_packed"
# The rows on which `supports_packing` tests a model; the first two share a prompt.
PROBE = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1], [1, 2, 3, 4, 5, 6, 7, 8, 2, 3], [3, 1, 2], [2, 2])
PROBE_PROMPTS = (8, 8, 1, 1)


def compute_packed_states(body: nn.Module, layout: Layout, **extra: Any) -> Tensor:
    """Compute the hidden states of a packed row, [N, H]; `extra` is passed to every layer's attention."""
    with use_packed_attention(body.config):
        states: Tensor = body(
            input_ids=layout.ids,
            position_ids=layout.positions,
            attention_mask=None,
            use_cache=False,
            layout=layout,
            **extra,
        ).last_hidden_state
    return states[0]


@torch.no_grad()
def supports_packing(body: nn.Module) -> bool:
    """Test whether a model gives packed rows the same hidden states as padded rows.

    The probe rows are shorter than most attention windows, so each layer must also pass its window to the attention. A
    model that applies its window only by a mask, which is not built here, would attend to everything in longer rows.
    """
    if not getattr(body, "_supports_attention_backend", False):
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
    valid, tolerance = attention.bool(), 0.05 if torch.is_autocast_enabled(device.type) else 1e-3
    largest = float(separate[valid].abs().max())
    return torch.allclose(separate[valid], packed[valid], rtol=tolerance, atol=tolerance * largest)


@contextmanager
def use_packed_attention(config: Any) -> Iterator[None]:
    """Replace a model's attention by this one; also needed around a backward pass with gradient checkpointing."""
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
    queries, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    window = settings.get("sliding_window") or None
    if "windows" in settings:
        settings["windows"].append(window)
    outputs = [_attend_span(span, queries, keys, values, settings.get("scaling"), window) for span in layout.spans]
    return torch.cat(outputs).index_select(0, layout.order)[None], None


def _attend_span(
    span: Span, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """Compute the attention of a span's padded queries, [segments * Q, heads, D]."""

    def select(states: Tensor, places: Tensor) -> Tensor:
        """Return the states at some places, [segments, heads, columns, D]."""
        rows = states.index_select(0, places)
        return rows.view(span.segments, -1, *rows.shape[1:]).transpose(1, 2)

    mask = span.get_mask(window)
    queries, keys, values = select(query, span.queries), select(key, span.keys), select(value, span.keys)
    group_size = query.shape[1] // key.shape[1]
    if group_size > 1 and mask is not None and query.device.type != "cpu":
        # The fast kernels of other devices support either a mask or grouped-query attention, not both.
        keys, values = (states.repeat_interleave(group_size, 1) for states in (keys, values))
    shared = queries.shape[1] != keys.shape[1]
    attended: Tensor = scaled_dot_product_attention(
        queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=shared
    )
    return attended.transpose(1, 2).flatten(0, 1)


AttentionInterface.register(NAME, _attend)
# transformers must not build a mask from positions: the layout determines what each token sees.
AttentionMaskInterface.register(NAME, lambda *_, **__: None)
