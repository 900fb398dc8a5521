"""Prompts whose keys and values all of their answers read where they lie, in place of a copy for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qed.sampling.native.kv_cache import new_cache


class SharedPrefix:
    """The keys and values of P prompts, of which each row reads one.

    Rows of the same prompt are brought side by side, up to the most that one prompt has, so that a product with a
    prompt's keys or values is one for all of them.

    Args:
        cache: its columns, [P, heads, columns, width] in each layer, right-aligned.
        mask: [P, columns] bool, which columns are a prompt's own.
        owner: [R] int64, the prompt of each row.
    """

    def __init__(self, cache: Any, mask: Tensor, owner: Tensor) -> None:
        self.cache, self.mask, self.owner = cache, mask, owner
        self.heads = cache.layers[0].keys.shape[1]
        self.bias = torch.zeros(mask.shape, device=mask.device).masked_fill_(~mask, -torch.inf)
        self.bias = self.bias.repeat_interleave(self.heads, 0)[:, None]
        counts = owner.bincount(minlength=len(mask))
        self.most = int(counts.max())
        order = owner.argsort(stable=True)
        rank = torch.arange(len(owner), device=owner.device) - (counts.cumsum(0) - counts)[owner[order]]
        place = owner[order] * self.most + rank
        # Which row stands at each place of [P, most], and at which place each row stands.
        self.row_at = order.new_zeros(len(mask) * self.most).index_copy_(0, place, order)
        self.place_of = torch.empty_like(order).index_copy_(0, order, place)

    def scores(self, number: int, query: Tensor, scaling: float) -> Tensor:
        """The products of each row's queries with its prompt's keys in a layer, [R * heads, grouped, columns] from
        [R * heads, grouped, width]."""
        keys = self._columns(number, "keys").to(query.dtype).transpose(1, 2)
        asked = self._group_by_prompt(query)
        return self._ungroup(torch.baddbmm(self.bias.to(query.dtype), asked, keys, alpha=scaling), query)

    def read(self, number: int, shares: Tensor) -> Tensor:
        """What rows read of their prompts' values in a layer, [R * heads, grouped, width] from
        [R * heads, grouped, columns]."""
        return self._ungroup(self._group_by_prompt(shares).bmm(self._columns(number, "values")), shares)

    def _columns(self, number: int, name: str) -> Tensor:
        layer = self.cache.layers[number]
        states: Tensor = getattr(layer, name)[:, :, : layer.used]
        return states.flatten(0, 1)

    def _group_by_prompt(self, states: Tensor) -> Tensor:
        """[R * heads, grouped, X] as [P * heads, most * grouped, X]."""
        by_row = states.view(-1, self.heads, *states.shape[1:]).index_select(0, self.row_at)
        by_prompt = by_row.view(len(self.mask), self.most, *by_row.shape[1:]).transpose(1, 2)
        return by_prompt.flatten(2, 3).flatten(0, 1)

    def _ungroup(self, states: Tensor, like: Tensor) -> Tensor:
        """The inverse, with as many rows as `like`."""
        by_prompt = states.view(len(self.mask), self.heads, self.most, like.shape[1], states.shape[-1])
        by_row = by_prompt.transpose(1, 2).flatten(0, 1).index_select(0, self.place_of)
        return by_row.flatten(0, 1)


def join_prefixes(config: Any, parts: Sequence[tuple[SharedPrefix, Tensor]]) -> SharedPrefix:
    """The prompts of some rows of each part, without those that no row reads any more."""
    used = [rows.new_tensor(sorted(set(prompts.owner[rows].tolist()))) for prompts, rows in parts]
    masks = [prompts.mask[own] for (prompts, _), own in zip(parts, used, strict=True)]
    width = max(mask.shape[1] for mask in masks)
    cache = new_cache(config)
    for number, layer in enumerate(cache.layers):
        sources = zip(parts, used, strict=True)
        layer.replace([(prompts.cache.layers[number], own) for (prompts, _), own in sources], width)
    owners, before = [], 0
    for (prompts, rows), own in zip(parts, used, strict=True):
        owners.append(before + torch.searchsorted(own, prompts.owner[rows]))
        before += len(own)
    aligned = [torch.nn.functional.pad(mask, (width - mask.shape[1], 0)) for mask in masks]
    return SharedPrefix(cache, torch.cat(aligned), torch.cat(owners))
