"""Restricts the softmax of log-probs to the tokens that could be sampled, as the sampler recorded them.

Top-k, top-p, min-p and `min_tokens` leave only some tokens at a position, the support, and the sampler draws from a
softmax over them. The learner's log-probs use a softmax over the same tokens, however far its policy has moved: the
support is recorded, not recomputed. A support computed from the current logits could exclude the sampled token, and
rounding could change it. DeepSeek-V3.2 calls this a kept sampling mask (arXiv 2512.02556).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qed.types import Rollout

# Finite, so that 0 times this is 0, not NaN; far below any logit, yet sums over a vocabulary stay
# finite in float32.
HIDDEN = -1e30


@dataclass(frozen=True)
class RowSupport:
    """The support of a row's labels, on the CPU, starting at column `first`; see `Support`."""

    first: int
    counts: Tensor  # [n] int32
    ids: Tensor  # [sum |counts|] int32

    @classmethod
    def of(cls, rollout: Rollout) -> RowSupport | None:
        """Return the support of a rollout's labels; None if every token could be sampled."""
        if rollout.support is None or not any(rollout.support.counts):
            return None
        counts, ids = _read_array(rollout.support.counts), _read_array(rollout.support.ids)
        # Without a prompt, the first token is not a label.
        skipped = int(not rollout.prompt)
        return cls(max(0, len(rollout.prompt) - 1), counts[skipped:], ids[int(counts[:skipped].abs().sum()) :])


class LabelSupport(NamedTuple):
    """The support of N labels, on the device of the logits."""

    ids: Tensor  # [K] int32: the listed tokens
    rows: Tensor  # [K] int64: the label that each belongs to
    starts: Tensor  # [N + 1] int64, on the CPU: where the tokens of each label start
    only: Tensor  # [N, 1] bool: whether only the listed tokens could be sampled; otherwise all but these

    def hide(self, logits: Tensor, labels: slice, first: int) -> None:
        """Set the logits of tokens outside the support to `HIDDEN`, in place.

        Args:
            logits: [n, W], logits for a slice of the labels and the tokens from `first` on.
            labels: slice of the labels.
            first: first token.
        """
        height, width = logits.shape
        begin, end = int(self.starts[labels.start]), int(self.starts[labels.stop])
        columns = self.ids[begin:end].long() - first
        # Map tokens outside this part of the vocabulary to a spare column: filtering would wait for the device.
        columns = columns.where((columns >= 0) & (columns < width), width)
        listed = torch.zeros(height, width + 1, dtype=torch.bool, device=logits.device)
        listed[self.rows[begin:end] - labels.start, columns] = True
        logits.masked_fill_(listed[:, :width] != self.only[labels], HIDDEN)


def build_label_support(support: Sequence[RowSupport | None], chosen: Tensor) -> LabelSupport | None:
    """Build the support of a batch's chosen labels, in the order of `hidden[chosen]`; None if it excludes nothing.

    Args:
        support: support of each row, or empty.
        chosen: [B, T] bool.
    """
    if not any(row is not None for row in support):
        return None
    counts, ids = [], []
    for row, columns in zip(support, chosen.cpu(), strict=True):
        if row is None:
            counts.append(torch.zeros(int(columns.sum()), dtype=torch.int32))
            continue
        kept = columns[row.first : row.first + len(row.counts)]
        row_counts = row.counts[: len(kept)]
        sizes = row_counts.abs().long()
        counts.append(row_counts[kept])
        ids.append(row.ids[: int(sizes.sum())][kept.repeat_interleave(sizes)])
    joined = torch.cat(counts)
    sizes, device = joined.abs().long(), chosen.device
    return LabelSupport(
        ids=torch.cat(ids).to(device),
        rows=torch.arange(len(joined)).repeat_interleave(sizes).to(device),
        starts=torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]),
        only=(joined > 0)[:, None].to(device),
    )


def _read_array(numbers: array[int]) -> Tensor:
    """Return an array as a tensor on the same memory; torch rejects empty ones."""
    return torch.frombuffer(numbers, dtype=torch.int32) if numbers else torch.empty(0, dtype=torch.int32)
