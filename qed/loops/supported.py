"""Which settings work with several ranks."""

from __future__ import annotations

from collections.abc import Sequence

from qed.config.phases import Settings
from qed.errors import UsageError
from qed.training.parallel import Parallel


def require_supported(phases: Sequence[Settings], parallel: Parallel) -> None:
    """Require that sharded models support the settings of every phase.

    Raises:
        UsageError: a setting does not work with the ranks' way to shard models.
    """
    for phase in phases if parallel.shards else ():
        for name, value in (
            ("learner.compile", phase.learner.compile),
            ("learner.optimizer adamw8bit", phase.learner.optimizer == "adamw8bit"),
            ("model.quantization nf4", phase.model.quantization == "nf4"),
        ):
            if value:
                raise UsageError(
                    f"{name} does not work with parallel.shard={parallel.settings.shard}. Take parallel.shard=none, or "
                    f"leave {name.split()[0]} at its default."
                )
