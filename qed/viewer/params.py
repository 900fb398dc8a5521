"""The parameters of a request, each checked when it is read, and the error for a request that cannot be answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from qed.errors import QedError

MOST_CHARACTERS = 2_000  # of a parameter
MOST_NUMBER = 10**9


class Refused(QedError):
    """Raised for a request whose reply is an error.

    Args:
        status: the HTTP status.
        message: what is wrong, and what to do.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Params:
    """The parameters of a request.

    Args:
        values: one or several values of each name.
    """

    def __init__(self, values: Mapping[str, str | int | Sequence[str]] | None = None) -> None:
        self._values = {name: _list_texts(value) for name, value in (values or {}).items()}

    def __contains__(self, name: str) -> bool:
        return bool(self._values.get(name))

    def many(self, name: str) -> list[str]:
        """Return all values of a parameter, none if it is missing.

        Raises:
            Refused: one is too long, or contains a NUL character.
        """
        values = self._values.get(name, [])
        for value in values:
            if len(value) > MOST_CHARACTERS:
                raise Refused(400, f"The parameter {name} is longer than {MOST_CHARACTERS} characters.")
            if "\0" in value:
                raise Refused(400, f"The parameter {name} contains a NUL character.")
        return list(values)

    def text(self, name: str, default: str | None = None) -> str:
        """Return a parameter.

        Raises:
            Refused: it is missing and has no default, or it is given twice.
        """
        values = self.many(name)
        if len(values) > 1:
            raise Refused(400, f"The parameter {name} is given {len(values)} times. Give it once.")
        if values:
            return values[0]
        if default is None:
            raise Refused(400, f"The parameter {name} is missing.")
        return default

    def number(self, name: str, default: int | None = None, low: int = 0, high: int = MOST_NUMBER) -> int:
        """Return a parameter that is a whole number.

        Raises:
            Refused: it is missing and has no default, is not a number, or is out of range.
        """
        text = self.text(name, None if default is None else str(default))
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 12):
            raise Refused(400, f"The parameter {name} must be a whole number, not '{text[:40]}'.")
        if not low <= int(text) <= high:
            raise Refused(400, f"The parameter {name} must be from {low} to {high}, not {int(text)}.")
        return int(text)

    def flag(self, name: str) -> bool:
        """Return whether a parameter is set: `1` or `true`."""
        return self.text(name, "0") in ("1", "true")


def _list_texts(value: str | int | Sequence[str]) -> list[str]:
    return [str(value)] if isinstance(value, str | int) else [str(one) for one in value]
