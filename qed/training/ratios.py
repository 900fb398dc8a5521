"""Checks on the log-probs behind the ratios between new and old policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from qed.errors import QedError
from qed.training.batch import Batch
from qed.types import Rollout


def require_ratios(stats: Mapping[str, float], moved: float, epsilon: float) -> None:
    """Raise if every ratio of a later update is exactly 1, as happens when old log-probs are overwritten.

    Args:
        stats: statistics of the update.
        moved: approximate change of each weight since the old log-probs were scored.
        epsilon: machine epsilon of the computation; smaller changes of the weights are ignored.

    Raises:
        QedError: the weights have changed, yet every ratio is exactly 1.
    """
    if stats.get("ratio/log_max") == 0 and moved > 1e-3 * epsilon:
        raise QedError(
            "The weights have changed since these answers were sampled, yet every probability ratio is exactly "
            "1: the loss compares the policy with itself, so nothing is ever clipped. Old log-probs must be "
            "scored once, before the first update of a step, and then kept; does algorithm.loss or a custom field "
            "old_logps overwrite them? learner.passes 1 with learner.batch_size 0 makes one update per step."
        )


def is_older(rollout: Rollout, version: int) -> bool:
    """Return whether a policy older than `version` sampled a rollout, with known log-probs."""
    if rollout.version >= version:
        return False
    sampled = [logp for logp, on_policy in zip(rollout.logps, rollout.on_policy, strict=False) if on_policy]
    return bool(sampled) and not any(map(math.isnan, sampled))


def forget_old_logps(batch: Batch, rollouts: Sequence[Rollout], version: int | None) -> Batch:
    """Return the batch with unknown old log-probs, so that the loss uses the policy's own.

    Rollouts of a policy older than `version` keep theirs; with None, all do.
    """
    if version is None:
        return batch
    newest = torch.tensor([[not is_older(rollout, version)] for rollout in rollouts], device=batch.mask.device)
    return replace(batch, old_logps=batch.old_logps.masked_fill(newest & (batch.mask > 0), torch.nan))
