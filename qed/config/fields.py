"""Builds the table of a command's settings: every dotted key with its type, default, section and other names.

It is built from the dataclasses in settings.py and the algorithm's, so a new field becomes a new option.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from qed.config import plugins
from qed.config.keys import list_other_names
from qed.config.phases import PipelineSettings, Settings
from qed.config.values import coerce_value, describe_type, dump_tree, is_list, read_node
from qed.errors import UsageError

PHASES = {"sft": "sft", "rl": "grpo"}
PER_PHASE = ("learner.", "data.")  # sections that each phase of a pipeline has, and that may be set for both at once
SHORTCUTS = {
    "model": "model.name",
    "tasks": "data.tasks",
    "prompt": "data.prompt",
    "environment": "data.environment",
    "reward": "data.reward",
    "steps": "learner.steps",
    "lr": "learner.lr",
    "out": "run.out",
    "seed": "run.seed",
    "device": "model.device",
    "profile": "run.profile",
}


@dataclass(frozen=True)
class Setting:
    """A setting: its key, type and default; `default` is MISSING if a value is required.

    `path` contains the names of all enclosing sections; the key may omit the name of an algorithm's part.
    """

    key: str
    path: str
    kind: Any
    default: Any
    section: str
    owner: type
    shelf: str | None = None

    @property
    def name(self) -> str:
        """Return the last part of the key."""
        return self.key.rpartition(".")[2]

    @property
    def field(self) -> str:
        """Return the name of the dataclass field."""
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Table:
    """All settings of a command by key, and alternative names of the settings of an algorithm's parts.

    `methods` maps each phase to its algorithm; commands other than pipelines have one phase, with an empty name.
    """

    command: str
    methods: Mapping[str, str]
    settings: Mapping[str, Setting]
    sections: Mapping[str, type]
    names: Mapping[str, str]

    @property
    def pipeline(self) -> bool:
        """Return whether the command has two phases."""
        return "" not in self.methods

    def expand_key(self, key: str, shortcuts: bool = True) -> tuple[str, ...]:
        """Return the settings that a key or shortcut refers to: one, one per phase in a pipeline, or none."""
        key = SHORTCUTS.get(key, key) if shortcuts else key
        key = self.names.get(key, key)
        if key in self.settings:
            return (key,)
        # Two phases rarely share a learning rate: for SFT it is usually ten times that for RL.
        both = tuple(f"{phase}.{key}" for phase in self.methods) if self.pipeline and key != "learner.lr" else ()
        return both if key.startswith(PER_PHASE) and all(name in self.settings for name in both) else ()

    def is_switch(self, key: str) -> bool:
        """Return whether a key may appear on the command line without a value."""
        names = self.expand_key(key)
        return bool(names) and all(self.settings[name].kind is bool for name in names)


def build_table(command: str, methods: Mapping[str, str]) -> Table:
    """Build the table of a command whose phases use the given algorithms; this imports the algorithms."""
    settings: dict[str, Setting] = {}
    sections: dict[str, type] = {}
    classes = {phase: plugins.load_algorithm(name) for phase, name in methods.items()}
    _collect(Settings if "" in methods else PipelineSettings, "", classes, (settings, sections), None)
    for phase in methods:
        # Both phases share one class in settings.py, so each phase's default algorithm is set here.
        if phase:
            settings[f"{phase}.method"] = replace(settings[f"{phase}.method"], default=PHASES[phase])
    names: dict[str, str] = {}
    for phase in methods:
        section = f"{phase}.algorithm".lstrip(".")
        paths = [path.removeprefix(f"{section}.") for path in settings if path.startswith(f"{section}.")]
        names |= list_other_names(section, paths)
    keyed = {names.get(path, path): setting for path, setting in settings.items()}
    keyed = {key: replace(setting, key=key) for key, setting in keyed.items()}
    return Table(command, dict(methods), keyed, sections, names)


def _collect(
    owner: type,
    section: str,
    classes: Mapping[str, type],
    result: tuple[dict[str, Setting], dict[str, type]],
    defaults: Any,
) -> None:
    """Add the settings of a dataclass and of its sections to `result`; `defaults` is its default instance or None."""
    settings, sections = result
    sections[section] = owner
    hints = _read_type_hints(owner)
    for part in fields(owner):
        key = f"{section}.{part.name}" if section else part.name
        inner = classes[section] if part.name == "algorithm" and section in classes else hints[part.name]
        if is_dataclass(inner) and isinstance(inner, type):
            _collect(inner, key, classes, result, _default_section(owner, part, inner))
        elif part.init and not (part.name == "method" and not section):
            default = read_default(part) if defaults is None else getattr(defaults, part.name)
            if not owner.__module__.startswith("qed."):
                _require_readable(owner, part.name, inner, default)
            settings[key] = Setting(key, key, inner, default, section, owner, part.metadata.get("shelf"))


def _require_readable(owner: type, name: str, kind: Any, default: Any) -> None:
    """Require that a default of the user's can be read again from the settings file of a run."""
    if default is MISSING:
        return
    try:
        ((_, node),) = yaml.compose(dump_tree({name: default})).value  # type: ignore[union-attr]
        read = coerce_value(read_node(node), kind)
    except (UsageError, ValueError, TypeError, yaml.YAMLError):
        read = MISSING
    if read is not MISSING and is_list(kind) and isinstance(default, list | tuple):
        read, default = tuple(read), tuple(default)
    if read != default:
        hint = f": {name}: TYPE | None = None allows None" if default is None else ""
        raise UsageError(
            f"{owner.__name__}.{name} is {default!r} by default, which a run's settings file cannot give back as "
            f"{describe_type(kind)}. Change the default or the type{hint}."
        )


@functools.cache
def _read_type_hints(owner: type) -> dict[str, Any]:
    try:
        return get_type_hints(owner)
    except NameError as error:
        raise UsageError(f"The types of the fields of {owner.__name__} cannot be read: {error}.") from error


def _default_section(owner: type, part: Field[Any], kind: type) -> Any:
    """Return the default of a section's field, which holds the defaults of its settings; None if it has none."""
    default = read_default(part)
    if default is not MISSING and not isinstance(default, kind):
        raise UsageError(
            f"{owner.__name__}.{part.name} is {default!r} by default, but must be a {kind.__name__}. Write "
            f"{part.name}: {kind.__name__} = {kind.__name__}(...) with values for its fields."
        )
    return None if default is MISSING else default


def read_default(part: Field[Any]) -> Any:
    """Return the default of a dataclass field; MISSING if it has none."""
    return part.default_factory() if part.default_factory is not MISSING else part.default


def find_documentation(owner: type, name: str) -> str:
    """Return the string under a dataclass field, from the first class in the MRO that has one."""
    texts = (_read_documentation(base.__module__).get((base.__name__, name), "") for base in owner.__mro__)
    return next(filter(None, texts), "")


@functools.cache
def _read_documentation(module: str) -> dict[tuple[str, str], str]:
    """Read the strings under the fields of every class in a module, without importing anything."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or not file.endswith(".py"):
        return {}
    found = {}
    classes = [
        node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)
    ]
    for owner in classes:
        for field_node, text_node in zip(owner.body, owner.body[1:], strict=False):
            match field_node, text_node:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[owner.name, name] = " ".join(text.split())
    return found


def resolve_algorithm_name(command: str) -> str:
    """Return the name of a command's algorithm as its file spells it; raise a UsageError if there is none."""
    plugins.check_leaf("algorithms", command)
    return plugins.spell_leaf(command)
