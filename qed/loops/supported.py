"""Checks which settings work together: with sharded models, with sampling ahead of the updates, with the rewards."""

from __future__ import annotations

from collections.abc import Sequence

from qed.algorithms.base import Algorithm
from qed.config.phases import Settings
from qed.data.splits import resolve_reward_names
from qed.errors import UsageError
from qed.rewards.base import may_judge
from qed.rollout.curriculum import ADAPTIVE
from qed.training.parallel import Parallel


def require_supported(phases: Sequence[Settings], parallel: Parallel) -> None:
    """Require that sharding and sampling ahead support the settings of every phase.

    Raises:
        UsageError: a setting does not work with parallel.shard or with rollout.max_staleness.
    """
    for phase in phases:
        _require_ahead_supported(phase, parallel)
    for phase in phases if parallel.shards else ():
        for name, value in (
            ("learner.compile", phase.learner.compile),
            ("learner.optimizer adamw8bit", phase.learner.optimizer == "adamw8bit"),
            ("model.quantization nf4", phase.model.quantization == "nf4"),
        ):
            if value:
                raise UsageError(
                    f"{name} does not work with parallel.shard={parallel.settings.shard}. Use parallel.shard=none, or "
                    f"leave {name.split()[0]} at its default."
                )


def require_verdicts(settings: Settings) -> None:
    """Require a reward that decides correctness if a phase's algorithm or curriculum needs it.

    Raises:
        UsageError: no reward decides correctness.
    """
    if not settings.algorithm.online:
        return
    names, curriculum = resolve_reward_names(settings.data), settings.sampling.curriculum
    in_need = [settings.method] if settings.algorithm.needs_correctness else []
    in_need += [f"sampling.curriculum={curriculum}"] if curriculum in ADAPTIVE else []
    if in_need and not any(map(may_judge, names)):
        raise UsageError(
            f"{in_need[0]} needs to know which answers are correct, but data.reward={','.join(names)} judges no "
            f"answer. Add a reward that does, for example --reward auto,{','.join(names)}; auto is the prompt's "
            "reward."
        )


def _require_ahead_supported(phase: Settings, parallel: Parallel) -> None:
    kind = type(phase.algorithm)
    if not phase.rollout.max_staleness or not kind.online:
        return
    reasons = (
        (
            kind.recall is not Algorithm.recall or kind.remember is not Algorithm.remember,
            f"{phase.method} replays answers that it chooses with the learner's weights after the previous step",
        ),
        (
            phase.sampling.sampler == "hf",
            "the sampler hf reads the learner's own weights; native, vllm and server have their own",
        ),
        (phase.sampling.colocate, "with sampling.colocate the learner and the server take turns on one device"),
        (parallel.world > 1, "it works with only one rank"),
    )
    for applies, reason in reasons:
        if applies:
            raise UsageError(f"rollout.max_staleness={phase.rollout.max_staleness}: {reason}. Set it to 0.")
