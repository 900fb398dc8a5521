"""The settings of rewards: `NAME.FIELD=VALUE`, read by the type of the field.

A reward with settings is an instance of a frozen dataclass; its fields are the settings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from qed.errors import UsageError, suggest_nearest

TRUTHS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
BUDGET = "max_tokens"  # a field of this name that is 0 gets the run's own


@dataclass(frozen=True)
class Option:
    """One setting as it was written."""

    name: str
    field: str
    value: str
    written: str


def parse_options(options: Sequence[str]) -> list[Option]:
    """The settings as written, `overlong.cache=64`.

    Raises:
        UsageError: one is not of the form NAME.FIELD=VALUE.
    """
    found = []
    for written in options:
        target, equals, value = written.partition("=")
        name, point, field = target.strip().rpartition(".")
        if not (equals and point and name and field):
            raise UsageError(
                f"The reward option '{written}' is not of the form NAME.FIELD=VALUE, as overlong.cache=64."
            )
        found.append(Option(name.strip(), field.strip().replace("-", "_"), value.strip(), written))
    return found


def check_names(options: Iterable[Option], known: Iterable[str]) -> None:
    """Raise a UsageError for an option of a reward that was not chosen."""
    known = list(dict.fromkeys(known))
    for option in options:
        if option.name not in known:
            raise UsageError(
                f"The option '{option.written}' is for a reward that is not "
                f"chosen.{suggest_nearest(option.name, known)} "
                f"Chosen: {', '.join(known)}."
            )


def apply_options(name: str, reward: Any, options: Iterable[Option], max_tokens: int) -> Any:
    """The reward of that name with its settings changed; one without settings stays as it is.

    Raises:
        UsageError: it has no such setting, or a value cannot be read as the field's type.
    """
    own = [option for option in options if option.name == name]
    if not is_settable(reward):
        if own:
            raise UsageError(f"The option '{own[0].written}' cannot be set: the reward {name} has no settings.")
        return reward
    kinds = _read_types(type(reward))
    changes = {option.field: _read_value(option, kinds) for option in own}
    if BUDGET in kinds and not changes.get(BUDGET, getattr(reward, BUDGET)):
        changes[BUDGET] = max_tokens
    return replace(reward, **changes)


def is_settable(reward: Any) -> bool:
    """Whether a reward has settings: whether it is an instance of a dataclass."""
    return is_dataclass(reward) and not isinstance(reward, type)


def _read_types(owner: type[Any]) -> Mapping[str, Any]:
    hints = get_type_hints(owner)
    return {field.name: hints[field.name] for field in fields(owner) if field.init}


def _read_value(option: Option, kinds: Mapping[str, Any]) -> Any:
    if option.field not in kinds:
        hint = suggest_nearest(option.field, kinds)
        settings = ", ".join(kinds) or "none"
        raise UsageError(f"The reward {option.name} has no setting '{option.field}'.{hint} It has: {settings}.")
    try:
        return coerce_text(option.value, kinds[option.field])
    except ValueError as error:
        raise UsageError(
            f"The option '{option.written}': {option.field} must be {error}, not '{option.value}'."
        ) from None


def coerce_text(text: str, kind: Any) -> Any:
    """A text as a value of a type: bool, int, float, str, a Literal, or a tuple of texts between commas.

    Raises:
        ValueError: it cannot be read so; the message says what it must be.
    """
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        if text not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return choices[text]
    if get_origin(kind) is tuple:
        return tuple(part.strip() for part in text.split(",")) if text else ()
    if kind is bool:
        if text.lower() not in TRUTHS:
            raise ValueError("true or false")
        return TRUTHS[text.lower()]
    return _read_number(text, kind) if kind in (int, float) else text


def _read_number(text: str, kind: type[int] | type[float]) -> int | float:
    words = "a whole number" if kind is int else "a finite number"
    try:
        value = kind(text)
    except ValueError:
        raise ValueError(words) from None
    if not math.isfinite(value):
        raise ValueError(words)
    return value
