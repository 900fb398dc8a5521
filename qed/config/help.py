"""Format the help screens and aligned tables: plain text, with bold headings on a terminal."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import types
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from typing import Any, Literal, Union, get_args, get_origin

import qed
from qed.config import plugins
from qed.config.arguments import Flags
from qed.config.fields import SHORTCUTS, Setting, Table, find_documentation
from qed.config.resolve import DEFAULT, Value, list_defaults
from qed.config.values import format_value

COMMANDS = {
    "quickstart": "Train a small model from scratch by SFT and RL on this machine, and write a report.",
    "pipeline": "Run SFT, then RL, as one run with one report.",
}
EXAMPLES = (
    "qed quickstart",
    "qed grpo --model Qwen/Qwen2.5-0.5B --tasks train.jsonl --steps 100 --out runs/first",
    "qed grpo runs/first/settings.yaml --lr 5e-7 --out runs/second",
)
PLACEHOLDERS = {
    "ranks": " COUNT",
    "cluster": " auto|HOST:PORT",
    "sweep": " KEY=V1,V2",
    "allow_change": " KEY,…",
    "config_name": " CONFIG",
}
MARGIN = 36  # Rightmost column at which an option's help starts; the help of longer options is on the next line.


def format_overview() -> str:
    """Format the help of qed as a whole, on one screen."""
    methods = {name.replace("_", "-"): line for name, line in plugins.list_leaves("algorithms").items()}
    parts = [
        f"qed {qed.__version__}: trains language models to reason, and measures the improvement.",
        _format_heading("Usage") + "\n  qed COMMAND [CONFIG…] [--section.setting VALUE …]",
        _format_listing("Train", COMMANDS | methods),
        _format_listing(
            "Look", {name.replace("_", "-"): line for name, line in plugins.list_leaves("commands").items()}
        ),
        _format_heading("Examples") + "".join(f"\n  {example}" for example in EXAMPLES),
        "`qed COMMAND --help` explains a command, `qed COMMAND --help-all` lists all of its settings.\n"
        "`qed --completion bash|zsh|fish` prints a script that completes commands, options and values.",
    ]
    return "\n\n".join(parts)


def format_command_help(table: Table, everything: bool = False) -> str:
    """Format the help of a training command: its most used settings, or all of them."""
    values = list_defaults(table)
    parts = [
        textwrap.fill(f"qed {table.command}: {_describe_command(table)}", _read_width(), subsequent_indent="  "),
        f"{_format_heading('Usage')}\n  qed {table.command} [CONFIG…] [--section.setting VALUE …]\n"
        + _wrap(
            "A CONFIG is a YAML file, or a name from ./configs or from those that come with qed. A later one overrides "
            "an earlier one, and the command line overrides all. `section.setting=VALUE` is the same as the option."
            + _note_on_names(table)
        ),
    ]
    own = [name for name in table.sections if "algorithm" in name.split(".")]
    if everything:
        parts += [_format_section(table, name, values) for name in table.sections]
    else:
        parts.append(
            _format_options(
                "Shortcuts", [_describe_shortcut(name, table, values) for name in SHORTCUTS if table.expand_key(name)]
            )
        )
        parts += [_format_section(table, name, values) for name in ("", *own)]
        others = {name: _read_first_line(owner) for name, owner in table.sections.items() if name and name not in own}
        parts.append(_format_listing("Sections, listed by --help-all", others))
    parts.append(_format_options("Flags", [_describe_flag(part.name) for part in fields(Flags)]))
    return "\n\n".join(filter(None, parts))


def format_columns(rows: Iterable[Sequence[str]]) -> str:
    """Format rows of cells as aligned text; the last cell is not padded."""
    table = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join(line.rstrip() for line in lines)


def _read_width() -> int:
    return max(60, min(shutil.get_terminal_size().columns, 110))


def _format_heading(text: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain else f"\x1b[1m{text}\x1b[0m"


def _read_first_line(owner: type) -> str:
    return (owner.__doc__ or "").strip().split("\n", 1)[0]


def _describe_command(table: Table) -> str:
    if table.pipeline:
        return COMMANDS[table.command]
    shelf = plugins.list_leaves("algorithms")
    return shelf.get(table.methods[""]) or _read_first_line(table.sections["algorithm"])


def _wrap(text: str, margin: int = 2) -> str:
    return textwrap.fill(text, _read_width(), initial_indent=" " * margin, subsequent_indent=" " * margin)


def _format_listing(title: str, lines: dict[str, str]) -> str:
    """Format names with one line of help each, cut at the width of the terminal."""
    margin = max(len(name) for name in lines) + 4
    rows = (
        f"  {name:{margin - 2}}{textwrap.shorten(line, _read_width() - margin, placeholder=' …')}"
        for name, line in lines.items()
    )
    return "\n".join([_format_heading(title), *rows])


def _format_options(title: str, options: Sequence[tuple[str, str]]) -> str:
    """Format options with their help to the right, or on the next line if the option is long."""
    lines = [_format_heading(title)] if options else []
    margin = max((len(option) + 4 for option, _ in options if len(option) + 4 <= MARGIN), default=MARGIN)
    for option, text in options:
        block = _wrap(text, margin)
        fits = len(option) + 4 <= margin
        lines.append(f"  {option:{margin - 2}}{block[margin:]}" if fits else f"  {option}\n{block}")
    return "\n".join(lines)


def _note_on_names(table: Table) -> str:
    """Return a sentence about settings that also have a longer name; empty if there are none."""
    setting = next((setting for setting in table.settings.values() if setting.key != setting.path), None)
    if setting is None:
        return ""
    return f" A setting of a part of the algorithm may be given with the part's name: {setting.path} is {setting.key}."


def _format_section(table: Table, name: str, values: dict[str, Value]) -> str:
    inside = [setting for setting in table.settings.values() if setting.section == name]
    title = f"{name}: {_read_first_line(table.sections[name])}" if name else "Settings"
    return _format_options(
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
    """Return the placeholder of a value in a usage line."""
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
        return f"{text} (must be given)"
    value, origin = values[setting.key].value, values[setting.key].origin
    default = format_value(value) + (f", by {origin.removeprefix(DEFAULT + ' of ')}" if origin != DEFAULT else "")
    return f"{text} (default: {default})"
