"""Parses the command line: settings as `--a.b v`, `--a.b=v` or `a.b=v`, configurations, and flags."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from qed.config.fields import SHORTCUTS, Table
from qed.config.layers import SUFFIXES, Entry
from qed.config.names import explain_repetition, suggest
from qed.config.values import FALSE, TRUE, Raw, is_list
from qed.errors import UsageError

ASSIGNMENT = re.compile(r"[A-Za-z_][\w.-]*=")
NUMBER = re.compile(r"-(\.?\d|inf|nan)")


@dataclass(frozen=True)
class Flags:
    """Flags of a command line; the string under a field is its help."""

    resume: bool = False
    """Resume the run in the folder --out."""
    requeue: bool = False
    """Resume the run in --out, or start it if there is none: for jobs restarted with the same command."""
    allow_change: tuple[str, ...] = ()
    """With --resume, allow these settings to change; data.tasks also allows the problems themselves to change."""
    fast: bool = False
    """With --resume, compare only the sizes of a checkpoint's files, not their checksums."""
    overwrite: bool = False
    """Replace the run in the folder --out."""
    dry_run: bool = False
    """Check the settings and the data, and print what the run would do; load no weights and train nothing."""
    ranks: int = 1
    """Train with this many processes on this machine, one per GPU; torchrun and srun start the processes themselves."""
    cluster: str = ""
    """Train on a Ray cluster: auto for that of this machine, or HOST:PORT of its head node; needs qed[ray]."""
    sweep: tuple[str, ...] = ()
    """Start one run per value; if repeated, one per combination."""
    config_name: str = ""
    """A configuration, as without the option's name."""
    json: bool = False
    """Print the result as one line of JSON, as the last line of stdout."""
    allow_user_code: bool = False
    """Allow YAML files to name code outside of qed, which is then executed."""
    debug: bool = False
    """Also print the traceback of an error."""
    help: bool = False
    """Print the short help."""
    help_all: bool = False
    """Print every setting."""


FLAGS = tuple(flag.name for flag in fields(Flags))
# Flags with a value, and the list that collects it.
TAKING = {
    "ranks": "ranks",
    "cluster": "cluster",
    "sweep": "sweep",
    "allow_change": "allow_change",
    "config_name": "configs",
}


@dataclass
class ParsedLine:
    """Parsed parts of a command line, in the order of its arguments."""

    configs: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    flags: set[str] = field(default_factory=set)
    ranks: list[str] = field(default_factory=list)
    cluster: list[str] = field(default_factory=list)
    sweep: list[str] = field(default_factory=list)
    allow_change: list[str] = field(default_factory=list)


def parse_arguments(arguments: Sequence[str], table: Table) -> tuple[list[str], list[Entry], Flags]:
    """Return the configurations, settings and flags of a command line; names of settings are not checked.

    Raises:
        UsageError: the command line is invalid, or sets a list twice.
    """
    line, rest = ParsedLine(), list(arguments)
    while rest:
        _take_argument(rest, table, line)
    _refuse_repeated_lists(line.entries, table)
    if len({"resume", "requeue", "overwrite"} & line.flags) > 1:
        raise UsageError("--resume and --requeue continue a run, but --overwrite replaces it. Use only one of them.")
    if not {"resume", "requeue"} & line.flags and ("fast" in line.flags or line.allow_change):
        raise UsageError("--allow-change and --fast apply only to a resumed run. Add --resume, or remove them.")
    flags = Flags(**dict.fromkeys(line.flags, True))  # type: ignore[arg-type]
    allowed = _expand_names(line.allow_change, table)
    ranks, cluster = _parse_ranks(line.ranks), line.cluster[-1] if line.cluster else ""
    flags = replace(flags, ranks=ranks, cluster=cluster, sweep=tuple(line.sweep), allow_change=allowed)
    return line.configs, line.entries, flags


def _refuse_repeated_lists(entries: Sequence[Entry], table: Table) -> None:
    """Reject two options for one list: the second would silently replace the first, but both are probably meant."""
    given: dict[tuple[str, ...], Entry] = {}
    for entry in entries:
        names = table.expand_key(entry.key)
        if not names or not is_list(table.settings[names[0]].kind):
            continue
        before = given.setdefault(names, entry)
        if before is not entry:
            raise UsageError(explain_repetition(before.shown, entry.shown, "=" in before.raw.text))


def drop_settings(arguments: Sequence[str], keys: Collection[str], table: Table) -> list[str]:
    """Return a valid command line without these settings and their values; `keys` may be any names of settings."""
    dropped = {table.expand_key(key) for key in keys}
    kept, rest = [], list(arguments)
    while rest:
        before, line = list(rest), ParsedLine()
        _take_argument(rest, table, line)
        if not any(table.expand_key(entry.key) in dropped for entry in line.entries):
            kept += before[: len(before) - len(rest)]
    return kept


def drop_flags(arguments: Sequence[str], *names: str) -> list[str]:
    """Return a valid command line without these flags and their values."""
    kept, rest = [], list(arguments)
    while rest:
        argument = rest.pop(0)
        name, equals, _ = argument.partition("=")
        key = _normalize_key(name.removeprefix("--"))
        if not argument.startswith("--") or key not in names:
            kept.append(argument)
        elif key in TAKING and not equals:
            rest.pop(0)
    return kept


def _parse_ranks(texts: Sequence[str]) -> int:
    """Return the number of processes from the last `--ranks`; 1 by default."""
    text = texts[-1] if texts else "1"
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise UsageError(f"--ranks {text} is not a number of processes; it must be 1 or more.")
    return int(text)


def _expand_names(names: Sequence[str], table: Table) -> tuple[str, ...]:
    """Return the full names of comma-separated settings, which may have any of their names."""
    expanded: dict[str, None] = {}
    for name in ",".join(names).split(",") if names else ():
        full = table.expand_key(_normalize_key(name.strip()))
        if not full:
            raise UsageError(
                f"--allow-change {name} is not a setting of qed {table.command}.{suggest(_normalize_key(name), table)}"
            )
        expanded |= dict.fromkeys(full)
    return tuple(expanded)


def _take_argument(rest: list[str], table: Table, line: ParsedLine) -> None:
    """Parse the first argument of `rest`, and remove it and its value."""
    argument = rest.pop(0)
    if argument == "-h":
        line.flags.add("help")
    elif argument.startswith("--"):
        _take_option(argument, rest, table, line)
    elif argument.startswith(("-", "+")):
        raise UsageError(_explain_misplaced_sign(argument, table))
    elif ASSIGNMENT.match(argument) and not _is_file(argument):
        name, _, value = argument.partition("=")
        line.entries.append(Entry(_normalize_key(name), Raw(value), name))
    else:
        line.configs.append(argument)


def _take_option(argument: str, rest: list[str], table: Table, line: ParsedLine) -> None:
    """Parse an argument that starts with two dashes, and take its value from the next argument if needed."""
    name, equals, value = argument.partition("=")
    key = _normalize_key(name[2:])
    if key in TAKING:
        getattr(line, TAKING[key]).append(value if equals else _take_value(name, rest))
    elif key in FLAGS:
        if equals:
            raise UsageError(f"{name} takes no value.")
        line.flags.add(key)
    else:
        if not equals:
            key, value = _take_setting(name, key, rest, table)
        line.entries.append(Entry(key, Raw(value), name))


def _take_setting(name: str, key: str, rest: list[str], table: Table) -> tuple[str, str]:
    """Return the key and value of a setting without an equals sign; the value is a switch's or the next argument.

    Unknown names are reported later, with or without a value after them.
    """
    if key.startswith("no_") and table.is_switch(key[3:]):
        return key[3:], "false"
    if table.is_switch(key):
        return key, rest.pop(0) if rest and rest[0].lower() in (*TRUE, *FALSE) else "true"
    has_value = table.expand_key(key) or (rest and _is_value(rest[0]))
    return key, _take_value(name, rest) if has_value else ""


def _take_value(name: str, rest: list[str]) -> str:
    if not rest or (rest[0].startswith("-") and not NUMBER.match(rest[0])):
        raise UsageError(f"{name} needs a value after it.")
    return rest.pop(0)


def _is_value(argument: str) -> bool:
    """Return whether an argument after an unknown name is its value, not a configuration or the next option."""
    return not (argument.startswith("--") or ASSIGNMENT.match(argument) or argument.endswith(SUFFIXES))


def _is_file(argument: str) -> bool:
    """Return whether an argument with an equals sign is a file, as in a sweep's folder named lr=1e-6,seed=0."""
    return argument.endswith(SUFFIXES) and Path(argument).is_file()


def _normalize_key(name: str) -> str:
    return name.replace("-", "_")


def list_proposals(table: Table) -> list[str]:
    """Return the names of flags and shortcuts that a mistyped option may mean."""
    return [name.replace("_", "-") for name in FLAGS] + [name for name in SHORTCUTS if table.expand_key(name)]


def _explain_misplaced_sign(argument: str, table: Table) -> str:
    name = argument.lstrip("-+")
    if argument.startswith("+"):
        return f"{argument}: write {name} without the plus; qed has no settings to add."
    key = _normalize_key(name.partition("=")[0])
    exists = table.expand_key(key) or key in FLAGS
    hint = f" Did you mean '--{name}'?" if exists else suggest(key, table, list_proposals(table), "--")
    return f"{argument} is not an option; options start with two dashes.{hint}"
