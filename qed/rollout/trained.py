"""Resolve the settings for using a model: those of its run if it has one, otherwise the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from qed.config.layers import read_method
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import resolve_settings
from qed.data.splits import resolve_prompt_name, resolve_reward_names

ENGINES = ("server", "vllm")  # their servers have ended with the run, or may have other weights now
# Settings of commands that grade nothing: the run's reward may be code that is not available here.
UNGRADED = {"data.reward": "boxed", "data.reward_options": "[]"}


def resolve_model_settings(
    run_folder: Path | None, model: str, options: Mapping[str, str], allow_user_code: bool = False
) -> Settings:
    """Return the settings of the run that trained a model, or the defaults for a model without a run.

    Args:
        run_folder: folder of the run that trained the model; None if there is none.
        model: folder or hub name of the model; empty for the run's initial model.
        options: settings that override the run's, by key, such as `data.prompt`.
        allow_user_code: whether the run's settings may name code outside of qed.

    Raises:
        UsageError: a setting is invalid.
    """
    given = [part for key, value in options.items() for part in (f"--{key}", value)]
    given += ["--allow-user-code"] if allow_user_code else []
    if run_folder is None:
        return _require_single_phase(resolve_settings("grpo", ["--model", model, *given]).settings)
    saved = run_folder / "settings.yaml"
    # Using a model starts no trackers, which may be code that is not available here.
    arguments = [str(saved), *(["--model", model] if model else []), "--run.trackers", "[]", *given]
    # The run's data may have moved; reading missing data later raises its own error.
    resolved = resolve_settings(read_method(saved), arguments, reads_data=False)
    settings = _require_single_phase(resolved.settings)
    if settings.sampling.sampler in ENGINES and "sampling.sampler" not in options:
        settings = replace(settings, sampling=replace(settings.sampling, sampler="native", url=()))
    # Another task must not change the model's prompt: `auto` keeps its meaning from training.
    data = replace(settings.data, prompt=resolve_prompt_name(settings.data))
    other_prompt, other_reward = "data.prompt" in options, "data.reward" in options
    reward = ("auto",) if other_prompt and not other_reward else resolve_reward_names(data)
    # The run's options and system message belong to its own prompt and reward.
    if (other_prompt or other_reward) and "data.reward_options" not in options:
        data = replace(data, reward_options=())
    if other_prompt and "data.prompt_options" not in options:
        data = replace(data, prompt_options=())
    if other_prompt and "data.system_prompt" not in options:
        data = replace(data, system_prompt="")
    return replace(settings, data=replace(data, reward=reward))


def _require_single_phase(settings: Settings | PipelineSettings) -> Settings:
    return settings.phases()[-1] if isinstance(settings, PipelineSettings) else settings
