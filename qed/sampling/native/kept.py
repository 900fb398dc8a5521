"""Keys and values of answers kept between turns, so that the next turn computes only new tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qed.sampling.native.kv_cache import new_cache
from qed.sampling.native.sequences import Sequences
from qed.sampling.prefixes import PrefixTable

Layers = list[tuple[Tensor, Tensor]]  # the keys and the values of each layer, [heads, tokens, width]


class Reused(NamedTuple):
    """The first `length` tokens of a prompt, whose keys and values are kept."""

    length: int
    layers: Layers


NOTHING = Reused(0, [])


@dataclass
class KeptPrefixes:
    """Stores sequences with their keys and values, at most `most` tokens in total."""

    most: int = 0
    tokens: int = 0
    table: PrefixTable[Layers] = field(default_factory=PrefixTable)

    def add(self, rows: Sequences, row: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Keep a row of a batch: its prompt and the output tokens whose keys and values exist.

        Those of the last output token would be computed in the next step, which a finished row does not make. Rows that
        do not fit are computed again later.
        """
        known = (*prompt, *output[:-1])
        if self.tokens + len(known) <= self.most and not self.table.has(known):
            self.table.add(known, _read_row(rows, row, len(known)))
            self.tokens += len(known)

    def find(self, prompt: Sequence[int]) -> Reused:
        """Return the longest kept part of a prompt, always without its last token, which must be computed."""
        place, shared = self.table.locate(prompt)
        length = min(shared, len(prompt) - 1)
        return Reused(length, self.table.values[place]) if length else NOTHING

    def retain(self, prompts: Sequence[Sequence[int]]) -> None:
        """Keep only the sequences that these prompts use."""
        found = map(self.table.locate, prompts)
        used = sorted({place for place, length in found if length})
        self.table = PrefixTable(
            [self.table.order[place] for place in used], [self.table.values[place] for place in used]
        )
        self.tokens = sum(map(len, self.table.order))


def build_cache(config: Any, reused: Sequence[Reused], lengths: Sequence[int], columns: int) -> Any:
    """Build a cache of reused keys and values, one row each, right-aligned in `columns` columns.

    Args:
        config: config of the model.
        reused: reused part of each row.
        lengths: for each row, how many of its first tokens go into the cache.
        columns: columns of the cache; 0 leaves it empty.
    """
    cache = new_cache(config)
    if not columns:
        return cache
    for number, layer in enumerate(cache.layers):
        # Columns before a row are masked and zero, because memory that was never written may hold NaN.
        stacked = []
        for kind in (0, 1):
            like = next(each.layers[number][kind] for each in reused if each.layers)
            states = like.new_zeros(len(reused), like.shape[0], columns, like.shape[2])
            for row, (each, length) in enumerate(zip(reused, lengths, strict=True)):
                if length:
                    states[row, :, columns - length :] = each.layers[number][kind][:, :length]
            stacked.append(states)
        layer.fill(*stacked)
    return cache


def _read_row(rows: Sequences, row: int, length: int) -> Layers:
    """Copy the keys and values of the first tokens of a row."""
    first = int(rows.mask[row].int().argmax()) if rows.mask.shape[1] else 0
    prefix = rows.shared_prefix
    before = 0 if prefix is None else int(prefix.lengths[prefix.owner[row]])
    own = slice(first, first + length - before)
    found = []
    for number, layer in enumerate(rows.cache.layers):
        parts = [layer.keys[row, :, own], layer.values[row, :, own]]
        if prefix is not None:
            shared, source = prefix.cache.layers[number], int(prefix.owner[row])
            begin = shared.used - before
            parts = [
                torch.cat([states[source, :, begin : shared.used], part], 1)
                for states, part in zip((shared.keys, shared.values), parts, strict=True)
            ]
        found.append((parts[0].clone(), parts[1].clone()))
    return found
