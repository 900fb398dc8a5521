"""Read the fields of a request's JSON object by type; the error for an invalid field names it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from qed.serving.refusals import Refused

SHOWN = 60  # the most characters of an invalid value in a message


class Fields:
    """The fields of a JSON object. A field that is null counts as missing.

    Raises:
        Refused: the value is not an object; every method raises it for a value of the wrong type or out of range.
    """

    def __init__(self, body: Any) -> None:
        if not isinstance(body, dict):
            raise Refused(400, f"The body must be a JSON object, not {describe(body)}.")
        self.body: dict[str, Any] = body

    def find(self, name: str) -> Any:
        """Return a field unchanged; None if it is missing."""
        return self.body.get(name)

    def read_integer(self, name: str, default: int, low: int, high: int) -> int:
        """Return a whole number between two inclusive bounds."""
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not is_integer(value) or not low <= value <= high:
            raise self.refuse(name, f"must be a whole number from {low} to {high}")
        return int(value)

    def read_number(self, name: str, default: float, valid: Callable[[float], bool], range_text: str) -> float:
        """Return a finite number for which `valid` holds."""
        value = self.body.get(name)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not valid(value):
            raise self.refuse(name, f"must be a number {range_text}")
        return float(value)

    def read_switch(self, name: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "must be true or false")
        return value

    def read_text(self, name: str, default: str | None = None) -> str | None:
        """Return a string."""
        value = self.body.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, "must be a string")
        return require_unicode(value, name)

    def read_texts(self, name: str, most: int, longest: int) -> tuple[str, ...]:
        """Return a string or a list of strings as a tuple; strings must not be empty."""
        value = self.body.get(name)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(one, str) and one for one in values):
            raise self.refuse(name, "must be a string or a list of strings, none of them empty")
        if len(values) > most or any(len(one) > longest for one in values):
            raise self.refuse(name, f"must have at most {most} strings of at most {longest} characters")
        return tuple(dict.fromkeys(require_unicode(one, name) for one in values))

    def read_ids(self, name: str) -> tuple[int, ...]:
        """Return a list of token ids."""
        value = self.body.get(name)
        if value is None:
            return ()
        if not is_ids(value):
            raise self.refuse(name, "must be a list of token ids")
        return tuple(value)

    def read_rows(self, name: str) -> list[list[int]]:
        """Return a list of lists of whole numbers."""
        value = self.body.get(name)
        if not isinstance(value, list) or not all(is_ids(row) for row in value):
            raise self.refuse(name, "must be a list of lists of whole numbers")
        return value

    def refuse_others(self, allowed: Mapping[str, Collection[Any]], why: str) -> None:
        """Refuse fields that this server does not support; `allowed` has their values without effect."""
        for name, values in allowed.items():
            value = self.body.get(name)
            inert = any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values)
            if value is not None and not inert:
                raise Refused(400, f"{name} is not supported: {why} Leave it out.", name)

    def refuse(self, name: str, rule: str) -> Refused:
        """Return the error for a field that breaks a rule."""
        found = describe(self.body[name]) if name in self.body else "missing"
        return Refused(400, f"{name} {rule}; it is {found}.", name)


def describe(value: Any) -> str:
    """Return a short description of an invalid value."""
    text = repr(value) if not isinstance(value, list | dict) else f"a {type(value).__name__} of {len(value)}"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def is_integer(value: Any) -> bool:
    """Return whether a JSON value is a whole number; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_ids(value: Any) -> bool:
    """Return whether a JSON value is a list of whole numbers."""
    return isinstance(value, list) and all(map(is_integer, value))


def require_unicode(text: str, name: str) -> str:
    """Return a text that can be encoded.

    Raises:
        Refused: it has a lone surrogate, which JSON can represent but no tokenizer can read.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Refused(400, f"{name} is not valid Unicode at character {error.start}: {error.reason}.", name) from error
    return text


def require_ids(rows: Sequence[Sequence[int]], vocabulary: int, name: str) -> None:
    """Check that all token ids are in the vocabulary.

    Raises:
        Refused: one is not.
    """
    for row in rows:
        if row and not 0 <= min(row) <= max(row) < vocabulary:
            wrong = next(token for token in row if not 0 <= token < vocabulary)
            raise Refused(400, f"{name} has the token id {wrong}; the model's ids are 0 to {vocabulary - 1}.", name)
