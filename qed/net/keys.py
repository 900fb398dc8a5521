"""Read the API keys of servers from environment variables."""

from __future__ import annotations

import os

from qed.errors import UsageError


def read_key(variable: str) -> str:
    """Return the key in an environment variable, stripped of whitespace such as the line end of the file it came from.

    Raises:
        UsageError: it has characters that a header must not contain; the message does not show the key.
    """
    key = os.environ.get(variable, "").strip() if variable else ""
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"The key in the environment variable {variable} has characters that cannot be sent.")
    return key
