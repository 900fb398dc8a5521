"""Checks of the models that a run's algorithms load besides the policy, before any of their weights are loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qed.config.phases import Settings
from qed.errors import ModelError, UsageError
from qed.models.load import is_new, load_tokenizer

CRITIC = "algorithm.critic.start"


def require_named_models(phases: Sequence[Settings], tokenizer: Any = None) -> None:
    """Require that teachers, reference models and initial critics can read the policy's tokens.

    Args:
        phases: settings of the run's phases.
        tokenizer: the policy's tokenizer; None if it is not known yet, so that vocabularies are not compared.

    Raises:
        UsageError: a teacher is not set, or such a model is a new one or has another vocabulary than the policy.
        ModelError: its tokenizer is missing or cannot be read.
    """
    for settings in phases:
        setting = settings.algorithm.teacher_setting
        if setting and settings.algorithm.reference and not settings.algorithm.reference_name:
            raise UsageError(
                f"{settings.method} learns from a teacher, but {setting} is not set. Set it to the name or folder of a "
                "model with the policy's tokenizer, such as a larger model of the same family, or to the address of a "
                "server with such a model."
            )
        for setting, name in _list_names(settings).items():
            if is_new(name):
                raise UsageError(f"{setting} cannot be {name}: a new model has random weights.")
            try:
                other, _ = load_tokenizer(name)
            except ModelError as error:
                raise ModelError(f"{setting}: {error}") from error
            if tokenizer is not None and other.get_vocab() != tokenizer.get_vocab():
                kind = "a reward model or a critic" if setting == CRITIC else "a model with the policy's tokenizer, as"
                raise UsageError(
                    f"{setting} {name} has another vocabulary than {settings.model.name}, so it cannot read the "
                    f"policy's tokens. Use {kind} of the same family."
                )


def _list_names(settings: Settings) -> dict[str, str]:
    """Return the models in this process that a phase loads besides the policy, by the settings that name them."""
    algorithm, critic = settings.algorithm, settings.algorithm.value_model
    names = {CRITIC: critic.start} if critic is not None else {}
    if algorithm.reference:
        names[algorithm.teacher_setting or "algorithm.reference_model"] = algorithm.reference_name
    return {setting: name for setting, name in names.items() if name}
