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
    """Columns [B, T] aligned on labels, T the longest row less one.

    `attention` says which inputs are there, `mask` which labels are response tokens that may be trained.
    """

    inputs: Tensor  # collate: int64, right-padded
    labels: Tensor  # collate: int64, the inputs one step ahead
    attention: Tensor  # collate: int64, 1 where an input stands
    mask: Tensor  # collate: float, 1 where the label belongs to the response
    advantages: Tensor  # collate: float, of every response token
    expert: Tensor  # collate: float, 1 where the label was given, by a trace or a replay, and not sampled
    behaviour_logps: Tensor  # collate: float, of given tokens under who wrote them; NaN where that is not known
    sampled_logps: Tensor  # collate: float, the sampler's; 0 for demonstrations
    old_logps: Tensor  # collate: float, the learner's where it scored them, else the sampled ones
    ref_logps: Tensor  # collate: float, the reference model's; 0 where there is none
    weights: Tensor  # collate: float, the share of each token in the step's loss
    prepared: Tensor  # prepare: float, what the algorithm worked out over all rows before the cut; 0 until then
    log_squares: Tensor  # learner: float, log sum_v p_v^2 of the current policy; 0 unless the algorithm reads it

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
    columns = {column.name: torch.zeros(rows, width, dtype=dtype) for column in fields(Batch)[3:]}
    columns["behaviour_logps"].fill_(torch.nan)
    for row, rollout in enumerate(rollouts):
        start, end = len(rollout.prompt), len(rollout.prompt) + len(rollout.output)
        ids[row, :end] = torch.tensor(rollout.prompt + rollout.output)
        attention[row, : end - 1] = 1
        # The label of the last prompt token is the first response token; without a prompt that token is no label.
        first, unlabelled = max(0, start - 1), int(start == 0)
        for name, values in _response(rollout).items():
            if isinstance(values, float | int):
                columns[name][row, first : end - 1] = values
            elif values:
                labelled = values[unlabelled:]
                columns[name][row, first : first + len(labelled)] = torch.tensor(labelled, dtype=dtype)
    return Batch(inputs=ids[:, :-1], labels=ids[:, 1:], attention=attention, **columns)


def _response(rollout: Rollout) -> dict[str, float | tuple[float, ...] | None]:
    """The columns of a rollout from its first response token on: one value for all of them, or one for each."""
    return {
        "mask": 1.0,
        "advantages": rollout.advantage,
        "expert": (1.0,) * rollout.given,
        "behaviour_logps": rollout.behaviour,
        "sampled_logps": rollout.logps,
        "old_logps": rollout.old_logps if rollout.old_logps is not None else rollout.logps,
        "ref_logps": rollout.ref_logps,
    }


def cut(batch: Batch, budget: int, together: int = 1) -> list[list[int]]:
    """The rows of each micro-batch: sorted by length, at most `budget` padded tokens.

    Every `together` consecutive rows stay in one part, such as the two of a preference pair; what is longer than the
    budget stands alone.
    """
    lengths = batch.attention.sum(1).tolist()
    bundles = [range(start, start + together) for start in range(0, len(batch), together)]
    widths = [max(lengths[row] for row in bundle) for bundle in bundles]
    parts: list[list[int]] = []
    for number in sorted(range(len(bundles)), key=widths.__getitem__):
        # Bundles come shortest first, so this one is the width of the part that it joins.
        if parts and (len(parts[-1]) + together) * widths[number] <= budget:
            parts[-1] += bundles[number]
        else:
            parts.append(list(bundles[number]))
    return parts


def split_rows(rollouts: Sequence[Rollout], live: Sequence[bool]) -> tuple[list[Rollout], list[Rollout]]:
    """Split rows into those that are live and the others; without `live` all are."""
    flags = live or [True] * len(rollouts)
    pairs = list(zip(rollouts, flags, strict=True))
    return [row for row, flag in pairs if flag], [row for row, flag in pairs if not flag]


def mismatch(logps: Tensor, batch: Batch) -> dict[str, Tensor]:
    """How far the sampler's log-probs are from the learner's: sums of |d| and of the KL estimate e^d - 1 - d.

    Demonstrations have no sampler, and a sampler may not know a log-prob (NaN). From a step's second update on, the
    figures hold the policy's own progress too.
    """
    sampled = batch.mask.bool() & (batch.sampled_logps != 0) & ~batch.sampled_logps.isnan()
    difference = (logps - batch.sampled_logps).masked_fill(~sampled, 0)
    return {"mismatch/logp": difference.abs().sum(), "mismatch/kl": (difference.exp() - 1 - difference).sum()}
