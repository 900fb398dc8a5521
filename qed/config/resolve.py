"""Settings from their layers: defaults, the algorithm's defaults, YAML files from left to right, the command line.

Every value keeps its origin, and every error names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.config.arguments import Flags, list_proposals, parse_arguments
from qed.config.fields import PHASES, PIPELINES, Setting, Table, build_table, resolve_algorithm_name
from qed.config.layers import Entry, Layer, find_config, find_shipped_configs, read_layers
from qed.config.names import format_name, suggest
from qed.config.phases import PipelineSettings, Settings
from qed.config.reward_names import AUTO, parse_reward
from qed.config.task_names import parse_task
from qed.config.values import COMMAND_LINE, Raw, coerce_value
from qed.errors import UsageError

__all__ = ["Resolved", "Source", "Value", "list_defaults", "read_sources", "resolve_settings"]

DEFAULT = "default"
# The settings that only a pipeline has.
OF_PIPELINES = {part.name for part in fields(PipelineSettings)} - {part.name for part in fields(Settings)}
TASKS = ("data.tasks", "evaluation.tasks")
REWARD = "data.reward"


@dataclass(frozen=True)
class Resolved:
    """The settings of a command, where each of them came from, and the flags beside them."""

    command: str
    settings: Settings | PipelineSettings
    origins: dict[str, str]
    flags: Flags


@dataclass(frozen=True)
class Source:
    """What a command line says before its values are read: the settings there are, the layers, the flags."""

    table: Table
    layers: list[Layer]
    flags: Flags


@dataclass(frozen=True)
class Value:
    """A setting's value and where it came from."""

    value: Any
    origin: str


def resolve_settings(command: str, arguments: Sequence[str]) -> Resolved:
    """The settings that a command line means; a UsageError names whatever it cannot mean."""
    source = read_sources(command, arguments)
    values = list_defaults(source.table)
    problems: dict[str, str] = {}
    for layer in source.layers:
        for key, entry in _spread_entries(layer, source.table, problems).items():
            try:
                values[key] = Value(_read_value(entry, source.table.settings[key], source.flags), entry.raw.origin)
            except UsageError as error:
                problems[str(error)] = str(error)
    if problems:
        raise UsageError("\n".join(problems.values()))
    if values["model.name"].value.startswith("new:"):
        # Only what nobody has given follows from the model.
        fresh = _list_algorithm_defaults(source.table, "fresh_defaults", " for new models")
        values |= {key: value for key, value in fresh.items() if values[key].origin.startswith(DEFAULT)}
    settings = _build(source.table, "", values)
    return Resolved(command, settings, {key: value.origin for key, value in values.items()}, source.flags)


def read_sources(command: str, arguments: Sequence[str]) -> Source:
    """The layers and flags of a command line, and the table of settings that its algorithms make."""
    methods = dict(PHASES) if command in PIPELINES else {"": resolve_algorithm_name(command)}
    # The algorithms of a pipeline are settings themselves and decide which other settings there are. A second look
    # suffices for every command line that can be meant; the others must not keep us looking for ever.
    for _ in range(3):
        table = build_table(command, methods)
        configs, entries, flags = parse_arguments(arguments, table)
        files = [find_config("quickstart", (find_shipped_configs(),))] if command == "quickstart" else []
        files += [find_config(config) for config in configs]
        layers = [_drop_method(layer, table) for file in files for layer in read_layers(file)] + [entries]
        found = {phase: _choose_method(phase, name, layers, flags) for phase, name in methods.items()}
        if found == methods:
            break
        methods = found
    return Source(table, layers, flags)


def _choose_method(phase: str, name: str, layers: Sequence[Layer], flags: Flags) -> str:
    """The algorithm that the last layer to name one names for a phase of a pipeline; the name given if none does."""
    entries = [entry for layer in layers for entry in layer if phase and entry.key == f"{phase}.method"]
    if not entries:
        return name
    raw = entries[-1].raw
    _check_user_code(raw.text, raw.origin, entries[-1].key, flags)
    try:
        return resolve_algorithm_name(raw.text)
    except UsageError as error:
        raise UsageError(f"{raw.origin}: {entries[-1].key}: {error}") from error


def _drop_method(layer: Layer, table: Table) -> Layer:
    """A layer less its `method:`, which a saved run carries and which must be the command's own."""
    for entry in layer:
        other = entry.raw.text.replace("-", "_")
        if entry.key == "method" and other != table.methods.get(""):
            raise UsageError(f"{entry.raw.origin}: this is a configuration of {other}. Use `qed {other}` for it.")
    return [entry for entry in layer if entry.key != "method"]


def list_defaults(table: Table) -> dict[str, Value]:
    """The lowest layers: the defaults of the dataclasses, then those of the algorithms' classes."""
    given = {key: setting for key, setting in table.settings.items() if setting.default is not MISSING}
    return {key: Value(setting.default, DEFAULT) for key, setting in given.items()} | _list_algorithm_defaults(
        table, "defaults"
    )


def _list_algorithm_defaults(table: Table, which: str, note: str = "") -> dict[str, Value]:
    """What the algorithms' classes set in place of the defaults of the dataclasses."""
    values: dict[str, Value] = {}
    for phase, method in table.methods.items():
        for key, value in getattr(table.sections[f"{phase}.algorithm".lstrip(".")], which).items():
            own = key.startswith(("learner.", "algorithm."))
            full = f"{phase}.{key}" if phase and own else key
            meant = table.expand_key(full, shortcuts=False)
            if len(meant) != 1:
                raise UsageError(f"The defaults of {method} name {key}, which is no setting.{suggest(full, table)}")
            # What both phases share follows the second phase, which samples.
            if own or phase != "sft":
                values[meant[0]] = Value(value, f"default of {method}{note}")
    return values


def _spread_entries(layer: Layer, table: Table, problems: dict[str, str]) -> dict[str, Entry]:
    """The entries of a layer by the settings that they mean; names that mean none are added to the problems.

    Of two entries for a setting the last one counts, but one phase's own counts before what is said of both. Two names
    of one setting with two values are a problem.
    """
    several: dict[str, Entry] = {}
    one: dict[str, Entry] = {}
    for entry in layer:
        if entry.raw.missing and entry.key in table.sections:
            continue  # a section in which nothing is said
        names = table.expand_key(entry.key, shortcuts=entry.raw.origin == COMMAND_LINE)
        if not names:
            message = _explain_unknown(entry, table)
            # A section of another command is one mistake, however many lines it has: only its first line is named.
            problems.setdefault(message, f"{entry.raw.origin}: {message}")
        if len(names) == 1 and (before := one.get(names[0])) and _contradict(before, entry, table):
            both = " and ".join(f"{each.raw.origin}: {each.shown} = {each.raw.shown()}" for each in (before, entry))
            message = f"{both} are two names of one setting with different values. Keep one of them."
            problems.setdefault(message, message)
        (one if len(names) == 1 else several).update(dict.fromkeys(names, entry))
    return several | one


def _contradict(before: Entry, after: Entry, table: Table) -> bool:
    """Whether two entries give one setting of an algorithm's part different values under different names."""
    if before.key == after.key or not {before.key, after.key} & set(table.names):
        return False
    kind = table.settings[table.expand_key(after.key)[0]].kind
    try:
        return bool(coerce_value(before.raw, kind) != coerce_value(after.raw, kind))
    except ValueError:
        return False  # whichever is no value at all is reported by itself


def _explain_unknown(entry: Entry, table: Table) -> str:
    dashes = "--" if entry.shown.startswith("--") else ""
    section = entry.key.partition(".")[0]
    if not table.pipeline and section in OF_PIPELINES:
        return (
            f"{format_name(section, dashes)} belongs to the settings of two phases, which are those of `qed pipeline`."
        )
    others = list_proposals(table) if entry.raw.origin == COMMAND_LINE else ()
    return f"{entry.shown} is not a setting of qed {table.command}.{suggest(entry.key, table, others, dashes)}"


def _read_value(entry: Entry, setting: Setting, flags: Flags) -> Any:
    """The value of an entry by the type of its setting, checked against shelves and files."""
    raw = entry.raw
    try:
        value = coerce_value(raw, setting.kind)
    except ValueError as error:
        raise UsageError(f"{raw.origin}: {setting.key} {error}") from error
    if setting.shelf and setting.key != REWARD and value != setting.default:
        value = _read_leaf(value, setting, raw, flags)
    check = {REWARD: _check_reward, **dict.fromkeys(TASKS, _check_task)}.get(setting.key)
    if check is not None and value != setting.default:
        origins = [item.origin for item in raw.items] if raw.items else [raw.origin] * len(value)
        for text, origin in zip(value, origins, strict=True):
            check(text, origin, setting.key, flags)
    return value


def _read_leaf(name: str, setting: Setting, raw: Raw, flags: Flags) -> str:
    """A leaf's name in the spelling of its file, or the user's own code."""
    _check_user_code(name, raw.origin, setting.key, flags)
    try:
        plugins.check_leaf(str(setting.shelf), name)
    except UsageError as error:
        raise UsageError(f"{raw.origin}: {setting.key}: {error}") from error
    return name if plugins.is_users_own(name) else name.replace("-", "_")


def _check_user_code(name: str, origin: str, key: str, flags: Flags) -> None:
    if plugins.is_users_own(name) and origin != COMMAND_LINE and not flags.allow_user_code:
        raise UsageError(
            f"{origin}: {key} names code outside of qed, {name}, which would be run. A YAML file may come from "
            "somebody else, so this needs --allow-user-code, or the name on the command line."
        )


def _check_reward(text: str, origin: str, key: str, flags: Flags) -> None:
    """Raise a UsageError unless a reward is NAME or WEIGHT*NAME with a known name, or somebody's own file."""
    try:
        source = parse_reward(text).source
        _check_user_code(source, origin, key, flags)
        if source != AUTO:
            plugins.check_leaf("rewards", source)
    except UsageError as error:
        raise UsageError(str(error) if str(error).startswith(origin) else f"{origin}: {key}: {error}") from error


def _check_task(text: str, origin: str, key: str, flags: Flags) -> None:
    """Raise a UsageError unless a task is NAME[:split][@PATH] with a known name, or a data file; files must exist."""
    task = parse_task(text)
    _check_user_code(task.leaf, origin, key, flags)
    try:
        plugins.check_leaf("tasks", task.leaf)
    except UsageError as error:
        raise UsageError(f"{origin}: {key}: {error}") from error
    if task.path and not Path(task.path).exists():
        raise UsageError(f"{origin}: {key}: There is no file {task.path}.")


def _build(table: Table, section: str, values: Mapping[str, Value]) -> Any:
    """The dataclass of a section, with those of the sections within it."""
    owner = table.sections[section]
    given: dict[str, Any] = {"method": table.methods[""]} if owner is Settings else {}
    for part in fields(owner):
        path = f"{section}.{part.name}".lstrip(".")
        key = table.names.get(path, path)
        if path in table.sections:
            given[part.name] = _build(table, path, values)
        elif key in values:
            given[part.name] = values[key].value
        elif key in table.settings:
            raise UsageError(f"{key} has no default and must be given.")
    try:
        return owner(**given)
    except UsageError as error:
        raise UsageError(_add_origins(str(error), section, table, values)) from error


def _add_origins(message: str, section: str, table: Table, values: Mapping[str, Value]) -> str:
    """A message about settings with their origins before it, and their full names where a pipeline has two of them."""
    names = section.split(".")
    # The parts of an algorithm name settings from the algorithm on, each by its key.
    outer = ".".join(names[: names.index("algorithm") + 1]) if "algorithm" in names else section
    last = outer.rpartition(".")[2]
    message = re.sub(rf"\b{last}\.", f"{outer}.", message) if last else message
    own = [key for key in values if table.settings[key].section == section]
    near = [key for key in values if key.startswith(f"{outer}.")] if "algorithm" in names else own
    named = [key for key in near if re.search(rf"\b{re.escape(key)}\b", message)]
    named = named or [key for key in own if re.search(rf"\b{key.rpartition('.')[2]}\b", message)]
    origins = dict.fromkeys(values[key].origin for key in named if values[key].origin != DEFAULT)
    return f"{', '.join(origins)}: {message}" if origins else message
