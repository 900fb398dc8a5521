"""The keys of servers, which environment variables hold."""

from __future__ import annotations

import os

from qed.errors import UsageError


def read_key(variable: str) -> str:
    """Return the key in an environment variable, without space around it, such as the end of its line in a file.

    Raises:
        UsageError: it has characters that no header may have; the message does not show it.
    """
    key = os.environ.get(variable, "").strip() if variable else ""
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"The key in the environment variable {variable} has characters that cannot be sent.")
    return key
