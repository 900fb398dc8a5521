"""Make a value from a run's files safe to send: without secrets, of bounded size, and with only numbers of JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from qed.guards.redaction import redact

MAX_NODES = 5_000  # values in one setting or event; YAML aliases can repeat one a billion times
MAX_DEPTH = 20
LARGEST = 1 << 64  # Python refuses to write integers of thousands of digits
CUT = "…"


def clean_value(value: Any, name: str = "") -> Any:
    """Return a JSON value with all strings redacted, at most MAX_NODES values, and null for NaN and infinities.

    Args:
        value: a value from a file.
        name: its key. Some secrets are recognised only by their key, such as `api_key: abc`.
    """
    return _Cleaner().clean(value, name, 0)


class _Cleaner:
    """Cleans a value and counts the values in it."""

    def __init__(self) -> None:
        self.nodes = 0

    def clean(self, value: Any, name: str, depth: int) -> Any:
        """Return the cleaned value, or a placeholder if it is too deep or too large."""
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            return CUT
        if value is None or isinstance(value, bool | int):
            return value if value is None or abs(value) < LARGEST else CUT
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, Mapping):
            return {
                redact(str(key)): self.clean(inner, str(key), depth + 1) for key, inner in self._bound(value.items())
            }
        if isinstance(value, list | tuple):
            return [self.clean(inner, name, depth + 1) for inner in self._bound(value)]
        return redact_named(name, str(value))

    def _bound(self, values: Any) -> Iterator[Any]:
        """Yield values until the budget is spent."""
        for value in values:
            if self.nodes > MAX_NODES:
                return
            yield value


def redact_texts(values: Sequence[Any]) -> list[Any]:
    """Redact the texts among many values; one check of all of them together is fast if none has a secret."""
    joined = "\n".join(value for value in values if isinstance(value, str))
    if redact(joined) == joined:
        return list(values)
    return [redact(value) if isinstance(value, str) else value for value in values]


def redact_named(name: str, text: str) -> str:
    """Redact a text that contains a secret, or whose key says that it is one, as in `api_key: abc`."""
    prefix = f"{name}: "
    shown = redact(prefix + text) if name else redact(text)
    return shown.removeprefix(prefix) if shown.startswith(prefix) else redact(text)
