"""Errors of one rank that are sent to the other ranks of the run, which raise them too."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from qed import errors
from qed.errors import Diverged, Interrupted, QedError


def describe_error(error: Exception) -> dict[str, Any]:
    """Describe an error, so that it can be sent to the other ranks."""
    known = isinstance(error, QedError)
    text = str(error) if known else "".join(traceback.format_exception_only(error)).strip()
    rollouts = error.rollouts if isinstance(error, Diverged) else ()
    code = error.exit_code if isinstance(error, QedError) else QedError.exit_code
    return {"type": type(error).__name__ if known else "", "text": text, "code": code, "rollouts": rollouts}


def rebuild_error(described: Mapping[str, Any], rank: int) -> QedError:
    """Rebuild the error that another rank has described."""
    if described["type"] == Interrupted.__name__:
        return Interrupted(described["text"], described["code"])
    if described["type"] == Diverged.__name__:
        return Diverged(described["text"], described["rollouts"])
    kind = getattr(errors, described["type"], None)
    if isinstance(kind, type) and issubclass(kind, QedError):
        return kind(described["text"])
    return QedError(f"Rank {rank} failed: {described['text']}. Its log has the traceback.")
