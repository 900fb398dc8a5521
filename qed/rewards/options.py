"""The settings of rewards: `NAME.FIELD=VALUE`, parsed by the type of the field.

A reward with settings is an instance of a frozen dataclass, whose fields are the settings, or a function in a user's
file, whose parameters are.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from qed.errors import UsageError, suggest_nearest
from qed.rewards.adapters import find_form
from qed.rewards.forms.calling import list_named, list_needed, list_parameters

BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
BUDGET = "max_tokens"  # a field of this name with value 0 is set to the run's limit


@dataclass(frozen=True)
class Option:
    """One setting as the user wrote it."""

    name: str
    field: str
    value: str
    written: str


def parse_options(options: Sequence[str]) -> list[Option]:
    """Parse settings such as `overlong.cache=64`.

    Raises:
        UsageError: one is not of the form NAME.FIELD=VALUE.
    """
    parsed = []
    for written in options:
        target, equals, value = written.partition("=")
        name, point, field = target.strip().rpartition(".")
        if not (equals and point and name and field):
            raise UsageError(
                f"The reward option '{written}' is not of the form NAME.FIELD=VALUE, such as overlong.cache=64."
            )
        parsed.append(Option(name.strip(), field.strip().replace("-", "_"), value.strip(), written))
    return parsed


def check_names(options: Iterable[Option], names: Iterable[str]) -> None:
    """Raise if an option is for a reward that is not among the chosen names.

    Raises:
        UsageError: an option names another reward.
    """
    names = list(dict.fromkeys(names))
    for option in options:
        if option.name not in names:
            raise UsageError(
                f"The option '{option.written}' is for a reward that is not "
                f"chosen.{suggest_nearest(option.name, names)} "
                f"Chosen: {', '.join(names)}."
            )


def apply_options(names: Sequence[str], reward: Any, options: Iterable[Option], max_tokens: int) -> Any:
    """Return the reward with its options applied; a reward without settings or options is returned unchanged.

    The settings of a dataclass are its fields. Those of a function, a class or a factory are its parameters.

    Args:
        names: names that the reward's options may use, the primary one first.
        reward: a function or an instance of a dataclass; None if there is none of that name.
        options: options of all rewards.
        max_tokens: the default of a field named `max_tokens`.

    Raises:
        UsageError: the reward has no such setting, or a value does not parse as the field's type.
    """
    chosen = [option for option in options if option.name in names]
    if not is_settable(reward):
        return _bind_parameters(names[0], reward, chosen) if chosen else reward
    types = _read_types(type(reward))
    changes = {option.field: _read_value(option, types) for option in chosen}
    if BUDGET in types and not changes.get(BUDGET, getattr(reward, BUDGET)):
        changes[BUDGET] = max_tokens
    return replace(reward, **changes)


def _bind_parameters(name: str, function: Any, options: Sequence[Option]) -> Any:
    """Return a function with some of its parameters bound."""
    parameters, needed = list_parameters(function), list_needed(function)
    # Required parameters of a reward come from the rollout, but those of a factory are set here.
    given = [key for key in list_named(function) if key not in needed or not find_form(function)]
    if not given:
        raise UsageError(
            f"The option '{options[0].written}' cannot be set: the reward {name} has no settings. If it is for a "
            "function of the file, choose that by name, as --reward FILE.py:FUNCTION."
        )
    types = {key: _guess_type(parameters[key]) for key in given}
    return functools.partial(function, **{option.field: _read_value(option, types) for option in options})


def _guess_type(parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter by its annotation or its default; `object` if unknown."""
    known = {kind.__name__: kind for kind in (bool, int, float, str)}
    annotation = parameter.annotation
    kind = annotation if annotation in known.values() else known.get(str(annotation))
    return kind or (type(parameter.default) if type(parameter.default) in known.values() else object)


def is_settable(reward: Any) -> bool:
    """Return whether a reward has settings, which means that it is an instance of a dataclass."""
    return is_dataclass(reward) and not isinstance(reward, type)


def _read_types(owner: type[Any]) -> Mapping[str, Any]:
    hints = get_type_hints(owner)
    return {field.name: hints[field.name] for field in fields(owner) if field.init}


def _read_value(option: Option, types: Mapping[str, Any]) -> Any:
    if option.field not in types:
        hint = suggest_nearest(option.field, types)
        settings = ", ".join(types) or "none"
        raise UsageError(f"The reward {option.name} has no setting '{option.field}'.{hint} It has: {settings}.")
    try:
        return coerce_text(option.value, types[option.field])
    except ValueError as error:
        raise UsageError(
            f"The option '{option.written}': {option.field} must be {error}, not '{option.value}'."
        ) from None


def coerce_text(text: str, kind: Any) -> Any:
    """Convert a string to a type: bool, int, float, str, a Literal, or a tuple of comma-separated strings.

    Raises:
        ValueError: the string does not parse; the message says what it must be.
    """
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return choices[text]
    if get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",")) if text else ()
    if kind is bool:
        if text.lower() not in BOOLEANS:
            raise ValueError("true or false")
        return BOOLEANS[text.lower()]
    if kind is object:  # unknown: anything that parses as a number is one
        return _read_plain(text)
    return _read_number(text, kind) if kind in (int, float) else text


def _read_plain(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return _read_number(text, kind)
        except ValueError:
            continue
    return text


def _read_number(text: str, kind: type[int] | type[float]) -> int | float:
    words = "a whole number" if kind is int else "a finite number"
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(words) from None
    if not math.isfinite(value):
        raise ValueError(words)
    return value
