"""Maps setting names to keys: every setting has a path of sections; those of algorithms' parts also have short names.

One of the names is the setting's key, shown in help, messages, origins and sweeps; settings.yaml and
settings.origin.json contain paths.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from qed.config.field_names import find_short_names, find_shown_names, flatten_fields
from qed.config.phases import PipelineSettings, Settings


def list_other_names(section: str, paths: Collection[str]) -> dict[str, str]:
    """Map every other name of an algorithm's settings to its key.

    Args:
        section: section of the algorithm, such as `rl.algorithm`.
        paths: paths of its settings within the section.
    """
    shown = find_shown_names(paths)
    names = shown | {name: shown[path] for name, path in find_short_names(paths).items()}
    return {f"{section}.{name}": f"{section}.{key}" for name, key in names.items() if name != key}


def map_names(settings: Settings | PipelineSettings) -> dict[str, str]:
    """Map every other name of the settings of an algorithm's parts to the key."""
    if isinstance(settings, PipelineSettings):
        algorithms = {"sft.algorithm": settings.sft.algorithm, "rl.algorithm": settings.rl.algorithm}
    else:
        algorithms = {"algorithm": settings.algorithm}
    return {
        name: key
        for section, algorithm in algorithms.items()
        for name, key in list_other_names(section, flatten_fields(algorithm)).items()
    }


def list_paths(settings: Settings | PipelineSettings) -> dict[str, str]:
    """Map the key of every setting to its path."""
    names = map_names(settings)
    return {names.get(path, path): path for path in flatten_fields(settings)}


def list_values(settings: Settings | PipelineSettings) -> dict[str, Any]:
    """Return the value of every setting by its key."""
    names = map_names(settings)
    return {names.get(path, path): value for path, value in flatten_fields(settings).items()}


def list_origins(settings: Settings | PipelineSettings, origins: Mapping[str, str]) -> dict[str, str]:
    """Return the origins of settings by path, from those by key."""
    paths = list_paths(settings)
    return {paths.get(key, key): origin for key, origin in origins.items()}


def flatten_tree(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by their dotted paths."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten_tree(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
