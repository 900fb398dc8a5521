"""Attention over rows that stand one behind the other without padding, as an implementation of transformers' own.

Every linear layer and norm of a model sees one row of all tokens; only attention must know which of them belong
together, and it is told by a layout (`packing.py`). So this works for every model whose attention transformers lets be
replaced, with adapters, checkpointing and autocast as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from qed.models.layer_windows import compute_layer_windows
from qed.training.batch import Batch
from qed.training.packing import Layout, Span, pack_batch

NAME = "qed_packed"
# Four rows of two lengths, of which two begin alike: what `packs` asks a model for.
PROBE = ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1], [1, 2, 3, 4, 5, 6, 7, 8, 2, 3], [3, 1, 2], [2, 2])
PROBE_PROMPTS = (8, 8, 1, 1)


def compute_packed_states(body: nn.Module, layout: Layout, **watched: Any) -> Tensor:
    """The hidden states of a packed row, [N, H]; `watched` is handed to every layer's attention."""
    with use_packed_attention(body.config):
        states: Tensor = body(
            input_ids=layout.ids,
            position_ids=layout.positions,
            attention_mask=None,
            use_cache=False,
            layout=layout,
            **watched,
        ).last_hidden_state
    return states[0]


@torch.no_grad()
def supports_packing(body: nn.Module) -> bool:
    """Whether a model computes packed rows as it computes each by itself; asked by trying.

    The rows that are tried are shorter than most windows, so each layer must also name its window to the attention: a
    model that tells it by a mask alone, which is not made here, would attend to everything in longer rows.
    """
    if not getattr(body, "_supports_attention_backend", False):
        return False
    device, width = next(body.parameters()).device, max(map(len, PROBE))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in PROBE], device=device)
    attention = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in PROBE], device=device)
    mask = (torch.arange(width)[None] >= torch.tensor(PROBE_PROMPTS)[:, None] - 1).to(device) * attention.float()
    batch = Batch(ids, ids, attention, mask, *[torch.zeros_like(mask)] * (len(fields(Batch)) - 4))
    separate = body(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
    layout, named = pack_batch(batch), list[int | None]()
    try:
        together = compute_packed_states(body, layout, windows=named)[layout.place]
    except (TypeError, ValueError, KeyError, RuntimeError):
        return False
    if compute_layer_windows(body.config) != tuple(named):
        return False
    there, tolerance = attention.bool(), 0.05 if torch.is_autocast_enabled(device.type) else 1e-3
    largest = float(separate[there].abs().max())
    return torch.allclose(separate[there], together[there], rtol=tolerance, atol=tolerance * largest)


@contextmanager
def use_packed_attention(config: Any) -> Iterator[None]:
    """A model with this attention in place of its own; also around a backward pass that computes layers again."""
    own = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = own


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attention of a packed row: query [1, heads, N, D], key and value [1, kv_heads, N, D]; [1, N, heads, D]."""
    layout: Layout = settings["layout"]
    if settings.get("softcap") is not None or settings.get("s_aux") is not None:
        raise ValueError("attention with a cap on its logits or with sinks is not packed")
    own, keys, values = (states[0].transpose(0, 1) for states in (query, key, value))
    window = settings.get("sliding_window") or None
    if "windows" in settings:
        settings["windows"].append(window)
    found = [_attend_span(span, own, keys, values, settings.get("scaling"), window) for span in layout.spans]
    return torch.cat(found).index_select(0, layout.order)[None], None


def _attend_span(
    span: Span, query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None
) -> Tensor:
    """The attention of a span's padded queries, [segments * Q, heads, D]."""

    def taken(states: Tensor, places: Tensor) -> Tensor:
        """The states at some places, [segments, heads, columns, D]."""
        found = states.index_select(0, places)
        return found.view(span.segments, -1, *found.shape[1:]).transpose(1, 2)

    mask = span.seen(window)
    own, keys, values = taken(query, span.queries), taken(key, span.keys), taken(value, span.keys)
    grouped = query.shape[1] // key.shape[1]
    if grouped > 1 and mask is not None and query.device.type != "cpu":
        # The fast kernels of other devices know either a mask or heads that share keys, not both.
        keys, values = (states.repeat_interleave(grouped, 1) for states in (keys, values))
    shared = own.shape[1] != keys.shape[1]
    attended: Tensor = scaled_dot_product_attention(
        own, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=shared
    )
    return attended.transpose(1, 2).flatten(0, 1)


AttentionInterface.register(NAME, _attend)
# No mask is made from positions: the layout says what is seen.
AttentionMaskInterface.register(NAME, lambda *_, **__: None)
