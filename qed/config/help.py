"""Formats the help of a training command: all of its settings, or the most used ones."""

from __future__ import annotations

import textwrap
import types
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin

from qed.config import plugins
from qed.config.arguments import Flags
from qed.config.fields import SHORTCUTS, Setting, Table, find_documentation
from qed.config.resolve import DEFAULT, Value, list_defaults
from qed.config.screens import format_heading, format_listing, format_options, read_width, wrap
from qed.config.training_commands import PIPELINES
from qed.config.values import format_value

PLACEHOLDERS = {
    "ranks": " COUNT",
    "cluster": " auto|HOST:PORT",
    "sweep": " KEY=V1,V2",
    "allow_change": " KEY,…",
    "config_name": " CONFIG",
}


def format_command_help(table: Table, everything: bool = False) -> str:
    """Format the help of a training command: its most used settings, or all of them."""
    values = list_defaults(table)
    parts = [
        textwrap.fill(f"qed {table.command}: {_describe_command(table)}", read_width(), subsequent_indent="  "),
        f"{format_heading('Usage')}\n  qed {table.command} [CONFIG…] [--section.setting VALUE …]\n"
        + wrap(
            "A CONFIG is a YAML file, or the name of one in ./configs or shipped with qed. A later one overrides "
            "an earlier one, and the command line overrides all. `section.setting=VALUE` is the same as the option."
            + _note_on_names(table)
        ),
    ]
    own = [name for name in table.sections if "algorithm" in name.split(".")]
    if everything:
        parts += [_format_section(table, name, values) for name in table.sections]
    else:
        parts.append(
            format_options(
                "Shortcuts", [_describe_shortcut(name, table, values) for name in SHORTCUTS if table.expand_key(name)]
            )
        )
        parts += [_format_section(table, name, values) for name in ("", *own)]
        others = {name: _read_first_line(owner) for name, owner in table.sections.items() if name and name not in own}
        parts.append(format_listing("Sections, listed by --help-all", others))
    parts.append(format_options("Flags", [_describe_flag(part.name) for part in fields(Flags)]))
    return "\n\n".join(filter(None, parts))


def _read_first_line(owner: type) -> str:
    return (owner.__doc__ or "").strip().split("\n", 1)[0]


def _describe_command(table: Table) -> str:
    if table.pipeline:
        return PIPELINES[table.command]
    shelf = plugins.list_leaves("algorithms")
    return shelf.get(table.methods[""]) or _read_first_line(table.sections["algorithm"])


def _note_on_names(table: Table) -> str:
    """Return a sentence about settings that also have a longer name; empty if there are none."""
    setting = next((setting for setting in table.settings.values() if setting.key != setting.path), None)
    if setting is None:
        return ""
    return f" A setting of a part of the algorithm may include the part's name: {setting.path} is {setting.key}."


def _format_section(table: Table, name: str, values: dict[str, Value]) -> str:
    inside = [setting for setting in table.settings.values() if setting.section == name]
    title = f"{name}: {_read_first_line(table.sections[name])}" if name else "Settings"
    return format_options(
        title, [(_format_option(setting.key, setting), _format_documentation(setting, values)) for setting in inside]
    )


def _describe_shortcut(name: str, table: Table, values: dict[str, Value]) -> tuple[str, str]:
    keys = table.expand_key(name)
    setting = table.settings[keys[-1]]
    return _format_option(name, setting), f"{' and '.join(keys)}: {_format_documentation(setting, values)}"


def _describe_flag(name: str) -> tuple[str, str]:
    return f"--{name.replace('_', '-')}{PLACEHOLDERS.get(name, '')}", find_documentation(Flags, name)


def _format_option(name: str, setting: Setting) -> str:
    name = name.replace("_", "-")
    return f"--[no-]{name}" if setting.kind is bool else f"--{name} {_choose_placeholder(setting.kind)}"


def _choose_placeholder(kind: Any) -> str:
    """Return the placeholder for a value in a usage line."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "|".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return "|".join("null" if part is type(None) else _choose_placeholder(part) for part in arguments)
    if origin in (tuple, list):
        return ",".join(_choose_placeholder(part) if part is not ... else "…" for part in arguments)
    return {bool: "true|false", int: "COUNT", float: "NUMBER"}.get(kind, "TEXT")


def _format_documentation(setting: Setting, values: dict[str, Value]) -> str:
    """Return a setting's help and default."""
    text = find_documentation(setting.owner, setting.field)
    if setting.default is MISSING:
        return f"{text} (required)"
    value, origin = values[setting.key].value, values[setting.key].origin
    default = format_value(value) + (f", by {origin.removeprefix(DEFAULT + ' of ')}" if origin != DEFAULT else "")
    return f"{text} (default: {default})"
