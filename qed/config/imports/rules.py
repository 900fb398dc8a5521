"""Parts of a system's table: rules that rename its settings, and the draft of a configuration that they fill."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qed.config.fields import Table
from qed.config.values import Raw, coerce_value, format_value, split_items
from qed.errors import UsageError

UNSET = re.compile(r"\$[{(]*\w")  # a shell variable or command in a value


@dataclass(frozen=True)
class Rule:
    """What some settings of a system become in qed.

    `theirs` are their names; a name that ends in a dot stands for all settings below it. `ours` is qed's key, or
    several of which the first that exists is used; if empty, qed has none, and `why` gives the reason. `values` maps
    their values to qed's; a missing value has no equivalent or, if `only` is false, is kept unchanged.
    """

    theirs: tuple[str, ...]
    ours: tuple[str, ...] = ()
    values: Mapping[str, Any] | None = None
    why: str = ""
    only: bool = True

    def covers(self, name: str) -> bool:
        """Return whether the rule covers a setting of this name."""
        return any(name.startswith(own) if own.endswith(".") else name == own for own in self.theirs)


def rename(ours: str, *theirs: str, values: Mapping[str, Any] | None = None, why: str = "", only: bool = True) -> Rule:
    """Return a rule for settings that qed has; `|` separates alternative keys in `ours`, blanks names in `theirs`."""
    return Rule(_split(theirs), tuple(ours.split("|")), values, why, only)


def absent(why: str, *theirs: str) -> Rule:
    """Return a rule for settings that qed does not have, with the reason; blanks separate names in `theirs`."""
    return Rule(_split(theirs), (), None, why)


def _split(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for text in names for name in text.split())


@dataclass(frozen=True)
class Row:
    """A line of the table that an import prints: the other system's setting and value, qed's, and a note."""

    theirs: str
    value: Any
    ours: str
    result: Any
    note: str


@dataclass
class Options:
    """Settings of another system by dotted name, over its defaults; records which ones are read."""

    given: dict[str, Any]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)

    def get(self, *names: str, default: Any = None) -> Any:
        """Return the first of these settings that is set, otherwise the system's default, otherwise `default`."""
        self.read.update(names)
        for values in (self.given, self.defaults):
            for name in names:
                if values.get(name) is not None:
                    return values[name]
        return default

    def number(self, *names: str, default: float = 0) -> float:
        """Return a setting as a number.

        Raises:
            UsageError: it is not a number, such as a shell variable that is not set in the file.
        """
        value = self.get(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(f"{names[0]} is {value!r}; it must be a number. Set it after --, as in {names[0]}=8.")
        return value

    def is_on(self, *names: str) -> bool:
        """Return whether a switch is on.

        Raises:
            UsageError: it is a shell variable that is not set in the file.
        """
        value = self.get(*names, default=False)
        if isinstance(value, str) and UNSET.search(value):
            raise UsageError(
                f"{names[0]} is {value!r}; it must be true or false. Set it after --, as in {names[0]}=true."
            )
        return bool(value)

    def has(self, *names: str) -> bool:
        """Return whether any of these settings is set."""
        return any(self.given.get(name) is not None for name in names)


@dataclass
class Draft:
    """A configuration under construction, with a row for every setting of the other system."""

    table: Table
    options: Options
    values: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def set(self, theirs: str, ours: str, result: Any, note: str = "") -> None:
        """Set qed's setting: the first existing one of several names separated by `|`."""
        value = self.options.get(theirs.partition(",")[0])
        if isinstance(result, str) and UNSET.search(result):
            self.skip(theirs, "the script does not set this variable")
            return
        keys = [key for name in ours.split("|") for key in self.table.expand_key(name)]
        if not keys:
            self.skip(theirs, f"qed {self.table.command} has no setting {ours.replace('|', ' or ')}")
            return
        kind = self.table.settings[keys[0]].kind
        try:
            result = coerce_value(_write_raw(result), kind)
        except ValueError as error:
            self.skip(theirs, f"{keys[0]} {error}")
            return
        if not self.options.has(*theirs.split(",")):
            note = ", ".join(filter(None, ("its default", note)))
        self.values |= dict.fromkeys(keys, result)
        self.rows.append(Row(theirs, value, keys[0], result, note))

    def skip(self, theirs: str, why: str) -> None:
        """Record that a setting has no equivalent."""
        value = self.options.get(theirs.partition(",")[0])
        self.rows.append(Row(theirs, value, "", None, why))

    def apply(self, rule: Rule, theirs: str) -> None:
        """Apply a rule to one setting."""
        value = self.options.get(theirs)
        if not rule.ours:
            self.skip(theirs, rule.why)
        elif value is None:
            self.skip(theirs, "empty")
        elif rule.values is None or (not rule.only and str(value).lower() not in rule.values):
            self.set(theirs, "|".join(rule.ours), value, rule.why)
        elif (result := rule.values.get(str(value).lower())) is not None:
            self.set(theirs, "|".join(rule.ours), result, rule.why)
        else:
            known = ", ".join(name for name, result in rule.values.items() if result is not None)
            self.skip(theirs, rule.why or f"{value} has no equivalent; qed knows the values {known}")


def _write_raw(value: Any) -> Raw:
    """Return a value as the text of a YAML file."""
    if isinstance(value, list | tuple):
        return Raw(items=tuple(map(_write_raw, value)))
    if value is None:
        return Raw(missing=True)
    text = format_value(value) if isinstance(value, bool) else str(value)
    return Raw(items=split_items(text)) if text.startswith("[") else Raw(text)
