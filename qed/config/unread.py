"""Finds settings that are set but have no effect, such as a clip for a surrogate that has none."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from qed.config.field_names import find_shown_names, flatten_fields
from qed.config.fields import read_default
from qed.config.phases import PhaseSettings, PipelineSettings, Settings
from qed.config.resolve import DEFAULT
from qed.config.reward_names import parse_reward
from qed.config.settings import DataSettings
from qed.config.values import COMMAND_LINE

ADAPTERS = ("lora_alpha", "lora_targets")  # settings that only a rank above 0 uses


def describe_unread(settings: Settings | PipelineSettings, origins: Mapping[str, str]) -> list[str]:
    """Describe settings that are set but have no effect: of algorithms, of another prompt, of adapters, of a phase.

    A file may list every setting, as a run's does, so only its values that differ from the defaults count.

    Args:
        settings: settings of a command.
        origins: origin of each setting by its path.

    Returns:
        One sentence for each.
    """
    pipeline = settings if isinstance(settings, PipelineSettings) else None
    phases: dict[str, Any] = {"sft.": pipeline.sft, "rl.": pipeline.rl} if pipeline else {"": settings}
    lines = []
    for prefix, phase in phases.items():
        lines += _describe_algorithm(f"{prefix}algorithm.", phase, origins)
        lines += _describe_prompt_options(f"{prefix}data.", phase.data, origins)
    for name in ADAPTERS:
        origin = origins.get(f"model.{name}", DEFAULT)
        if getattr(settings.model, name) and not settings.model.lora_rank and not origin.startswith(DEFAULT):
            lines.append(f"model.{name} ({origin}) has no effect with model.lora_rank 0: all weights are trained.")
    return [*lines, *_describe_skipped(pipeline, origins)] if pipeline else lines


def _describe_skipped(settings: PipelineSettings, origins: Mapping[str, str]) -> list[str]:
    """Describe the options of a skipped phase, but not those for both phases."""
    lines = []
    for phase, other, skipped in (("sft", "rl", settings.skip_sft), ("rl", "sft", settings.skip_rl)):
        own = [key for key, origin in origins.items() if key.startswith(f"{phase}.") and origin == COMMAND_LINE]
        alone = [key for key in own if origins.get(key.replace(phase, other, 1)) != COMMAND_LINE]
        lines += [f"{key} ({COMMAND_LINE}) has no effect with skip_{phase}." for key in alone if skipped]
    return lines


def _describe_prompt_options(prefix: str, data: DataSettings, origins: Mapping[str, str]) -> list[str]:
    """Describe the options of prompts that are neither the one in use nor a reward of the same name."""
    origin = origins.get(f"{prefix}prompt_options", DEFAULT)
    if data.prompt == "auto" or origin.startswith(DEFAULT):
        return []
    used = {data.prompt.replace("-", "_"), *(parse_reward(name).name for name in data.reward)}
    owners = {option: option.partition("=")[0].strip().rpartition(".")[0] for option in data.prompt_options}
    unused = [option for option, owner in owners.items() if owner.replace("-", "_") not in used]
    return [
        f"{prefix}prompt_options {option} ({origin}) has no effect with {prefix}prompt {data.prompt}."
        for option in unused
    ]


def _describe_algorithm(prefix: str, settings: Settings | PhaseSettings, origins: Mapping[str, str]) -> list[str]:
    algorithm = settings.algorithm
    values = flatten_fields(algorithm)
    shown = find_shown_names(values)
    lines = []
    for path, reason in algorithm.unread.items():
        origin = origins.get(prefix + path, DEFAULT)
        is_default = values[path] == _find_default(type(algorithm), path)
        if origin == COMMAND_LINE or not (origin.startswith(DEFAULT) or is_default):
            lines.append(f"{prefix}{shown[path]} ({origin}) has no effect with {prefix}{reason}.")
    return lines


def _find_default(kind: Any, path: str) -> Any:
    """Return the default of a dataclass field, which may be nested."""
    name, _, inner = path.partition(".")
    default = read_default(kind.__dataclass_fields__[name])
    return attrgetter(inner)(default) if inner else default
