"""Reject prompts with invalid members, which would otherwise be misread silently or fail far from their file."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from qed.config.user_code import require_callable
from qed.errors import UsageError

NEEDED = {
    "render": "def render(problem, tokenizer), the text of a prompt",
    "demonstration": "def demonstration(problem), the text of a right answer, or None",
    "STOP": "STOP, a tuple of the strings that end an answer, which may be empty",
    "REWARD": "REWARD, the name of its reward",
    "CHAT": "CHAT, whether the tokenizer's chat template renders it",
}


def check_prompt(name: str, leaf: Any) -> None:
    """Check the members of a prompt.

    Raises:
        UsageError: a member is missing, has the wrong signature, is not a tuple of strings, or is an ambiguous tag.
    """
    for part, what in NEEDED.items():
        if not hasattr(leaf, part):
            raise UsageError(f"The prompt {name} has no {part}. It needs {what}.")
    for part, example in (("STOP", '("</answer>",)'), ("OPENS", '("<think>",)'), ("TAGS", '("<think>", "</think>")')):
        _check_texts(f"{part} of the prompt {name}", getattr(leaf, part, ()), example)
    if len(getattr(leaf, "TAGS", ())) not in (0, 2, 4):
        raise UsageError(
            f"TAGS of the prompt {name} must be two tags around the reasoning, or these and two around the result, "
            f"not {len(leaf.TAGS)}."
        )
    _check_tags(name, leaf)
    require_callable(f"{name}: render", leaf.render, "(problem, tokenizer)", 2)
    require_callable(f"{name}: demonstration", leaf.demonstration, "(problem)", 1)


def _check_texts(what: str, texts: Any, example: str) -> None:
    """Raise if a value is not a tuple of strings: a bare string would count each letter as one."""
    if not isinstance(texts, tuple | list) or not all(isinstance(text, str) for text in texts):
        raise UsageError(f"{what} must be a tuple of strings, such as {example}, not {texts!r}.")


def _check_tags(name: str, leaf: Any) -> None:
    """Raise if tags cannot be located: an empty one is in every text, and of two overlapping ones both match.

    Raises:
        UsageError: a tag or stop string is empty, or a tag is part of another one.
    """
    tags = getattr(leaf, "TAGS", ())
    if not all((*tags, *leaf.STOP)):
        shown = ", ".join(map(repr, dict.fromkeys((*tags, *leaf.STOP))))
        raise UsageError(f"A tag or stop string of the prompt {name} is empty, so it matches any text: {shown}.")
    for tag, other in permutations(tags, 2):
        if tag in other:
            raise UsageError(
                f"The tags {tag!r} and {other!r} of the prompt {name} cannot be told apart: choose tags that are "
                "neither equal nor part of each other."
            )


def require_text(what: str, text: Any) -> str:
    """Return the text that a prompt has produced.

    Raises:
        UsageError: it is not a string.
    """
    if not isinstance(text, str):
        raise UsageError(f"{what} returned {type(text).__name__}; it must return a string. Is a return missing?")
    return text
