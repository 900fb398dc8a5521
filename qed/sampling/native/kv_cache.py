"""Keys and values of rows that are answered side by side, in columns that all rows share.

Every row ends at the same column, so a step writes one column; a row that came later begins later. Rows leave and come
by copying what stays into fresh tensors, rarely enough that copying costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

SPARE = 64  # columns that are allocated ahead


class KVCacheLayer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one layer, [rows, heads, columns, width], of which the first `used` columns are filled."""

    is_initialized: bool

    def __init__(self) -> None:
        super().__init__()
        self.used = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write new columns behind those in use; keys and values of all of them.

        Rotation makes keys of float32 under autocast, which attention rounds again; they are kept as values are.
        """
        key_states = key_states.to(value_states.dtype)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = (
                states.new_empty(*states.shape[:2], 0, states.shape[3]) for states in (key_states, value_states)
            )
        first, last = self.used, self.used + key_states.shape[2]
        if last > self.keys.shape[2]:
            self.keys, self.values = (_widen(one, first, last + SPARE) for one in (self.keys, self.values))
        self.keys[:, :, first:last], self.values[:, :, first:last] = key_states, value_states
        self.used = last
        return self.keys[:, :, :last], self.values[:, :, :last]

    def write_slot(self, key_states: Tensor, value_states: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Write the column that a tensor [1] names, which is not counted yet; keys and values of all that there is room
        for."""
        for states, new in ((self.keys, key_states), (self.values, value_states)):
            states.index_copy_(2, column, new.to(states.dtype))
        return self.keys, self.values

    def reserve(self, columns: int) -> None:
        """Room for so many columns. Those behind the ones in use are zero: a masked column is multiplied by 0, and what
        was never written may be no number."""
        self.keys, self.values = (_widen(one, self.used, columns) for one in (self.keys, self.values))
        for states in (self.keys, self.values):
            states[:, :, self.used :] = 0

    def get_seq_length(self) -> int:
        """The columns in use."""
        return self.used

    def replace(self, parts: Sequence[tuple[KVCacheLayer, Tensor]], width: int) -> None:
        """Hold these rows of these layers, one part below the other, each with its last columns at the end of
        `width`.

        The layers give up what they hold, keys before values are copied, so that of a cache whose layers are replaced
        one by one at most one layer exists twice.
        """
        for name in ("keys", "values"):
            setattr(self, name, _stack_rows([(getattr(layer, name), layer.used, rows) for layer, rows in parts], width))
            for layer, _ in parts:
                setattr(layer, name, None)
        self.used, self.is_initialized = width, True
        self.dtype, self.device = self.keys.dtype, self.keys.device

    def new_layer(self, rows: int) -> KVCacheLayer:
        """A layer of so many rows with no column yet."""
        layer = KVCacheLayer()
        layer.keys, layer.values = (
            states.new_empty(rows, states.shape[1], 0, states.shape[3]) for states in (self.keys, self.values)
        )
        layer.is_initialized, layer.dtype, layer.device = True, self.dtype, self.device
        return layer

    def compact(self, places: Tensor, moved: Tensor, left: int) -> None:
        """Keep the first `left` rows, of which those at `places` are those that were at `moved`."""
        for states in (self.keys, self.values):
            states[places, :, : self.used] = states[moved, :, : self.used]
        self.keys, self.values = self.keys[:left], self.values[:left]


def new_cache(config: Any) -> DynamicCache:
    """An empty cache that keeps all columns; which of them a layer attends to is the masks' matter."""
    cache = DynamicCache(config=config)
    cache.layers = [KVCacheLayer() for _ in range(config.get_text_config(decoder=True).num_hidden_layers)]
    return cache


def count_token_bytes(config: Any, dtype: torch.dtype) -> int:
    """The bytes that a token's keys and values take in all layers."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * dtype.itemsize * int(text.num_hidden_layers) * int(heads) * int(width)


def _widen(states: Tensor, used: int, columns: int) -> Tensor:
    rows, heads, _, width = states.shape
    wider = states.new_empty(rows, heads, columns, width)
    wider[:, :, :used] = states[:, :, :used]
    return wider


def _stack_rows(parts: Sequence[tuple[Tensor, int, Tensor]], width: int) -> Tensor:
    """Rows of several tensors as one, right-aligned at column `width`; what stands before a row is masked, but zero,
    because what was never written may be no number."""
    model = parts[0][0]
    total = sum(len(rows) for _, _, rows in parts)
    stacked = model.new_zeros(total, model.shape[1], width + SPARE, model.shape[3])
    first = 0
    for states, used, rows in parts:
        columns = min(used, width)
        stacked[first : first + len(rows), :, width - columns : width] = states[rows, :, used - columns : used]
        first += len(rows)
    return stacked
