"""Rollouts become padded tensors, aligned on labels; a batch is cut by a budget of tokens.

Masks are made by position, never by comparing ids with pad or end ids. A row is never cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from qed.types import Rollout


@dataclass(frozen=True)
class Batch:
    """Columns [B, T] aligned on labels, T the longest row less one; `advantages` is [B].

    `attention` says which inputs are there, `mask` which labels are response tokens that may be trained.
    """

    inputs: Tensor  # collate: int64, right-padded
    labels: Tensor  # collate: int64, the inputs one step ahead
    attention: Tensor  # collate: int64, 1 where an input stands
    mask: Tensor  # collate: float, 1 where the label belongs to the response
    advantages: Tensor  # collate: float
    sampled_logps: Tensor  # collate: float, the sampler's; 0 for demonstrations
    old_logps: Tensor  # collate: float, the learner's where it scored them, else the sampled ones
    ref_logps: Tensor  # collate: float, the reference model's; 0 where there is none
    weights: Tensor  # collate: float, the share of each token in the step's loss

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.inputs)

    def select(self, rows: Tensor | Sequence[int]) -> Batch:
        """Some of the rows, in the order given, cut to the longest of them."""
        picked = {column.name: getattr(self, column.name)[rows] for column in fields(self)}
        width = int(picked["attention"].sum(1).max()) if len(picked["attention"]) else 0
        return Batch(**{name: value[:, :width] if value.ndim == 2 else value for name, value in picked.items()})

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        return Batch(**{column.name: getattr(self, column.name).to(device) for column in fields(self)})

    def weighted(self, weights: Tensor) -> Batch:
        """The same batch with its weights column."""
        return replace(self, weights=weights)


def collate(rollouts: Sequence[Rollout], pad: int = 0, dtype: torch.dtype = torch.float32) -> Batch:
    """Pad rollouts on the right into one batch; its weights are zero until the algorithm has fixed them.

    Args:
        rollouts: the rows, at least one.
        pad: the id at padded places; any id will do, nothing reads it.
        dtype: of the float columns.
    """
    rows, width = len(rollouts), max(len(r.prompt) + len(r.output) for r in rollouts) - 1
    ids = torch.full((rows, width + 1), pad, dtype=torch.int64)
    attention = torch.zeros(rows, width, dtype=torch.int64)
    columns = {name: torch.zeros(rows, width, dtype=dtype) for name in ("mask", "sampled", "old", "ref")}
    for row, rollout in enumerate(rollouts):
        start, end = len(rollout.prompt), len(rollout.prompt) + len(rollout.output)
        ids[row, :end] = torch.tensor(rollout.prompt + rollout.output)
        attention[row, : end - 1] = 1
        response = slice(start - 1, end - 1)  # the label of the last prompt token is the first response token
        columns["mask"][row, response] = 1
        for name, values in (
            ("sampled", rollout.logps),
            ("old", rollout.old_logps if rollout.old_logps is not None else rollout.logps),
            ("ref", rollout.ref_logps),
        ):
            if values:
                columns[name][row, response] = torch.tensor(values, dtype=dtype)
    return Batch(
        inputs=ids[:, :-1],
        labels=ids[:, 1:],
        attention=attention,
        mask=columns["mask"],
        advantages=torch.tensor([rollout.advantage for rollout in rollouts], dtype=dtype),
        sampled_logps=columns["sampled"],
        old_logps=columns["old"],
        ref_logps=columns["ref"],
        weights=torch.zeros(rows, width, dtype=dtype),
    )


def cut(batch: Batch, budget: int) -> list[list[int]]:
    """The rows of each micro-batch: sorted by length, at most `budget` padded tokens; a longer row stands alone."""
    lengths = batch.attention.sum(1).tolist()
    parts: list[list[int]] = []
    for row in sorted(range(len(batch)), key=lengths.__getitem__):
        # Rows come shortest first, so this row is the width of the part that it joins.
        if parts and (len(parts[-1]) + 1) * lengths[row] <= budget:
            parts[-1].append(row)
        else:
            parts.append([row])
    return parts
