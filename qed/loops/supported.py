"""Checks which settings work with sharded models, and which with sampling ahead of the updates."""

from __future__ import annotations

from collections.abc import Sequence

from qed.algorithms.base import Algorithm
from qed.config.phases import Settings
from qed.errors import UsageError
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
