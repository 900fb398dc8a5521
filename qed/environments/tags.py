"""Calls of tools as text: `<name>what to do</name>`, answered by `<result>…</result>` in the same message."""

from __future__ import annotations


def find_call(turn: str, name: str) -> str | None:
    """Return what a turn that ends with a call gives to the tool; None if it does not end with one."""
    opened, closed = f"<{name}>", f"</{name}>"
    end = turn.rfind(closed)
    start = turn.rfind(opened, 0, end)
    # Behind the end tag there is at most the rest of a token, such as `>.` or `>` with a line break.
    if end < 0 or start < 0 or any(letter.isalnum() for letter in turn[end + len(closed) :]):
        return None
    return turn[start + len(opened) : end]


def wrap_result(name: str, text: str) -> str:
    """Return a tool's result as the policy reads it; tags of its own name in it cannot end it."""
    opened, closed = make_tags(name)
    clean = text.replace(f"</{name}>", f"< /{name}>").strip("\n")
    return f"{opened}{clean}{closed}"


def make_tags(name: str) -> tuple[str, str]:
    """Return what is before and after a tool's result."""
    return f"\n<{name}>\n", f"\n</{name}>\n"
