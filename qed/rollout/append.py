"""Append tokens to the output of a rollout: a completion, a tool's result or a user's turn."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence

from qed.types import Rollout, Support


def append_tokens(
    rollout: Rollout,
    tokens: Sequence[int],
    logps: Sequence[float] = (),
    *,
    sampled: bool = True,
    trained: bool = True,
    support: Support | None = None,
) -> Rollout:
    """Return the rollout with tokens appended to its output, and its masks extended.

    Args:
        rollout: rollout that has not been graded or scored yet.
        tokens: token ids, such as a completion, a tool's result or a user's turn.
        logps: the sampler's log-probs of the tokens; empty if unknown.
        sampled: whether the policy sampled the tokens.
        trained: whether the loss includes them.
        support: tokens that could be sampled at each position of a completion; None if all could.
    """
    count, before = len(tokens), len(rollout.output)
    logps_before = rollout.logps or (math.nan,) * before
    return rollout.copy_with(
        output=(*rollout.output, *tokens),
        logps=(*logps_before, *(logps or (math.nan if sampled else 0.0,) * count)),
        sampled_mask=_extend_mask(rollout.sampled_mask, before, count, sampled),
        loss_mask=_extend_mask(rollout.loss_mask, before, count, trained),
        behaviour=(*rollout.behaviour, *(math.nan,) * count) if rollout.behaviour else (),
        support=_extend_support(rollout.support, before, count, support),
    )


def _extend_mask(mask: Sequence[bool], before: int, count: int, value: bool) -> tuple[bool, ...]:
    """Append `count` times `value` to a mask of `before` tokens; return () where all entries are True."""
    extended = (*(mask or (True,) * before), *(value,) * count)
    return () if all(extended) else extended


def _extend_support(support: Support | None, before: int, count: int, added: Support | None) -> Support | None:
    """Append the support of `count` tokens to that of `before` tokens; None if all tokens could be sampled."""
    if support is None and added is None:
        return None
    first = support or Support(array("i", [0]) * before, array("i"))
    second = added or Support(array("i", [0]) * count, array("i"))
    return Support(first.counts + second.counts, first.ids + second.ids)
