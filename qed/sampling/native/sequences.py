"""The answers that a sampler writes side by side: one row each, with the keys and values behind it."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qed.randomness import draw_uniforms
from qed.sampling.base import Sampling
from qed.sampling.native.kv_cache import SPARE, new_cache
from qed.sampling.native.shared_prefix import SharedPrefix, join_prefixes

Place = tuple[int, int]  # which prompt, and which of its answers
RETURNED = (-1, -1)  # the place of a row whose answer has been given out
PER_ROW = ("tokens", "logps", "age", "prompt", "room", "finished")  # what each row has for itself, beside its columns


@dataclass
class Sequences:
    """Rows that are written together; one that is finished keeps its row until the rows are packed."""

    places: list[Place]
    tokens: Tensor  # [R, max_tokens + 1] int64; the last column is for what a finished row draws
    logps: Tensor  # [R, max_tokens + 1] float32
    age: Tensor  # [R] int64: tokens written
    prompt: Tensor  # [R] int64: tokens of the prompt
    room: Tensor  # [R] int64: tokens that may be written
    draws: Tensor | None  # [R, max_tokens + 1] float64
    finished: Tensor  # [R] bool
    mask: Tensor  # [R, columns] bool: which columns are the row's own
    cache: Any  # its columns, of which those in use come first
    checked: list[int]  # of each row the tokens that are known to hold no stop string
    prompts: SharedPrefix | None = None  # where the prompts' columns are, unless every row has its own

    def __len__(self) -> int:
        return len(self.places)

    @property
    def used(self) -> int:
        """The columns in use."""
        return int(self.cache.layers[0].used)

    def append_slot(self) -> None:
        """Mark the column behind those in use as every row's own."""
        used = self.used
        if used >= self.mask.shape[1]:
            self.mask = torch.cat([self.mask, self.mask.new_zeros(len(self), SPARE)], 1)
        self.mask[:, used] = True

    def reserve(self, columns: int) -> None:
        """Room for so many columns, the claimed one among them, in tensors that are replaced only when rows come, leave
        or need more."""
        claimed = self.used + 1
        mask = self.mask.new_zeros(len(self), columns)
        mask[:, :claimed] = self.mask[:, :claimed]
        self.mask = mask
        for layer in self.cache.layers:
            layer.reserve(columns)

    def commit_slot(self) -> None:
        """Count the claimed column, whose keys and values are written, as one in use."""
        for layer in self.cache.layers:
            layer.used += 1

    def share(self, prompts: SharedPrefix) -> None:
        """Read the prompts where they lie, with no columns of the rows' own yet."""
        cache = copy(prompts.cache)
        cache.layers = [layer.new_layer(len(self)) for layer in prompts.cache.layers]
        self.cache, self.prompts, self.mask = cache, prompts, self.mask[:, :0]

    def compact(self) -> None:
        """Drop the rows that are finished: the last ones that go on take their places, and nothing else is moved."""
        going = (~self.finished).nonzero().flatten()
        left = len(going)
        places, moved = self.finished[:left].nonzero().flatten(), going[going >= left]
        for row, source in zip(places.tolist(), moved.tolist(), strict=True):
            self.places[row], self.checked[row] = self.places[source], self.checked[source]
        self.places, self.checked = self.places[:left], self.checked[:left]
        for name in (*PER_ROW, "mask"):
            setattr(self, name, _compact(getattr(self, name), places, moved, left))
        if self.draws is not None:
            self.draws = _compact(self.draws, places.to(self.draws.device), moved.to(self.draws.device), left)
        for layer in self.cache.layers:
            layer.compact(places, moved, left)
        if self.prompts is not None:
            owner = _compact(self.prompts.owner, places, moved, left)
            self.prompts = SharedPrefix(self.prompts.cache, self.prompts.mask, owner)


def new_sequences(
    places: Sequence[Place],
    seeds: Sequence[int],
    lengths: Sequence[int],
    room: Sequence[int],
    sampling: Sampling,
    mask: Tensor,
    cache: Any,
) -> Sequences:
    """Rows of which only the prompts are there; `cache` may hold a prompt once for several of them."""
    count, device, longest = len(places), mask.device, sampling.max_tokens + 1
    # Apple's devices have no float64, so there the draws stay on the CPU.
    place = torch.device("cpu") if device.type == "mps" else device
    return Sequences(
        list(places),
        tokens=torch.zeros(count, longest, dtype=torch.int64, device=device),
        logps=torch.zeros(count, longest, device=device),
        age=torch.zeros(count, dtype=torch.int64, device=device),
        prompt=torch.tensor(lengths, device=device),
        room=torch.tensor(room, device=device),
        draws=draw_uniforms(torch.tensor(seeds), longest).to(place) if sampling.temperature > 0 else None,
        finished=torch.zeros(count, dtype=torch.bool, device=device),
        mask=mask,
        cache=cache,
        checked=[0] * count,
    )


def pack_sequences(config: Any, parts: Sequence[tuple[Sequences, Tensor, Tensor]]) -> Sequences:
    """Rows of several as one, right-aligned, without the columns that none of them needs.

    Args:
        config: of the model.
        parts: rows, which of them, and which rows of their cache those are.
    """
    masks = [rows.mask[which, : rows.used] for rows, which, _ in parts]
    width = max(map(_count_needed, masks))
    cache = new_cache(config)
    for number, layer in enumerate(cache.layers):
        layer.replace([(rows.cache.layers[number], source) for rows, _, source in parts], width)

    shared = [(rows.prompts, which) for rows, which, _ in parts if rows.prompts is not None]
    return Sequences(
        [rows.places[row] for rows, which, _ in parts for row in which.tolist()],
        **{name: torch.cat([getattr(rows, name)[which] for rows, which, _ in parts]) for name in PER_ROW},
        draws=None if parts[0][0].draws is None else _join_draws(parts),
        mask=torch.cat([_align_right(mask, width) for mask in masks]),
        cache=cache,
        checked=[rows.checked[row] for rows, which, _ in parts for row in which.tolist()],
        prompts=join_prefixes(config, shared) if shared else None,
    )


def _compact(states: Tensor, places: Tensor, moved: Tensor, left: int) -> Tensor:
    states[places] = states[moved]
    return states[:left]


def _join_draws(parts: Sequence[tuple[Sequences, Tensor, Tensor]]) -> Tensor:
    draws = [(rows.draws, which) for rows, which, _ in parts if rows.draws is not None]
    return torch.cat([own[which.to(own.device)] for own, which in draws])


def _count_needed(mask: Tensor) -> int:
    """The columns from the first one that any row needs."""
    columns = mask.any(0).nonzero()
    return mask.shape[1] - int(columns[0]) if len(columns) else 0


def _align_right(mask: Tensor, width: int) -> Tensor:
    columns = min(mask.shape[1], width)
    aligned = mask.new_zeros(len(mask), width)
    aligned[:, width - columns :] = mask[:, mask.shape[1] - columns :]
    return aligned
