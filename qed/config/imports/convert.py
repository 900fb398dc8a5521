"""Converts another system's settings into a configuration of qed by the system's table, and checks the result."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qed.config.fields import build_table
from qed.config.imports.rules import Draft, Options, Row
from qed.config.values import dump_tree, format_value
from qed.errors import UsageError, suggest_nearest

SYSTEMS = {
    "trl": "trl",
    "open-r1": "open_r1",
    "verl": "verl",
    "llama-factory": "llama_factory",
    "axolotl": "axolotl",
}
LUFFY = {"luffy": "verl", "exgrpo": "verl"}  # their scripts are verl's with more options
WITHOUT_TABLE = ("openrlhf", "ms-swift", "nemo-rl", "prime-rl", "easyr1")  # are not misspellings of the names above
SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Imported:
    """A converted configuration: its command, its YAML text, a row per setting, and further options."""

    title: str
    command: str
    text: str
    rows: list[Row]
    arguments: tuple[str, ...]


def load_system(name: str) -> Any:
    """Return the table of a system.

    Raises:
        UsageError: there is no table of that name.
    """
    known = {**SYSTEMS, **LUFFY}
    key = name.lower().replace("_", "-").replace("openr1", "open-r1").replace("llamafactory", "llama-factory")
    if key not in known:
        hint = "" if key in WITHOUT_TABLE else suggest_nearest(key, known)
        raise UsageError(f"qed cannot import from '{name}'.{hint} It can import from: {', '.join(known)}.")
    return importlib.import_module(f"qed.config.imports.{known[key]}")


def convert_options(system: Any, given: dict[str, Any]) -> Imported:
    """Convert settings.

    Args:
        system: the module with the system's table, see `load_system`.
        given: settings by dotted name.

    Raises:
        UsageError: the method has no counterpart, or a required number cannot be read.
    """
    options = Options(dict(given))
    method = system.choose_method(options)
    defaults: Mapping[str, Any] = system.DEFAULTS.get(method, system.DEFAULTS.get("", {}))
    chose = {name for name in options.read if name in options.given}
    draft = Draft(build_table(method, {"": method}), Options(options.given, defaults, options.read))
    system.derive(draft, method)
    done = {name for row in draft.rows for name in row.theirs.split(",")}
    for name in sorted({*options.given, *defaults}):
        rule = next((rule for rule in system.RULES if rule.covers(name)), None)
        if name in done:
            continue
        if rule is not None and (name in options.given or rule.ours):
            draft.apply(rule, name)
        elif options.given.get(name) is not None and name not in draft.options.read:
            draft.skip(name, f"unknown to the table of {system.TITLE}")
    if "model.name" not in draft.values:
        draft.arguments[:0] = ["--model", "MODEL"]
    rows = [*draft.rows, *_list_others(draft, chose)]
    return Imported(system.TITLE, method, _write(draft, system.TITLE), rows, tuple(draft.arguments))


def _list_others(draft: Draft, chose: set[str]) -> Iterator[Row]:
    """Yield a row for each setting that was handled together with another, and for those that chose the command."""
    given, told = draft.options.given, {row.theirs.partition(",")[0] for row in draft.rows}
    for row in draft.rows:
        first, *others = row.theirs.split(",")
        for name in others:
            if name in given and name not in told:
                told.add(name)
                yield Row(name, given[name], row.ours, row.result, f"with {first}" if row.ours else row.note)
    for name in sorted(chose - told):
        yield Row(name, given[name], "command", draft.table.command.replace("_", "-"), "")


def _write(draft: Draft, title: str) -> str:
    """Return the configuration as YAML, its settings in qed's order."""
    tree: dict[str, Any] = {}
    for key in draft.table.settings:
        if key in draft.values:
            *sections, last = key.split(".")
            inner = tree
            for section in sections:
                inner = inner.setdefault(section, {})
            inner[last] = draft.values[key]
    command = draft.table.command.replace("_", "-")
    return f"# Imported from {title}, for qed {command}\n" + dump_tree(tree)


def list_rows(imported: Imported) -> list[tuple[str, str, str, str]]:
    """Return the table's cells: the other system's setting, its value, the result in qed, and a note."""
    cells = []
    for row in sorted(imported.rows, key=lambda row: (not row.ours, row.theirs)):
        result = f"{row.ours}: {format_value(row.result)}" if row.ours else "no equivalent"
        cells.append((row.theirs.partition(",")[0], _shorten(row.value), result, row.note))
    return cells


def _shorten(value: Any) -> str:
    text = " ".join(format_value(value).split()) if value is not None else ""
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 1]}…"


def suggest_command(imported: Imported, out: Path | None) -> str:
    """Return the command that runs the configuration."""
    name = str(out) if out else "FILE.yaml"
    return " ".join(["qed", imported.command.replace("_", "-"), name, *imported.arguments])
