"""Check that rewards, advantages and log-probs are finite before the optimizer step that uses them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qed.errors import Diverged
from qed.types import Advantage, Rollout

STOPPED = "stopped before the optimizer step"


def find_not_finite(rollout: Rollout) -> list[str]:
    """Return the names of a rollout's values that are not finite, causes before consequences.

    A sampled log-prob is NaN where the sampler reports none; only an infinite one is an error.
    """
    wrong = {
        "reward": not math.isfinite(rollout.reward),
        "sampled log-prob": not _is_finite(rollout.logps) and any(map(math.isinf, rollout.logps)),
        "old log-prob": not _is_finite(rollout.old_logps or ()),
        "reference log-prob": not _is_finite(rollout.ref_logps or ()),
        "value": not _is_finite(rollout.values or ()),
        "advantage": not _is_finite(rollout.advantage),
    }
    return [name for name, is_wrong in wrong.items() if is_wrong]


def require_finite(rollouts: Sequence[Rollout]) -> None:
    """Check that all values of an update are finite.

    Raises:
        Diverged: some are not; the message names the value, the number of answers and the first of them.
    """
    wrong = {number: names for number, rollout in enumerate(rollouts) if (names := find_not_finite(rollout))}
    if not wrong:
        return
    number, names = next(iter(wrong.items()))
    first = rollouts[number]
    value = f" ({first.advantage})" if names[0] == "advantage" and isinstance(first.advantage, float) else ""
    raise Diverged(
        f"The {names[0]} of {len(wrong)} of {len(rollouts)} answers is not finite, first in answer {first.index} to "
        f"problem {first.problem.id}{value}: {STOPPED}. {_advise(names[0])}",
        rollouts,
    )


def describe_update(
    rollouts: Sequence[Rollout], scores: Sequence[tuple[float, float]], loss: float, norm: float, rate: float
) -> Diverged:
    """Build the error for an update whose loss or gradient is not finite.

    Args:
        rollouts: the rollouts of the update.
        scores: the mean entropy and the mean log-prob of each rollout under the policy.
        loss, norm, rate: the loss, the norm of its gradient and the learning rate.
    """
    broken = sum(not _is_finite(score) for score in scores)
    what = "gradient" if math.isfinite(loss) else "loss"
    return Diverged(
        f"The {what} is not finite (the loss is {loss} and the gradient norm {norm} at learning rate {rate:g}); the "
        f"policy's own log-probs are not finite in {broken} of {len(rollouts)} answers: {STOPPED}. A smaller "
        "learner.lr, or float32 in place of bfloat16, is the usual remedy.",
        rollouts,
    )


def _advise(name: str) -> str:
    """Return what to do about a value that is not finite."""
    if name == "reward":
        return "A reward must be a finite number: look for a division or a logarithm in your reward function."
    if name == "advantage":
        return "It follows from finite rewards, so the algorithm makes it: is algorithm.std_epsilon 0?"
    return "The weights have been broken by an earlier update: a smaller learner.lr, or float32, is the usual cure."


def _is_finite(values: Advantage | Sequence[float]) -> bool:
    # A sum is finite only if every term is; log-probs and advantages are far too small to overflow.
    return math.isfinite(values if isinstance(values, float | int) else sum(values))
