"""Read the settings of an untrusted run: a settings.yaml of bounded size, depth and number of values.

yaml's fast loader crashes the process on a deeply nested file, and a few aliases of aliases expand to a tree that fills
the memory of any code that walks it. So the tree is built here from the parser's events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

MOST_BYTES = 1_000_000
MOST_SLOW_BYTES = 50_000  # limit for yaml's slow loader, which takes half a second for it
DEEPEST = 40  # levels
MOST_VALUES = 50_000  # in the whole tree, counting repeated aliases
LONGEST_PLAIN = 100  # characters; a longer scalar is a string
RESOLVER: Any = yaml.resolver.Resolver()
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a file as nested dicts; empty if there is no file, or it has no settings.

    Raises:
        ValueError: the file is too large, too deep or not YAML, or has values other than texts, numbers and lists.
        OSError: it cannot be read.
    """
    if not path.exists():
        return {}
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is longer than {MOST_BYTES} bytes")
    text = content.decode("utf-8")
    try:
        tree = _Builder(LOADER(text)).build()
    except yaml.YAMLError as error:
        if len(content) > MOST_SLOW_BYTES:
            raise ValueError(str(error)) from error
        tree = _build_slowly(text)
    return tree if isinstance(tree, dict) else {}


def list_phases(settings: Mapping[str, Any]) -> list[Any]:
    """Return the settings of each phase of a run, in order; those of a single phase are the run's own."""
    if "method" in settings:
        return [settings]
    return [settings.get(name) for name in ("sft", "rl") if not settings.get(f"skip_{name}")]


def find_value(settings: Any, *names: str) -> Any:
    """Return the value at the end of a path through nested settings; None if there is none."""
    for name in names:
        settings = settings.get(name) if isinstance(settings, dict) else None
    return settings


def flatten_settings(
    settings: Mapping[Any, Any], deepest: int = DEEPEST, prefix: str = ""
) -> Iterator[tuple[str, Any]]:
    """Yield the values of nested settings by their dotted names; anything below `deepest` levels is one value."""
    for name, value in settings.items():
        if isinstance(value, dict) and value and deepest:
            yield from flatten_settings(value, deepest - 1, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _build_slowly(text: str) -> Any:
    """Build a tree with yaml's slow loader, which accepts half a surrogate pair, unlike the fast one."""
    try:
        return _Builder(yaml.SafeLoader(text)).build()
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


@lru_cache(4_096)
def _resolve_plain(text: str) -> Any:
    """Return the value of an unquoted scalar: a number, a boolean, None or a string."""
    tag = RESOLVER.resolve(yaml.ScalarNode, text, (True, False))
    return yaml.constructor.SafeConstructor().construct_object(yaml.ScalarNode(tag, text))


class _Builder:
    """Builds the tree of a document.

    Args:
        loader: yaml's loader of the text.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.count = 0
        self.anchors: dict[str | None, tuple[Any, int]] = {}  # the value, and how many values it has

    def build(self) -> Any:
        """Return the value of the first document; None if there is none."""
        try:
            while self.loader.check_event(yaml.StreamStartEvent, yaml.DocumentStartEvent):
                self.loader.get_event()
            return None if self.loader.check_event(yaml.StreamEndEvent) else self._build_value(0)
        finally:
            self.loader.dispose()

    def _build_value(self, depth: int) -> Any:
        event = self.loader.get_event()
        before = self.count
        self._add(1)
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        if isinstance(event, yaml.AliasEvent):
            value, count = self.anchors.get(event.anchor, (None, 0))
            self._add(count)
            return value
        if isinstance(event, yaml.ScalarEvent):
            value = self._build_scalar(event)
        elif isinstance(event, yaml.MappingStartEvent):
            value = self._build_mapping(depth)
        else:
            value = self._build_list(depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.count - before)
        return value

    def _build_scalar(self, event: Any) -> Any:
        is_plain = event.implicit[0] and event.tag is None and len(event.value) <= LONGEST_PLAIN
        return _resolve_plain(event.value) if is_plain else event.value

    def _build_mapping(self, depth: int) -> dict[Any, Any]:
        tree = {}
        while not self.loader.check_event(yaml.MappingEndEvent):
            key = self._build_value(depth + 1)
            value = self._build_value(depth + 1)
            tree[key if isinstance(key, str | int | float) else str(key)] = value
        self.loader.get_event()
        return tree

    def _build_list(self, depth: int) -> list[Any]:
        values = []
        while not self.loader.check_event(yaml.SequenceEndEvent):
            values.append(self._build_value(depth + 1))
        self.loader.get_event()
        return values

    def _add(self, count: int) -> None:
        self.count += count
        if self.count > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values")
