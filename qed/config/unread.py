"""Finds settings that are set but have no effect, such as a clip for a surrogate that has none."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from qed.config.field_names import find_shown_names, flatten_fields
from qed.config.fields import read_default
from qed.config.phases import PhaseSettings, PipelineSettings, Settings
from qed.config.resolve import DEFAULT
from qed.config.values import COMMAND_LINE


def describe_unread(settings: Settings | PipelineSettings, origins: Mapping[str, str]) -> list[str]:
    """Describe settings that are set but have no effect: those of algorithms, and of a skipped phase.

    A file may list every setting, as a run's does, so only its values that differ from the defaults count.

    Args:
        settings: settings of a command.
        origins: origin of each setting by its path.

    Returns:
        One sentence for each.
    """
    if isinstance(settings, Settings):
        return _describe_phase("algorithm.", settings, origins)
    phases = ("sft.algorithm.", settings.sft), ("rl.algorithm.", settings.rl)
    lines = [line for prefix, phase in phases for line in _describe_phase(prefix, phase, origins)]
    return [*lines, *_describe_skipped(settings, origins)]


def _describe_skipped(settings: PipelineSettings, origins: Mapping[str, str]) -> list[str]:
    """Describe the options of a skipped phase, but not those for both phases."""
    lines = []
    for phase, other, skipped in (("sft", "rl", settings.skip_sft), ("rl", "sft", settings.skip_rl)):
        own = [key for key, origin in origins.items() if key.startswith(f"{phase}.") and origin == COMMAND_LINE]
        alone = [key for key in own if origins.get(key.replace(phase, other, 1)) != COMMAND_LINE]
        lines += [f"{key} ({COMMAND_LINE}) has no effect with skip_{phase}." for key in alone if skipped]
    return lines


def _describe_phase(prefix: str, settings: Settings | PhaseSettings, origins: Mapping[str, str]) -> list[str]:
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
