"""Resolve settings from layers: defaults, the algorithm's defaults, YAML files from left to right, the command line.

Every value records its origin, and every error names it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from qed.config import plugins
from qed.config.arguments import Flags, list_proposals, parse_arguments
from qed.config.callables import is_callable_name
from qed.config.fields import PHASES, Setting, Table, build_table, resolve_algorithm_name
from qed.config.layers import Entry, Layer, find_config, find_shipped_configs, read_layers
from qed.config.names import format_name, suggest
from qed.config.one_phase import take_phase
from qed.config.phases import PipelineSettings, Settings
from qed.config.reward_names import AUTO, parse_reward
from qed.config.saved import read_saved_layer
from qed.config.task_names import parse_task
from qed.config.training_commands import PIPELINES
from qed.config.values import COMMAND_LINE, Raw, coerce_value
from qed.errors import UsageError

__all__ = ["Resolved", "Source", "Value", "list_defaults", "read_sources", "resolve_settings"]

DEFAULT = "default"
# Settings that only a pipeline has.
OF_PIPELINES = {part.name for part in fields(PipelineSettings)} - {part.name for part in fields(Settings)}
TASKS = ("data.tasks", "evaluation.tasks")
REWARD, TRACKERS = "data.reward", "run.trackers"
TO_SAMPLER = ("dppo", "ipo")  # surrogates whose ratio is to the sampler's log-probs
# Settings that say one thing in two units: a layer that gives the first, or a value of the second, unsets the other.
ALTERNATIVES = (("learner.steps", "learner.epochs"), ("learner.warmup_steps", "learner.warmup_ratio"))


@dataclass(frozen=True)
class Resolved:
    """The settings of a command, the origin of each, and the flags."""

    command: str
    settings: Settings | PipelineSettings
    origins: dict[str, str]
    flags: Flags


@dataclass(frozen=True)
class Source:
    """A command line before its values are parsed: the table of settings, the layers and the flags."""

    table: Table
    layers: list[Layer]
    flags: Flags


@dataclass(frozen=True)
class Value:
    """A setting's value and its origin."""

    value: Any
    origin: str


def resolve_settings(command: str, arguments: Sequence[str]) -> Resolved:
    """Return the settings of a command line; a UsageError lists all of its mistakes."""
    source = read_sources(command, arguments)
    values = list_defaults(source.table)
    problems: dict[str, str] = {}
    for layer in source.layers:
        given = _spread_entries(layer, source.table, problems)
        for key, entry in given.items():
            try:
                values[key] = Value(_read_value(entry, source.table.settings[key], source.flags), entry.raw.origin)
            except UsageError as error:
                problems[str(error)] = str(error)
        values |= _unset_alternatives(given, values)
    if problems:
        raise UsageError("\n".join(problems.values()))
    if values["model.name"].value.startswith("new:"):
        # The defaults for new models replace only values that are not given.
        fresh = _list_algorithm_defaults(source.table, "fresh_defaults", " for new models")
        values |= {key: value for key, value in fresh.items() if values[key].origin.startswith(DEFAULT)}
    values |= _list_ahead_defaults(source.table, values)
    settings = _build(source.table, "", values)
    return Resolved(command, settings, {key: value.origin for key, value in values.items()}, source.flags)


def _unset_alternatives(given: Collection[str], values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings that a layer unsets because it gives the same in another unit, such as epochs for steps."""
    unset: dict[str, Value] = {}
    for count, share in ALTERNATIVES:
        for key in given:
            phase = key.removesuffix(count).removesuffix(share)
            if key == phase + count and phase + share not in given and values[phase + share].value:
                unset[phase + share] = Value(0.0, values[key].origin)
            elif key == phase + share and phase + count not in given and values[key].value:
                unset[phase + count] = Value(0, values[key].origin)
    return unset


def read_sources(command: str, arguments: Sequence[str]) -> Source:
    """Return the layers and flags of a command line, and the table of its settings."""
    methods = dict(PHASES) if command in PIPELINES else {"": resolve_algorithm_name(command)}
    # The algorithms of a pipeline are settings themselves and decide which other settings exist. Two passes suffice
    # for every valid command line; the limit prevents an endless loop for the others.
    for _ in range(3):
        table = build_table(command, methods)
        configs, entries, flags = parse_arguments(arguments, table)
        files = [find_config("quickstart", (find_shipped_configs(),))] if command == "quickstart" else []
        files += [find_config(config) for config in configs]
        read = take_phase([layer for file in files for layer in read_layers(file)], table)
        if not configs:
            read.append(read_saved_layer(table, entries, flags))
        layers = [_drop_method(layer, table) for layer in read] + [entries]
        chosen = {phase: _choose_method(phase, name, layers, flags) for phase, name in methods.items()}
        if chosen == methods:
            break
        methods = chosen
    return Source(table, layers, flags)


def _choose_method(phase: str, name: str, layers: Sequence[Layer], flags: Flags) -> str:
    """Return the algorithm of a pipeline's phase: from the last layer that sets it, otherwise `name`."""
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
    """Return a layer without its `method:`, which a saved run contains and which must match the command."""
    for entry in layer:
        other = entry.raw.text.replace("-", "_")
        if entry.key == "method" and other != table.methods.get(""):
            raise UsageError(f"{entry.raw.origin}: this is a configuration of {other}. Use `qed {other}` for it.")
    return [entry for entry in layer if entry.key != "method"]


def list_defaults(table: Table) -> dict[str, Value]:
    """Return the lowest layers: the defaults of the dataclasses, then those of the algorithms' classes."""
    defaults = {
        key: Value(setting.default, DEFAULT)
        for key, setting in table.settings.items()
        if setting.default is not MISSING
    }
    return defaults | _list_algorithm_defaults(table, "defaults")


def _list_algorithm_defaults(table: Table, which: str, note: str = "") -> dict[str, Value]:
    """Return the defaults of the algorithms' classes, which replace those of the dataclasses."""
    values: dict[str, Value] = {}
    for phase, method in table.methods.items():
        for key, value in getattr(table.sections[f"{phase}.algorithm".lstrip(".")], which).items():
            per_phase = key.startswith(("learner.", "algorithm."))
            full = f"{phase}.{key}" if phase and per_phase else key
            names = table.expand_key(full, shortcuts=False)
            if not names:
                raise UsageError(f"The defaults of {method} name {key}, which is not a setting.{suggest(full, table)}")
            # Other settings take the defaults of the second phase, which samples.
            if per_phase or phase != "sft":
                values |= dict.fromkeys(names, Value(value, f"default of {method}{note}"))
    return values


def _list_ahead_defaults(table: Table, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the defaults where steps are sampled ahead: a correction for the older policy that sampled (2505.24298).

    Without it the clip would act on the age of an answer, before the policy has moved at all. Surrogates whose ratio is
    to the sampler on purpose need none.
    """
    if "rollout.max_staleness" not in values or not values["rollout.max_staleness"].value:
        return {}
    chosen = {}
    for phase in table.methods:
        key, surrogate = (f"{phase}.algorithm.{name}".lstrip(".") for name in ("correction", "surrogate"))
        to_sampler = surrogate in values and values[surrogate].value in TO_SAMPLER
        if key in values and values[key].origin.startswith(DEFAULT) and values[key].value == "none" and not to_sampler:
            chosen[key] = Value("token_truncate", f"{DEFAULT} with rollout.max_staleness")
    return chosen


def _spread_entries(layer: Layer, table: Table, problems: dict[str, str]) -> dict[str, Entry]:
    """Map the settings of a layer to their entries; unknown names are added to `problems`.

    The last entry for a setting counts, but an entry for one phase takes precedence over an entry for both. Two names
    of one setting with different values are a problem.
    """
    shared: dict[str, Entry] = {}
    single: dict[str, Entry] = {}
    for entry in layer:
        if entry.raw.missing and entry.key in table.sections:
            continue  # an empty section
        names = table.expand_key(entry.key, shortcuts=entry.raw.origin == COMMAND_LINE)
        if not names:
            message = _explain_unknown(entry, table)
            # A section of another command is reported once, at its first line.
            problems.setdefault(message, f"{entry.raw.origin}: {message}")
        if len(names) == 1 and (before := single.get(names[0])) and _contradict(before, entry, table):
            both = " and ".join(f"{each.raw.origin}: {each.shown} = {each.raw.shown()}" for each in (before, entry))
            message = f"{both} are two names of one setting with different values. Keep one of them."
            problems.setdefault(message, message)
        (single if len(names) == 1 else shared).update(dict.fromkeys(names, entry))
    return shared | single


def _contradict(before: Entry, after: Entry, table: Table) -> bool:
    """Return whether two entries set one setting of an algorithm's part to different values under different names."""
    if before.key == after.key or not {before.key, after.key} & set(table.names):
        return False
    kind = table.settings[table.expand_key(after.key)[0]].kind
    try:
        return bool(coerce_value(before.raw, kind) != coerce_value(after.raw, kind))
    except ValueError:
        return False  # invalid values are reported separately


def _explain_unknown(entry: Entry, table: Table) -> str:
    dashes = "--" if entry.shown.startswith("--") else ""
    section = entry.key.partition(".")[0]
    if not table.pipeline and section in OF_PIPELINES:
        return f"{format_name(section, dashes)} belongs to runs with two phases. Use `qed pipeline`."
    others = list_proposals(table) if entry.raw.origin == COMMAND_LINE else ()
    return f"{entry.shown} is not a setting of qed {table.command}.{suggest(entry.key, table, others, dashes)}"


def _read_value(entry: Entry, setting: Setting, flags: Flags) -> Any:
    """Parse the value of an entry by the type of its setting, and check it against shelves and files."""
    raw = entry.raw
    try:
        value = coerce_value(raw, setting.kind)
    except ValueError as error:
        raise UsageError(f"{raw.origin}: {setting.key} {error}") from error
    key = setting.key.removeprefix("sft.").removeprefix("rl.")
    if setting.shelf and key not in (REWARD, TRACKERS) and value != setting.default:
        value = _read_leaf(value, setting, raw, flags)
    check = {REWARD: _check_reward, TRACKERS: _check_tracker, **dict.fromkeys(TASKS, _check_task)}.get(key)
    if check is not None and value != setting.default:
        origins = [item.origin for item in raw.items] if raw.items else [raw.origin] * len(value)
        for text, origin in zip(value, origins, strict=True):
            check(text, origin, setting.key, flags)
    return value


def _read_leaf(name: str, setting: Setting, raw: Raw, flags: Flags) -> str:
    """Return a leaf's name as its file spells it, or the name of user code unchanged."""
    _check_user_code(name, raw.origin, setting.key, flags)
    try:
        plugins.check_leaf(str(setting.shelf), name)
    except UsageError as error:
        raise UsageError(f"{raw.origin}: {setting.key}: {error}") from error
    return name if plugins.is_users_own(name) else name.replace("-", "_")


def _check_user_code(name: str, origin: str, key: str, flags: Flags) -> None:
    if plugins.is_users_own(name) and origin != COMMAND_LINE and not flags.allow_user_code:
        raise UsageError(
            f"{origin}: {key} names code outside of qed, {name}, which would be executed. A YAML file may come from "
            "somebody else, so this needs --allow-user-code, or the name on the command line."
        )


def _check_reward(text: str, origin: str, key: str, flags: Flags) -> None:
    """Raise a UsageError unless a reward is NAME or WEIGHT*NAME with a known name, or a user's file."""
    try:
        source = parse_reward(text).source
        _check_user_code(source, origin, key, flags)
        if source != AUTO and not is_callable_name(source):
            plugins.check_leaf("rewards", source)
    except UsageError as error:
        raise UsageError(str(error) if str(error).startswith(origin) else f"{origin}: {key}: {error}") from error


def _check_tracker(text: str, origin: str, key: str, flags: Flags) -> None:
    """Raise a UsageError unless a tracker is on the shelf, or a user's file."""
    _check_user_code(text, origin, key, flags)
    try:
        plugins.check_leaf("trackers", text)
    except UsageError as error:
        raise UsageError(f"{origin}: {key}: {error}") from error


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
    """Build the dataclass of a section, including its inner sections."""
    owner = table.sections[section]
    arguments: dict[str, Any] = {"method": table.methods[""]} if owner is Settings else {}
    for part in fields(owner):
        path = f"{section}.{part.name}".lstrip(".")
        key = table.names.get(path, path)
        if path in table.sections:
            arguments[part.name] = _build(table, path, values)
        elif key in values:
            arguments[part.name] = values[key].value
        elif key in table.settings:
            raise UsageError(f"{key} has no default and must be given.")
    try:
        return owner(**arguments)
    except UsageError as error:
        raise UsageError(_add_origins(str(error), section, table, values)) from error


def _add_origins(message: str, section: str, table: Table, values: Mapping[str, Value]) -> str:
    """Add the origins of settings to a message about them, and their full names where a pipeline has two of them."""
    names = section.split(".")
    # Messages of an algorithm's parts name settings by keys that start at the algorithm.
    outer = ".".join(names[: names.index("algorithm") + 1]) if "algorithm" in names else section
    last = outer.rpartition(".")[2]
    message = re.sub(rf"\b{last}\.", f"{outer}.", message) if last else message
    in_section = [key for key in values if table.settings[key].section == section]
    candidates = [key for key in values if key.startswith(f"{outer}.")] if "algorithm" in names else in_section
    named = [key for key in candidates if re.search(rf"\b{re.escape(key)}\b", message)]
    named = named or [key for key in in_section if re.search(rf"\b{key.rpartition('.')[2]}\b", message)]
    origins = dict.fromkeys(values[key].origin for key in named if values[key].origin != DEFAULT)
    return f"{', '.join(origins)}: {message}" if origins else message
