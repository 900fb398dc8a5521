"""Maps short names to paths: an algorithm's setting has a path, such as `surrogate.clip_high`, and often a short name.

The short name of a setting in a part is the last word of its path (`clip_high`); a part's `kind` has the name
of the part (`surrogate`). A short name is valid if it is unambiguous; a field of the algorithm itself takes
precedence over the fields of its parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

Settings = TypeVar("Settings")

# Short names of settings whose last word is unclear without the part.
ALIASES = {
    "correction.low": "correction_low",
    "correction.high": "correction_high",
    "correction.normalize": "correction_normalize",
}
# Parts of every policy gradient; help, messages and records show their settings by short names.
SHOWN_SHORT = frozenset({"advantage", "surrogate", "correction", "regularizer", "selection"})


def find_short_names(paths: Collection[str]) -> dict[str, str]:
    """Map each valid short name to its path, among all paths of an algorithm."""
    candidates: dict[str, list[str]] = {}
    for path in paths:
        if "." in path:
            candidates.setdefault(_shorten(path), []).append(path)
    return {name: matches[0] for name, matches in candidates.items() if len(matches) == 1 and name not in paths}


def find_shown_names(paths: Collection[str]) -> dict[str, str]:
    """Map each path to the name that help, messages and records show."""
    short = {path: name for name, path in find_short_names(paths).items()}
    return {path: short.get(path, path) if path.partition(".")[0] in SHOWN_SHORT else path for path in paths}


def find_shadowed(paths: Collection[str], own: Iterable[str]) -> dict[str, str]:
    """Map each name of the algorithm itself that hides a setting of a shown part to the hidden path."""
    hidden = {_shorten(path): path for path in paths if path.partition(".")[0] in SHOWN_SHORT and "." in path}
    return {name: hidden[name] for name in (*paths, *own) if name in hidden}


def flatten_fields(settings: Any) -> dict[str, Any]:
    """Return all values of nested dataclasses by path."""
    values: dict[str, Any] = {}
    for part in fields(settings):
        value = getattr(settings, part.name)
        if is_dataclass(value):
            values |= {f"{part.name}.{path}": inner for path, inner in flatten_fields(value).items()}
        elif part.init:
            values[part.name] = value
    return values


def replace_fields(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return a copy with new values by path or short name; every part is validated once."""
    current = flatten_fields(settings)
    short = find_short_names(current)
    outer: dict[str, Any] = {}
    inner: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        path = name if is_dataclass(value) else short.get(name, name)
        part, _, rest = path.partition(".")
        if isinstance(current.get(path), tuple) and not isinstance(value, tuple):
            # Checkpoints store values as JSON, which has no tuples; a single value means a tuple of one element.
            value = tuple(value) if isinstance(value, list) else (value,)
        if rest:
            inner.setdefault(part, {})[rest] = value
        else:
            outer[part] = value
    outer |= {part: replace_fields(outer.get(part, getattr(settings, part)), new) for part, new in inner.items()}
    return replace(settings, **outer)  # type: ignore[type-var]


def changed_fields(now: Any, before: Any) -> dict[str, Any]:
    """Return the values of `now` that differ from those of `before`, by path; `replace_fields` accepts the result."""
    old = flatten_fields(before)
    return {path: value for path, value in flatten_fields(now).items() if value != old[path]}


def _shorten(path: str) -> str:
    parts = path.split(".")
    return ALIASES.get(path) or (parts[-2] if parts[-1] == "kind" else parts[-1])
