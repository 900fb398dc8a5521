"""Replies as standard JSON, and reports of bugs on the terminal."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from typing import Any

from qed.guards.redaction import redact, strip_control


def report_bug(place: str, error: Exception) -> None:
    """Write a line to stderr about an error that is a bug, or due to an unusual file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    where = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace is not None else "unknown place"
    text = " ".join(str(error).split())[:500]
    sys.stderr.write(strip_control(redact(f"error: {place}: {type(error).__name__}: {text} ({where})")) + "\n")


def encode_reply(reply: dict[str, Any]) -> bytes:
    """Encode a reply as JSON; numbers that JSON does not have become null."""
    try:
        text = json.dumps(reply, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        text = json.dumps(_drop_non_finite(reply), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def find_neighbours(numbers: Sequence[int], at: int) -> dict[str, int | None]:
    """Return the numbers before and after an index of a list, to which its page links."""
    return {
        "previous": numbers[at - 1] if at else None,
        "next": numbers[at + 1] if at + 1 < len(numbers) else None,
    }


def _drop_non_finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _drop_non_finite(inner) for key, inner in value.items()}
    return [_drop_non_finite(inner) for inner in value] if isinstance(value, list | tuple) else value
