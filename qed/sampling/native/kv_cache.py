"""The KV cache of sequences that are decoded together, one row per sequence, in columns shared by all rows.

All rows end at the same column, so a step writes one column; a sequence scheduled later begins at a later column.
Adding sequences copies the cache into new tensors, which is rare enough to cost little.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationMixin
from transformers.cache_utils import DynamicLayer

from qed.models.families import read_head_width

SPARE = 64  # columns that are allocated ahead
# A forward pass takes the cache as `past_key_values` up to transformers 5.23, then as `cache`.
CACHE_ARGUMENT = next(
    name
    for name in ("cache", "past_key_values")
    if name in signature(GenerationMixin.prepare_inputs_for_generation).parameters
)


class KVCacheLayer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one layer, [rows, heads, columns, width], of which the first `used` columns are filled."""

    is_initialized: bool

    def __init__(self) -> None:
        super().__init__()
        self.used = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append new columns, and return the keys and values of all columns in use.

        Under autocast RoPE returns float32 keys, which attention rounds again; they are stored in the dtype of values.
        """
        key_states = key_states.to(value_states.dtype)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values = (
                states.new_empty(*states.shape[:2], 0, states.shape[3]) for states in (key_states, value_states)
            )
        first, last = self.used, self.used + key_states.shape[2]
        if last > self.keys.shape[2]:
            self.keys, self.values = (_widen(states, first, last + SPARE) for states in (self.keys, self.values))
        self.keys[:, :, first:last], self.values[:, :, first:last] = key_states, value_states
        self.used = last
        return self.keys[:, :, :last], self.values[:, :, :last]

    def add_column(self) -> int:
        """Mark another column as used, and return its index; the caller writes it."""
        if self.used == self.keys.shape[2]:
            columns = self.used + 1 + SPARE
            self.keys, self.values = (_widen(states, self.used, columns) for states in (self.keys, self.values))
        self.used += 1
        return self.used - 1

    def write_slot(self, key_states: Tensor, value_states: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
        """Write the column whose index is in a tensor [1], without counting it as used.

        Returns:
            Keys and values of all allocated columns.
        """
        for states, new in ((self.keys, key_states), (self.values, value_states)):
            states.index_copy_(2, column, new.to(states.dtype))
        return self.keys, self.values

    def reserve(self, columns: int) -> None:
        """Allocate `columns` columns, and set the unused ones to zero.

        Masked columns are multiplied by 0, but memory that was never written may hold NaN.
        """
        self.keys, self.values = (_widen(states, self.used, columns) for states in (self.keys, self.values))
        for states in (self.keys, self.values):
            states[:, :, self.used :] = 0

    def get_seq_length(self) -> int:
        """Return the number of columns in use."""
        return self.used

    def replace(self, parts: Sequence[tuple[KVCacheLayer, Tensor]], width: int) -> None:
        """Take over rows of other layers, right-aligned in `width` columns.

        The other layers release their tensors, keys before values are copied, so when the layers of a cache are
        replaced one by one, at most one layer exists twice.
        """
        for name in ("keys", "values"):
            setattr(self, name, _stack_rows([(getattr(layer, name), layer.used, rows) for layer, rows in parts], width))
            for layer, _ in parts:
                setattr(layer, name, None)
        self.fill(self.keys, self.values)
        self.used = width

    def fill(self, keys: Tensor, values: Tensor) -> None:
        """Take over keys and values, [rows, heads, columns, width], as the columns in use."""
        self.keys, self.values = keys, values
        self.used, self.is_initialized = keys.shape[2], True
        self.device = keys.device

    def new_layer(self, rows: int) -> KVCacheLayer:
        """Build a layer with `rows` rows and no columns."""
        layer = KVCacheLayer()
        layer.keys, layer.values = (
            states.new_empty(rows, states.shape[1], 0, states.shape[3]) for states in (self.keys, self.values)
        )
        layer.is_initialized, layer.device = True, self.device
        return layer

    def compact(self, targets: Tensor, sources: Tensor, count: int) -> None:
        """Move the rows at `sources` to `targets`, and keep the first `count` rows."""
        for states in (self.keys, self.values):
            states[targets, :, : self.used] = states[sources, :, : self.used]
        self.keys, self.values = self.keys[:count], self.values[:count]


def new_cache(config: Any) -> DynamicCache:
    """Build an empty cache that keeps all columns; sliding windows are applied by the attention masks."""
    cache = DynamicCache(config=config)
    cache.layers = [KVCacheLayer() for _ in range(config.get_text_config(decoder=True).num_hidden_layers)]
    return cache


def count_token_bytes(config: Any, dtype: torch.dtype) -> int:
    """Return the bytes of a token's keys and values in all layers."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return 2 * dtype.itemsize * int(text.num_hidden_layers) * int(heads) * read_head_width(text)


def _widen(states: Tensor, used: int, columns: int) -> Tensor:
    rows, heads, _, width = states.shape
    wider = states.new_empty(rows, heads, columns, width)
    wider[:, :, :used] = states[:, :, :used]
    return wider


def _stack_rows(parts: Sequence[tuple[Tensor, int, Tensor]], width: int) -> Tensor:
    """Stack rows of several tensors, right-aligned at column `width`.

    Columns before a row are masked and zero, because memory that was never written may hold NaN.
    """
    like = parts[0][0]
    total = sum(len(rows) for _, _, rows in parts)
    stacked = like.new_zeros(total, like.shape[1], width + SPARE, like.shape[3])
    first = 0
    for states, used, rows in parts:
        columns = min(used, width)
        stacked[first : first + len(rows), :, width - columns : width] = states[rows, :, used - columns : used]
        first += len(rows)
    return stacked
