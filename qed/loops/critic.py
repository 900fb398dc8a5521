"""The critic of a phase: built or loaded, and trained in each step before the policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from qed.algorithms.parts.critic import Critic
from qed.config.phases import Settings
from qed.errors import ModelError, UsageError
from qed.loops.metrics import Stats
from qed.loops.named_models import CRITIC
from qed.loops.same_models import require_same_weights
from qed.loops.setup import Setup
from qed.models import lora
from qed.models.load import prepare_model
from qed.models.precision import read_precision
from qed.models.scalar_head import build_scalar_model, load_scalar_model, train_head
from qed.rollout.stages import split_into_updates
from qed.training.batch import COUNTS
from qed.training.critic import ValueLearner, measure_values
from qed.training.learner import Learner
from qed.training.value_head import TrunkCritic
from qed.types import Groups, Rollout

if TYPE_CHECKING:
    from qed.loops.phase import Phase


def open_critic(setup: Setup, settings: Settings) -> ValueLearner | None:
    """Build the critic of a phase; return None if it has no critic with separate weights.

    The policy must not be sharded yet. A resumed phase loads the checkpoint's state into it afterwards.

    Raises:
        UsageError: an earlier phase has sharded the policy.
        ModelError: the initial model cannot be loaded, or its family has no model with a scalar head.
    """
    critic = settings.algorithm.value_model
    if critic is None or critic.trunk == "policy":
        return None
    if critic.start:
        model = _load_start(setup, settings, critic)
    elif setup.parallel.is_sharded(setup.model):
        raise UsageError(
            f"{settings.method} copies the policy for its critic, but an earlier phase of this run has sharded it. Run "
            "it separately, from that phase's checkpoint, or set algorithm.critic.start."
        )
    else:
        model = build_scalar_model(setup.model)
    model = prepare_model(model, settings.model, setup.device)
    return ValueLearner(
        model,
        settings.algorithm,
        settings.learner,
        settings.sampling.max_tokens,
        read_precision(settings.model),
        setup.parallel,
    )


def open_trunk_critic(learner: Learner, settings: Settings) -> TrunkCritic | None:
    """Add a value head to the policy's trunk; return None if the settings have no such critic."""
    critic = settings.algorithm.value_model
    if critic is None or critic.trunk != "policy":
        return None
    return TrunkCritic(learner, critic, settings.learner)


def _load_start(setup: Setup, settings: Settings, critic: Critic) -> nn.Module:
    """Load the model that a critic starts from, with new adapters if the policy has adapters."""
    named = replace(settings.model, name=critic.start, revision="", quantization="none")
    try:
        model, _ = load_scalar_model(named)
    except ModelError as error:
        raise ModelError(f"{CRITIC}: {error}") from error
    if settings.model.lora_rank:
        require_same_weights(CRITIC, critic.start, "", setup.run, setup.launch, setup.parallel)
        lora.add_adapters(model, named, settings.run.seed)
        train_head(model)
    return model


def update_policy(phase: Phase, minibatches: Sequence[Sequence[Rollout]], step: int) -> list[Stats]:
    """Make a step's updates of the policy, and return their statistics; none are made during the critic's warm-up."""
    critic = phase.settings.algorithm.value_model
    if critic is not None and step - phase.offset <= critic.warmup_steps:
        return [dict.fromkeys(COUNTS, 0.0) | {"train/rows": sum(map(len, minibatches)), "train/loss": 0.0}]
    return [phase.update(minibatch, step) for minibatch in minibatches]


def update_critic(phase: Phase, groups: Groups, step: int) -> list[Stats]:
    """Make a step's updates of the critic, if there is one, and return their statistics and those of its values."""
    algorithm, critic = phase.learner.algorithm, phase.critic
    if critic is None:
        return []
    rows = algorithm.rows(groups)
    if isinstance(critic, TrunkCritic):  # the policy's updates train it
        return [measure_values(rows)]
    address = (phase.settings.run.seed, "critic minibatches", step)
    minibatches = split_into_updates(rows, critic.settings, algorithm.together, address)
    updates = [phase.update_critic(critic, minibatch, step) for minibatch in minibatches]
    return [measure_values(rows), *updates]
