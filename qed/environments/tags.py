"""Tool calls as text: `<name>input</name>`, answered by `<result>…</result>` in the same message."""

from __future__ import annotations


def find_call(turn: str, name: str) -> str | None:
    """Return the input of the tool call at the end of a turn; None if the turn does not end with one."""
    opened, closed = f"<{name}>", f"</{name}>"
    end = turn.rfind(closed)
    start = turn.rfind(opened, 0, end)
    # After the end tag there is at most the rest of a token, such as `>.` or `>` with a line break.
    if end < 0 or start < 0 or any(letter.isalnum() for letter in turn[end + len(closed) :]):
        return None
    return turn[start + len(opened) : end]


def wrap_result(name: str, text: str) -> str:
    """Return a tool's result as the policy reads it; end tags of that name inside it are escaped."""
    opened, closed = make_tags(name)
    clean = text.replace(f"</{name}>", f"< /{name}>").strip("\n")
    return f"{opened}{clean}{closed}"


def make_tags(name: str) -> tuple[str, str]:
    """Return the text before and after a tool's result."""
    return f"\n<{name}>\n", f"\n</{name}>\n"
