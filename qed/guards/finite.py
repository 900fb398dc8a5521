"""Whether the figures of answers are finite, asked before the optimizer makes a step with them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from qed.errors import Diverged
from qed.types import Advantage, Rollout

STOPPED = "stopped before the optimizer step"


def find_not_finite(rollout: Rollout) -> list[str]:
    """The figures of an answer that are not finite, those that others follow from first.

    A log-prob that its sampler does not know is NaN by agreement; one that is infinite is a mistake.
    """
    wrong = {
        "reward": not math.isfinite(rollout.reward),
        "sampled log-prob": not _is_finite(rollout.logps) and any(map(math.isinf, rollout.logps)),
        "old log-prob": not _is_finite(rollout.old_logps or ()),
        "reference log-prob": not _is_finite(rollout.ref_logps or ()),
        "advantage": not _is_finite(rollout.advantage),
    }
    return [name for name, is_wrong in wrong.items() if is_wrong]


def require_finite(rollouts: Sequence[Rollout]) -> None:
    """Refuse an update with figures that are not finite.

    Raises:
        Diverged: which figure, of how many answers, and the first of them.
    """
    found = {number: names for number, rollout in enumerate(rollouts) if (names := find_not_finite(rollout))}
    if not found:
        return
    first, names = next(iter(found.items()))
    one = rollouts[first]
    told = f" ({one.advantage})" if names[0] == "advantage" and isinstance(one.advantage, float) else ""
    raise Diverged(
        f"The {names[0]} of {len(found)} of {len(rollouts)} answers is not finite, first of answer {one.index} to "
        f"problem {one.problem.id}{told}: {STOPPED}. {_advise(names[0])}",
        rollouts,
    )


def describe_update(
    rollouts: Sequence[Rollout], looks: Sequence[tuple[float, float]], loss: float, norm: float, rate: float
) -> Diverged:
    """The error of an update whose loss or gradient is not finite.

    Args:
        rollouts: its rows.
        looks: the mean entropy and the mean log-prob of each under the policy.
        loss, norm, rate: the loss, the norm of its gradient and the learning rate.
    """
    broken = sum(not _is_finite(look) for look in looks)
    what = "gradient" if math.isfinite(loss) else "loss"
    return Diverged(
        f"The {what} is not finite (the loss is {loss} and the gradient's norm {norm} at learning rate {rate:g}); of "
        f"{broken} of {len(rollouts)} answers the policy's own log-probs are not: {STOPPED}. A smaller learner.lr, or "
        "float32 in place of bfloat16, is the usual cure.",
        rollouts,
    )


def _advise(name: str) -> str:
    """What to do about a figure."""
    if name == "reward":
        return "A reward must be a finite number: look for a division or a logarithm in your own."
    if name == "advantage":
        return "It follows from finite rewards, so the algorithm makes it: is algorithm.std_epsilon 0?"
    return "The weights have been broken by an earlier update: a smaller learner.lr, or float32, is the usual cure."


def _is_finite(values: Advantage | Sequence[float]) -> bool:
    # A sum is finite only where every term is, unless finite terms overflow, which no log-prob or advantage does.
    return math.isfinite(values if isinstance(values, float | int) else sum(values))
