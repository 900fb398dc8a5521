"""Sum the token usage of an endpoint's answers, and count those that are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def is_answered(row: Mapping[str, Any]) -> bool:
    """Return whether a row has an answer; an endpoint may refuse a prompt, or fail to answer it."""
    return row.get("stop_reason") not in ("refused", "failed")


def summarize_usage(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tokens and the refused and failed answers of an endpoint's rows; empty for those of a sampler."""
    asked = [row for row in rows if "usage" in row]
    if not asked:
        return {}
    names = sorted({name for row in asked for name in row["usage"]})
    return {
        "usage": {
            "requests": len(asked),
            **{name: sum(row["usage"].get(name, 0) for row in asked) for name in names},
            # The token counts above exclude these.
            "without_usage": sum(not row["usage"] for row in asked),
            "refused": sum(row["stop_reason"] == "refused" for row in asked),
            "failed": sum(row["stop_reason"] == "failed" for row in asked),
            "empty": sum(not str(row["text"]).strip() and row["stop_reason"] in ("stop", "length") for row in asked),
        }
    }


def describe_usage(label: str, figures: Mapping[str, Any]) -> list[str]:
    """Describe in lines the token cost of a task, and missing answers."""
    usage, max_tokens = figures["usage"], figures["settings"]["max_tokens"]
    reasoning = f" (of these {usage['reasoning']:,} reasoning)" if usage.get("reasoning") else ""
    cached = f", {usage['cached']:,} of them cached" if usage.get("cached") else ""
    price = f", at a price of {usage['cost']:g} according to the endpoint" if usage.get("cost") else ""
    lines = [
        f"{label}: {usage['requests']:,} answers cost {usage.get('prompt', 0):,} prompt tokens{cached} and "
        f"{usage.get('completion', 0):,} answer tokens{reasoning}{price}."
    ]
    if usage["without_usage"] > usage["refused"] + usage["failed"]:
        lines.append(f"{label}: the endpoint does not report the tokens of {usage['without_usage']:,} answers.")
    if usage["refused"] or usage["failed"]:
        lines.append(
            f"Warning: {label}: {usage['refused']:,} answers were refused and {usage['failed']:,} failed; they count "
            "as wrong, and their rows say why. The same command retries the failed ones."
        )
    if usage["empty"]:
        lines.append(
            f"Warning: {label}: {usage['empty']:,} answers have no text; a model that thinks may need more than "
            f"{max_tokens:,} tokens (--max-tokens)."
        )
    return lines
