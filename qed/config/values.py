"""Converts text to values and back: a value in a YAML file or on a command line is parsed by the type of its field.

So `1e-6` is a number and `on` a boolean exactly if the field is one, regardless of YAML's rules.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

import yaml

from qed.config.yaml_text import compose_yaml
from qed.errors import UsageError, suggest_nearest

COMMAND_LINE = "command line"
TRUE = ("true", "yes", "on", "1")
FALSE = ("false", "no", "off", "0")
BEYOND = 2**64  # integers have 64 bits, signed or unsigned
# Texts that mean None for an optional setting; a YAML file must quote them for other settings.
NOTHING = ("null", "none", "~")
SHORT_SEQUENCE = "seq_"  # verl's prefix for choices that start with sequence_ here
YAML_NULLS = ("", "~", "null")
# Infinity as YAML writes it; Python's notation is accepted as well.
YAML_FLOATS = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf"}


@dataclass(frozen=True)
class Raw:
    """The text of a setting before its type is known, or a list of texts."""

    text: str = ""
    items: tuple[Raw, ...] | None = None
    plain: bool = True
    missing: bool = False
    origin: str = COMMAND_LINE

    def shown(self) -> str:
        """Return the value for an error message."""
        return repr(self.text) if self.items is None else "a list"


def read_node(node: yaml.Node, file: str = "", line: int | None = None) -> Raw:
    """Read a YAML scalar or list as text; `line` is the line of its key, if it has one."""
    origin = f"{file}:{line or node.start_mark.line + 1}" if file else COMMAND_LINE
    if isinstance(node, yaml.ScalarNode):
        plain = not node.style  # "" in libyaml, None in PyYAML
        return Raw(node.value, plain=plain, missing=plain and node.value.lower() in YAML_NULLS, origin=origin)
    if isinstance(node, yaml.SequenceNode):
        return Raw(items=tuple(read_node(item, file) for item in node.value), origin=origin)
    raise UsageError(f"{origin}: a list may contain only texts and numbers, not settings.")


def split_items(text: str) -> tuple[Raw, ...]:
    """Parse a list on the command line: JSON in brackets, or comma-separated texts."""
    if not text.startswith("["):
        return tuple(Raw(part.strip()) for part in text.split(",")) if text else ()
    try:
        node = compose_yaml(text)
    except yaml.YAMLError:
        node = None
    if not isinstance(node, yaml.SequenceNode):
        raise UsageError(f"{text} is not a list: a bracket, a comma or a quotation mark is missing.")
    return read_node(node).items or ()


def describe_type(kind: Any) -> str:
    """Describe a type in words, for error messages."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " or ".join("null" if part is type(None) else describe_type(part) for part in arguments)
    if origin in (tuple, list):
        several = {str: "texts", int: "whole numbers", float: "numbers"}.get(arguments[0], "values")
        return f"a list of {several}" if _is_open_ended(kind) else f"{len(arguments)} {several}"
    return {bool: "true or false", int: "a whole number", float: "a number"}.get(kind, "a text")


def is_list(kind: Any) -> bool:
    """Return whether a type is a list of any number of entries."""
    return get_origin(kind) in (tuple, list) and _is_open_ended(kind)


def _is_open_ended(kind: Any) -> bool:
    """Return whether a list type accepts any number of entries."""
    return get_origin(kind) is list or get_args(kind)[-1] is ...


def coerce_value(raw: Raw, kind: Any) -> Any:
    """Convert a text to a type; raise a ValueError that says what the setting must be."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _coerce_optional(raw, kind)
    if raw.missing:
        empty = "[]" if origin in (tuple, list) else '""' if kind is str else ""
        hint = f"write {empty} for an empty one" if empty else "leave it out for the default"
        raise ValueError(f"must be {describe_type(kind)}; {hint}.")
    if origin in (tuple, list):
        return _coerce_sequence(raw, kind)
    if raw.items is not None:
        raise ValueError(f"must be {describe_type(kind)}, not a list.")
    value = _coerce_choice(raw, kind) if origin is Literal else _coerce_scalar(raw, kind)
    if kind is int and not -BEYOND // 2 <= value < BEYOND:
        raise ValueError(f"must be a whole number of at most 64 bits, not {raw.text}.")
    return value


def _coerce_optional(raw: Raw, kind: Any) -> Any:
    parts = get_args(kind)
    nothing = raw.missing or (raw.items is None and raw.plain and raw.text.lower() in NOTHING)
    if nothing and type(None) in parts:
        return None
    # Every value is a valid text, so text is tried last.
    for part in sorted((part for part in parts if part is not type(None)), key=lambda part: part is str):
        try:
            return coerce_value(raw, part)
        except ValueError:
            continue
    raise ValueError(f"must be {describe_type(kind)}, not {raw.shown()}.")


def _coerce_sequence(raw: Raw, kind: Any) -> Any:
    arguments = get_args(kind)
    # A quoted text in a YAML file is one entry even if it contains a comma.
    items = raw.items if raw.items is not None else split_items(raw.text) if raw.plain else (raw,)
    if _is_open_ended(kind):
        return (get_origin(kind) or tuple)(coerce_value(item, arguments[0]) for item in items)
    if len(items) != len(arguments):
        raise ValueError(f"must be {describe_type(kind)}, not {len(items)}.")
    return tuple(coerce_value(item, part) for item, part in zip(items, arguments, strict=True))


def _coerce_choice(raw: Raw, kind: Any) -> Any:
    choices = {str(choice): choice for choice in get_args(kind)}
    if raw.text.startswith(SHORT_SEQUENCE) and f"sequence_{raw.text.removeprefix(SHORT_SEQUENCE)}" in choices:
        return choices[f"sequence_{raw.text.removeprefix(SHORT_SEQUENCE)}"]
    if raw.text not in choices:
        raise ValueError(f"must be {describe_type(kind)}, not {raw.text!r}.{suggest_nearest(raw.text, choices)}")
    return choices[raw.text]


def _coerce_scalar(raw: Raw, kind: Any) -> Any:
    text = raw.text.strip()
    try:
        if kind is bool:
            return (*TRUE, *FALSE).index(text.lower()) < len(TRUE)
        if kind is int:
            return int(text)
        if kind is float:
            number = float(YAML_FLOATS.get(text.lower(), text))
            if math.isnan(number):
                raise ValueError("NaN is not valid for any setting")
            return number
    except ValueError as error:
        hint = _suggest_integer(text) if kind is int else ""
        raise ValueError(f"must be {describe_type(kind)}, not {raw.text!r}.{hint}") from error
    return raw.text


def _suggest_integer(text: str) -> str:
    """Return a hint for an integer written like 1e5 or 8.0."""
    try:
        number = float(text)
    except ValueError:
        return ""
    return f" Did you mean {int(number)}?" if number.is_integer() else ""


def format_value(value: Any) -> str:
    """Format a value on one line, as in a configuration."""
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(map(format_value, value)) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) and value and value.isprintable() else repr(value).replace("''", '""')


class _Dumper(yaml.SafeDumper):
    """YAML dumper that writes lists on one line, and quotes words that an optional setting would read as None."""


def _write_list(dumper: yaml.SafeDumper, value: tuple[Any, ...] | list[Any]) -> yaml.Node:
    return dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)


def _write_text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    # Only double-quoted YAML escapes line breaks and invisible characters.
    style = '"' if value.lower() in NOTHING or not value.isprintable() else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(tuple, _write_list)
_Dumper.add_representer(list, _write_list)
_Dumper.add_representer(str, _write_text)


def dump_settings(settings: Any) -> str:
    """Format settings as the text of a YAML file; reading it returns equal settings."""
    return dump_tree(build_tree(settings))


def dump_tree(tree: Mapping[str, Any]) -> str:
    """Format nested settings as the text of a YAML file."""
    # The large width keeps a long text on the line of its key.
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000_000)


def build_tree(settings: Any) -> dict[str, Any]:
    """Convert settings to nested dicts, in the order of their fields."""
    parts = {part.name: getattr(settings, part.name) for part in fields(settings)}
    return {name: build_tree(value) if is_dataclass(value) else value for name, value in parts.items()}
