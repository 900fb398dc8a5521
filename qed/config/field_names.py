"""Names of an algorithm's settings: each has a path, such as `surrogate.clip_high`, and most have a short name.

The short name of a setting in a part is the last word of its path (`clip_high`), that of a part's `kind` is the part's
own name (`surrogate`). A short name is valid where it means one setting alone; a field of the algorithm itself comes
before those of its parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

Settings = TypeVar("Settings")

# Short names of settings whose last word says too little without the part.
ALIASES = {
    "correction.low": "correction_low",
    "correction.high": "correction_high",
    "correction.normalize": "correction_normalize",
}
# Parts of every policy gradient; help, messages and records show their settings by short names.
SHOWN_SHORT = frozenset({"advantage", "surrogate", "correction", "regularizer", "selection"})


def find_short_names(paths: Collection[str]) -> dict[str, str]:
    """Map each valid short name to the path that it means, among all paths of an algorithm."""
    found: dict[str, list[str]] = {}
    for path in paths:
        if "." in path:
            found.setdefault(_shorten(path), []).append(path)
    return {name: means[0] for name, means in found.items() if len(means) == 1 and name not in paths}


def find_shown_names(paths: Collection[str]) -> dict[str, str]:
    """Map each path to the name that help, messages and records show."""
    short = {path: name for name, path in find_short_names(paths).items()}
    return {path: short.get(path, path) if path.partition(".")[0] in SHOWN_SHORT else path for path in paths}


def find_shadowed(paths: Iterable[str]) -> dict[str, str]:
    """Map each field of an algorithm itself that hides a setting of a shown part to the path that it hides."""
    paths = list(paths)
    hidden = {_shorten(path): path for path in paths if path.partition(".")[0] in SHOWN_SHORT and "." in path}
    return {name: hidden[name] for name in paths if name in hidden}


def flatten_fields(settings: Any) -> dict[str, Any]:
    """Return all values of nested dataclasses by path."""
    found: dict[str, Any] = {}
    for part in fields(settings):
        value = getattr(settings, part.name)
        if is_dataclass(value):
            found |= {f"{part.name}.{path}": inner for path, inner in flatten_fields(value).items()}
        elif part.init:
            found[part.name] = value
    return found


def replace_fields(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return a copy with other values, each given by path or short name; every part is checked once."""
    known = flatten_fields(settings)
    short = find_short_names(known)
    own: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        path = name if is_dataclass(value) else short.get(name, name)
        part, _, rest = path.partition(".")
        if isinstance(known.get(path), tuple) and not isinstance(value, tuple):
            # JSON, in which a checkpoint keeps values, has no tuples; one value alone stands for a tuple of it.
            value = tuple(value) if isinstance(value, list) else (value,)
        if rest:
            inner.setdefault(part, {})[rest] = value
        else:
            own[part] = value
    own |= {part: replace_fields(own.get(part, getattr(settings, part)), given) for part, given in inner.items()}
    return replace(settings, **own)  # type: ignore[type-var]


def changed_fields(now: Any, before: Any) -> dict[str, Any]:
    """Return the values of `now` that differ from those of `before`, by path; `replace_fields` puts them back."""
    then = flatten_fields(before)
    return {path: value for path, value in flatten_fields(now).items() if value != then[path]}


def _shorten(path: str) -> str:
    parts = path.split(".")
    return ALIASES.get(path) or (parts[-2] if parts[-1] == "kind" else parts[-1])
