"""Shared prefixes: sequences with the same prompt, or the same beginning of it, read one copy of its keys and
values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qed.sampling.native.kv_cache import new_cache


class SharedPrefix:
    """The keys and values of P prompts or prompt beginnings, each read by several of the R sequences.

    Queries are grouped by prompt, padded to the largest group, so that one product with a prompt's keys or values
    serves all of its sequences.

    Args:
        cache: cache of the prompts, [P, heads, columns, width] in each layer, right-aligned.
        mask: [P, columns] bool, False at padding.
        owner: [R] int64, the prompt of each sequence.
    """

    def __init__(self, cache: Any, mask: Tensor, owner: Tensor) -> None:
        self.cache, self.mask, self.owner = cache, mask, owner
        self.lengths = mask.sum(1)  # [P] int64, in tokens
        self.heads = cache.layers[0].keys.shape[1]
        self.bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
        self.bias = self.bias.repeat_interleave(self.heads, 0)[:, None]
        counts = owner.bincount(minlength=len(mask))
        self.group_size = int(counts.max())
        order = owner.argsort(stable=True)
        rank = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner[order]]
        slot = owner[order] * self.group_size + rank
        # The row in each slot of [P, group_size], and the slot of each row.
        self.row_of_slot = order.new_zeros(len(mask) * self.group_size).index_copy_(0, slot, order)
        self.slot_of_row = torch.empty_like(order).index_copy_(0, order, slot)

    def compute_scores(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Compute the attention scores of each sequence's queries with its prompt's keys in a layer.

        Returns:
            [R * heads, grouped, columns], from queries [R * heads, grouped, width].
        """
        keys = self._read_columns(layer, "keys").to(query.dtype).transpose(1, 2)
        queries = self._group_by_prompt(query)
        return self._ungroup(torch.baddbmm(self.bias.to(query.dtype), queries, keys, alpha=scaling), query)

    def compute_values(self, layer: int, weights: Tensor) -> Tensor:
        """Compute the weighted sums of the prompts' values in a layer.

        Returns:
            [R * heads, grouped, width], from attention weights [R * heads, grouped, columns].
        """
        return self._ungroup(self._group_by_prompt(weights).bmm(self._read_columns(layer, "values")), weights)

    def _read_columns(self, number: int, name: str) -> Tensor:
        """Return the keys or the values of a layer, [P * heads, columns, width]."""
        layer = self.cache.layers[number]
        states: Tensor = getattr(layer, name)[:, :, : layer.used]
        return states.flatten(0, 1)

    def _group_by_prompt(self, states: Tensor) -> Tensor:
        """Reshape [R * heads, grouped, X] to [P * heads, group_size * grouped, X]."""
        by_row = states.view(-1, self.heads, *states.shape[1:]).index_select(0, self.row_of_slot)
        by_prompt = by_row.view(len(self.mask), self.group_size, *by_row.shape[1:]).transpose(1, 2)
        return by_prompt.flatten(2, 3).flatten(0, 1)

    def _ungroup(self, states: Tensor, like: Tensor) -> Tensor:
        """Invert `_group_by_prompt`; the result has as many sequences as `like`."""
        by_prompt = states.view(len(self.mask), self.heads, self.group_size, like.shape[1], states.shape[-1])
        by_row = by_prompt.transpose(1, 2).flatten(0, 1).index_select(0, self.slot_of_row)
        return by_row.flatten(0, 1)


def join_prefixes(config: Any, parts: Sequence[tuple[SharedPrefix, Tensor]]) -> SharedPrefix:
    """Join the prompts of selected rows of each part, dropping those that no row reads any more."""
    first = parts[0][0]
    if all(prefix.cache is first.cache for prefix, _ in parts):  # nothing to copy
        return SharedPrefix(first.cache, first.mask, torch.cat([prefix.owner[rows] for prefix, rows in parts]))
    used = [rows.new_tensor(sorted(set(prefix.owner[rows].tolist()))) for prefix, rows in parts]
    masks = [prefix.mask[prompts] for (prefix, _), prompts in zip(parts, used, strict=True)]
    width = max(mask.shape[1] for mask in masks)
    cache = new_cache(config)
    for number, layer in enumerate(cache.layers):
        sources = zip(parts, used, strict=True)
        layer.replace([(prefix.cache.layers[number], prompts) for (prefix, _), prompts in sources], width)
    owners, count = [], 0
    for (prefix, rows), prompts in zip(parts, used, strict=True):
        owners.append(count + torch.searchsorted(prompts, prefix.owner[rows]))
        count += len(prompts)
    aligned = [torch.nn.functional.pad(mask, (width - mask.shape[1], 0)) for mask in masks]
    return SharedPrefix(cache, torch.cat(aligned), torch.cat(owners))
