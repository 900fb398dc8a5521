"""Resolves settings from layers: defaults, the algorithm's defaults, YAML files from left to right, the command line.

Every value records its origin, which error messages name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from os.path import expanduser
from typing import Any

from qed.config.arguments import Flags, list_proposals, parse_arguments
from qed.config.checks import TASKS, check_names, check_user_code
from qed.config.fields import PHASES, Setting, Table, build_table, resolve_algorithm_name
from qed.config.layers import Entry, Layer, find_config, find_shipped_configs, read_layers
from qed.config.names import format_name, suggest
from qed.config.one_phase import take_phase
from qed.config.phases import PipelineSettings, Settings
from qed.config.plugins import spell_leaf
from qed.config.saved import read_saved_layer
from qed.config.training_commands import PIPELINES
from qed.config.values import COMMAND_LINE, coerce_value
from qed.errors import UsageError

DEFAULT = "default"
# Settings that only a pipeline has.
OF_PIPELINES = {part.name for part in fields(PipelineSettings)} - {part.name for part in fields(Settings)}
TO_SAMPLER = ("dppo", "ipo")  # surrogates whose ratio uses the sampler's log-probs
# Settings for the same thing in two units: a layer that sets the first, or the second to a value, unsets the other.
ALTERNATIVES = (("learner.steps", "learner.epochs"), ("learner.warmup_steps", "learner.warmup_ratio"))
PATHS = ("run.out", "model.name", *TASKS)  # settings that may begin with ~, the user's home


@dataclass(frozen=True)
class Resolved:
    """Settings of a command, the origin of each, and the flags."""

    command: str
    settings: Settings | PipelineSettings
    origins: dict[str, str]
    flags: Flags

    def list_given(self) -> list[str]:
        """Return the keys of the settings that a file or the command line sets."""
        return [key for key, origin in self.origins.items() if not origin.startswith(DEFAULT)]


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


def resolve_settings(command: str, arguments: Sequence[str], reads_data: bool = True) -> Resolved:
    """Return the settings from a command line.

    Args:
        command: the training command.
        arguments: the arguments after it.
        reads_data: whether the files of all tasks must exist, or only those of tasks named in the arguments.

    Raises:
        UsageError: lists all mistakes. Names of files and code are checked only if no later layer replaces them.
    """
    source = read_sources(command, arguments)
    values = list_defaults(source.table)
    problems: dict[str, str] = {}
    refused: dict[str, str] = {}
    for layer in source.layers:
        given = _spread_entries(layer, source.table, problems)
        for key, entry in given.items():
            setting = source.table.settings[key]
            try:
                value = _coerce_value(entry, setting)
            except UsageError as error:
                problems[str(error)] = str(error)
                continue
            refused.pop(key, None)
            values[key] = Value(value, entry.raw.origin)
            try:
                values[key] = Value(check_names(value, entry, setting, source.flags, reads_data), entry.raw.origin)
            except UsageError as error:
                refused[key] = str(error)
        values |= _unset_alternatives(given, values)
    problems |= {text: text for text in refused.values()}
    if problems:
        raise UsageError("\n".join(problems.values()))
    if values["model.name"].value.startswith("new:"):
        # The defaults for new models replace only values that are not set.
        fresh = _list_algorithm_defaults(source.table, "fresh_defaults", " for new models")
        values |= {key: value for key, value in fresh.items() if values[key].origin.startswith(DEFAULT)}
    values |= _list_ahead_defaults(source.table, values)
    settings = _build(source.table, "", values)
    return Resolved(command, settings, {key: value.origin for key, value in values.items()}, source.flags)


def _unset_alternatives(given: Collection[str], values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the settings that a layer unsets because it sets them in another unit, such as epochs for steps."""
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
    # The algorithms of a pipeline are settings themselves, and decide which other settings exist. Two passes suffice
    # for every valid command line; the limit prevents an endless loop for invalid ones.
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
    check_user_code(raw.text, raw.origin, entries[-1].key, flags)
    try:
        return resolve_algorithm_name(raw.text)
    except UsageError as error:
        raise UsageError(f"{raw.origin}: {entries[-1].key}: {error}") from error


def _drop_method(layer: Layer, table: Table) -> Layer:
    """Return a layer without its `method:`, which a saved run contains; it must match the command."""
    for entry in layer:
        other = spell_leaf(entry.raw.text)
        if entry.key == "method" and other != table.methods.get(""):
            raise UsageError(f"{entry.raw.origin}: this is a configuration for {other}. Use `qed {other}` instead.")
    return [entry for entry in layer if entry.key != "method"]


def list_defaults(table: Table) -> dict[str, Value]:
    """Return the lowest layers: the defaults of the dataclasses, overridden by those of the algorithms."""
    defaults = {
        key: Value(setting.default, DEFAULT)
        for key, setting in table.settings.items()
        if setting.default is not MISSING
    }
    return defaults | _list_algorithm_defaults(table, "defaults")


def _list_algorithm_defaults(table: Table, which: str, note: str = "") -> dict[str, Value]:
    """Return the defaults of the algorithms, which override those of the dataclasses."""
    values: dict[str, Value] = {}
    for phase, method in table.methods.items():
        for key, value in getattr(table.sections[f"{phase}.algorithm".lstrip(".")], which).items():
            per_phase = key.startswith(("learner.", "algorithm."))
            full = f"{phase}.{key}" if phase and per_phase else key
            names = table.expand_key(full, shortcuts=False)
            if not names:
                raise UsageError(f"The defaults of {method} name {key}, which is not a setting.{suggest(full, table)}")
            # Other settings use the defaults of the second phase, which samples.
            if per_phase or phase != "sft":
                values |= dict.fromkeys(names, Value(value, f"default of {method}{note}"))
    return values


def _list_ahead_defaults(table: Table, values: Mapping[str, Value]) -> dict[str, Value]:
    """Return the defaults for sampling ahead: a correction for the older sampling policy (arXiv 2505.24298).

    Without it, the clip would act on an answer's staleness before the policy has moved at all. Surrogates whose ratio
    is to the sampler by design need none.
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

    The last entry for a setting wins, but an entry for one phase takes precedence over one for both. Two names
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
            message = f"{both} are two names of one setting with different values. Keep only one of them."
            problems.setdefault(message, message)
        (single if len(names) == 1 else shared).update(dict.fromkeys(names, entry))
    return shared | single


def _contradict(before: Entry, after: Entry, table: Table) -> bool:
    """Return whether two entries set one setting of an algorithm's part under different names to different values."""
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


def _coerce_value(entry: Entry, setting: Setting) -> Any:
    """Parse the value of an entry by the type of its setting."""
    try:
        value = coerce_value(entry.raw, setting.kind)
    except ValueError as error:
        raise UsageError(f"{entry.raw.origin}: {setting.key} {error}") from error
    return expand_home(setting.key, value)


def expand_home(key: str, value: Any) -> Any:
    """Return the value of a setting, with a ~ at the start of a path replaced by the home folder."""
    if key.removeprefix("sft.").removeprefix("rl.") not in PATHS:
        return value
    return tuple(map(expanduser, value)) if isinstance(value, tuple) else expanduser(value)


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
            raise UsageError(f"{key} is required: it has no default.")
    try:
        return owner(**arguments)
    except UsageError as error:
        raise UsageError(_add_origins(str(error), section, table, values)) from error


def _add_origins(message: str, section: str, table: Table, values: Mapping[str, Value]) -> str:
    """Add the origins of the settings that a message names, and their full names if a pipeline has two of them."""
    names = section.split(".")
    # Messages of an algorithm's parts name settings by keys that start with `algorithm`.
    outer = ".".join(names[: names.index("algorithm") + 1]) if "algorithm" in names else section
    last = outer.rpartition(".")[2]
    message = re.sub(rf"\b{last}\.", f"{outer}.", message) if last else message
    in_section = [key for key in values if table.settings[key].section == section]
    candidates = [key for key in values if key.startswith(f"{outer}.")] if "algorithm" in names else in_section
    named = [key for key in candidates if re.search(rf"\b{re.escape(key)}\b", message)]
    named = named or [key for key in in_section if re.search(rf"\b{key.rpartition('.')[2]}\b", message)]
    origins = dict.fromkeys(values[key].origin for key in named if values[key].origin != DEFAULT)
    return f"{', '.join(origins)}: {message}" if origins else message
