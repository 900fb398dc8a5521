"""The sequences that a sampler decodes together, one per row, with their KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from qed.kernels import decoding
from qed.kernels.functions import has_kernels
from qed.randomness import draw_uniforms
from qed.sampling.base import Sampling
from qed.sampling.native.kv_cache import SPARE, new_cache
from qed.sampling.native.shared_prefix import SharedPrefix, join_prefixes

SequenceId = tuple[int, int]  # index of the prompt, and of the completion among the prompt's
RETURNED = (-1, -1)  # the id of a row whose completion has been returned
COLUMNS = ("tokens", "logps")  # tensors [R, W]
PER_ROW = (*COLUMNS, "output_lens", "prompt_lens", "max_output_lens", "finished")  # tensors with R rows


@dataclass
class Sequences:
    """R sequences that are decoded together; a finished sequence keeps its row until `compact` or `pack_sequences`."""

    ids: list[SequenceId]
    # W columns: those of the longest answer, and one for tokens sampled after a row has finished.
    tokens: Tensor  # [R, W] int64
    logps: Tensor  # [R, W] float32, or float64 if the model computes in float64
    output_lens: Tensor  # [R] int64: number of sampled tokens
    prompt_lens: Tensor  # [R] int64: number of prompt tokens
    max_output_lens: Tensor  # [R] int64: largest number of tokens to sample
    uniforms: Tensor | None  # [R, W] float64: random numbers of the tokens; None if all are greedy
    finished: Tensor  # [R] bool
    mask: Tensor  # [R, columns] bool: True at the columns that belong to the row
    cache: Any  # the KV cache; the columns in use come first
    checked: list[int]  # for each row, how many tokens are known to contain no stop string
    shared_prefix: SharedPrefix | None = None  # the prompts' columns, unless every row has a copy in `cache`

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def used(self) -> int:
        """Return the number of columns in use."""
        return int(self.cache.layers[0].used)

    def append_slot(self) -> None:
        """Make the next column part of every row; its keys and values are written by the decoder."""
        used = self.used
        if used >= self.mask.shape[1]:
            self.mask = torch.cat([self.mask, self.mask.new_zeros(len(self), SPARE)], 1)
        self.mask[:, used] = True

    def reserve(self, columns: int) -> None:
        """Allocate `columns` columns, including the appended one.

        The tensors stay the same until rows are added or removed, or more columns are needed.
        """
        appended = self.used + 1
        mask = self.mask.new_zeros(len(self), columns)
        mask[:, :appended] = self.mask[:, :appended]
        self.mask = mask
        for layer in self.cache.layers:
            layer.reserve(columns)

    def commit_slot(self) -> None:
        """Mark the appended column as used, after its keys and values have been written."""
        for layer in self.cache.layers:
            layer.used += 1

    def share_prefix(self, prefix: SharedPrefix) -> None:
        """Read the prompts from a shared prefix; the rows' own cache becomes empty."""
        cache = copy(prefix.cache)
        cache.layers = [layer.new_layer(len(self)) for layer in prefix.cache.layers]
        self.cache, self.shared_prefix, self.mask = cache, prefix, self.mask[:, :0]

    def compact(self) -> None:
        """Remove the finished rows: the last running rows move into their slots, the others stay where they are."""
        running = (~self.finished).nonzero().flatten()
        count = len(running)
        targets, sources = self.finished[:count].nonzero().flatten(), running[running >= count]
        for target, source in zip(targets.tolist(), sources.tolist(), strict=True):
            self.ids[target], self.checked[target] = self.ids[source], self.checked[source]
        self.ids, self.checked = self.ids[:count], self.checked[:count]
        for name in (*PER_ROW, "mask"):
            setattr(self, name, _compact(getattr(self, name), targets, sources, count))
        if self.uniforms is not None:
            device = self.uniforms.device
            self.uniforms = _compact(self.uniforms, targets.to(device), sources.to(device), count)
        for layer in self.cache.layers:
            layer.compact(targets, sources, count)
        if self.shared_prefix is not None:
            owner = _compact(self.shared_prefix.owner, targets, sources, count)
            self.shared_prefix = SharedPrefix(self.shared_prefix.cache, self.shared_prefix.mask, owner)


def new_sequences(
    ids: Sequence[SequenceId],
    seeds: Sequence[int],
    prompt_lens: Sequence[int],
    max_output_lens: Sequence[int],
    sampling: Sampling,
    mask: Tensor,
    cache: Any,
) -> Sequences:
    """Build sequences without sampled tokens; several of them may share a row of `cache` with their prompt."""
    count, device, longest = len(ids), mask.device, max(max_output_lens) + 1
    dtype = torch.promote_types(cache.layers[0].keys.dtype, torch.float32)
    # MPS has no float64, so there the random numbers stay on the CPU.
    uniforms_device = torch.device("cpu") if device.type == "mps" else device
    return Sequences(
        list(ids),
        tokens=torch.zeros(count, longest, dtype=torch.int64, device=device),
        logps=torch.zeros(count, longest, dtype=dtype, device=device),
        output_lens=torch.zeros(count, dtype=torch.int64, device=device),
        prompt_lens=torch.tensor(prompt_lens, device=device),
        max_output_lens=torch.tensor(max_output_lens, device=device),
        uniforms=draw_uniforms(torch.tensor(seeds), longest).to(uniforms_device) if sampling.temperature > 0 else None,
        finished=torch.zeros(count, dtype=torch.bool, device=device),
        mask=mask,
        cache=cache,
        checked=[0] * count,
    )


def append_tokens(rows: Sequences, first: int, chosen: Tensor, logps: Tensor, ended: Tensor) -> None:
    """Write the next tokens of the rows from `first` on; mark rows that finish, at an end token or the length limit.

    Args:
        rows: the sequences.
        first: first row that gets a token; finished rows have it written after their end.
        chosen: [rows] int64, the tokens.
        logps: [rows], their log-probs.
        ended: [rows] bool, which of them are end tokens.
    """
    lengths, finished, longest = rows.output_lens[first:], rows.finished[first:], rows.max_output_lens[first:]
    if chosen.device.type == "cpu" and rows.logps.dtype == logps.dtype == torch.float32 and has_kernels():
        decoding.append(chosen, logps, ended, longest, (rows.tokens[first:], rows.logps[first:], lengths, finished))
        return
    position = lengths[:, None]
    rows.tokens[first:].scatter_(1, position, chosen[:, None])
    rows.logps[first:].scatter_(1, position, logps[:, None])
    lengths += ~finished
    finished |= ended | (lengths >= longest)


def pack_sequences(config: Any, parts: Sequence[tuple[Sequences, Tensor, Tensor]]) -> Sequences:
    """Join sequences of several batches into one, right-aligned, without columns that no row uses.

    Args:
        config: config of the model.
        parts: sequences, the rows to take from them, and these rows' cache rows.
    """
    masks = [sequences.mask[rows, : sequences.used] for sequences, rows, _ in parts]
    width = max(map(_count_needed, masks))
    cache = new_cache(config)
    for number, layer in enumerate(cache.layers):
        layer.replace([(sequences.cache.layers[number], cache_rows) for sequences, _, cache_rows in parts], width)

    prefixes = [(seqs.shared_prefix, rows) for seqs, rows, _ in parts if seqs.shared_prefix is not None]
    return Sequences(
        [sequences.ids[row] for sequences, rows, _ in parts for row in rows.tolist()],
        **{name: _join_rows(parts, name) for name in PER_ROW},
        uniforms=_join_uniforms(parts),
        mask=torch.cat([_align_right(mask, width) for mask in masks]),
        cache=cache,
        checked=[sequences.checked[row] for sequences, rows, _ in parts for row in rows.tolist()],
        shared_prefix=join_prefixes(config, prefixes) if prefixes else None,
    )


def _compact(states: Tensor, targets: Tensor, sources: Tensor, count: int) -> Tensor:
    states[targets] = states[sources]
    return states[:count]


def _join_rows(parts: Sequence[tuple[Sequences, Tensor, Tensor]], name: str) -> Tensor:
    states = [getattr(sequences, name)[rows] for sequences, rows, _ in parts]
    return torch.cat(_fit(states, parts) if name in COLUMNS else states)


def _join_uniforms(parts: Sequence[tuple[Sequences, Tensor, Tensor]]) -> Tensor | None:
    """Join the random numbers; greedy rows get unused zeros."""
    places = [sequences.uniforms for sequences, _, _ in parts if sequences.uniforms is not None]
    if not places:
        return None
    numbers = [
        places[0].new_zeros(len(rows), 1)
        if sequences.uniforms is None
        else sequences.uniforms[rows.to(places[0].device)]
        for sequences, rows, _ in parts
    ]
    return torch.cat(_fit(numbers, parts))


def _fit(states: Sequence[Tensor], parts: Sequence[tuple[Sequences, Tensor, Tensor]]) -> list[Tensor]:
    """Pad or cut tensors [rows, .] to the columns that the longest answer may need."""
    lengths = torch.cat([sequences.max_output_lens[rows] for sequences, rows, _ in parts])
    width = int(lengths.max()) + 1
    return [nn.functional.pad(part[:, :width], (0, width - min(width, part.shape[1]))) for part in states]


def _count_needed(mask: Tensor) -> int:
    """Count the columns from the first one used by any row."""
    columns = mask.any(0).nonzero()
    return mask.shape[1] - int(columns[0]) if len(columns) else 0


def _align_right(mask: Tensor, width: int) -> Tensor:
    columns = min(mask.shape[1], width)
    aligned = mask.new_zeros(len(mask), width)
    aligned[:, width - columns :] = mask[:, mask.shape[1] - columns :]
    return aligned
