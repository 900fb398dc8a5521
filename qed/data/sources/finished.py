"""Recognise prompts that are already rendered, by a built-in plain prompt or by a chat template.

Such a prompt is used verbatim. Its question is extracted, so that held-out questions are recognised.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from qed.config import plugins
from qed.types import Problem

# How common chat templates begin the assistant's and the user's turn, and how they end a turn.
ASSISTANT = (
    r"<\|im_start\|>assistant|<\|start_header_id\|>assistant<\|end_header_id\|>|<start_of_turn>model|\[/INST\]"
    r"|<\|(?:assistant|Assistant)\|>|<\|start\|>assistant|<｜Assistant｜>"
)
USER = (
    r"<\|im_start\|>user|<\|start_header_id\|>user<\|end_header_id\|>|<start_of_turn>user|\[INST\]"
    r"|<\|(?:user|User)\|>|<\|start\|>user<\|message\|>|<｜User｜>"
)
TURN_END = re.compile(r"<\|im_end\|>|<\|eot_id\|>|<\|end\|>|<end_of_turn>|<\|endoftext\|>|</s>")
# The same in plain text.
PLAIN_ASSISTANT = r"^(?:### (?:Response|Assistant):|(?:Assistant|ASSISTANT):)"
PLAIN_USER = r"(?:### (?:Instruction|User|Human):|\b(?:User|USER|Human):)"
TAG = r"<(?:think|reasoning|start_working_out)>"
OPENED = rf"\s*(?:{TAG})?\s*\Z"
CHAT_END = re.compile(f"(?:{ASSISTANT}){OPENED}")
PLAIN_END = re.compile(f"(?:{PLAIN_ASSISTANT}){OPENED}", re.MULTILINE)
TAG_END = re.compile(rf"{TAG}\s*\Z")
CHAT_TURN, PLAIN_TURN = re.compile(USER), re.compile(PLAIN_USER, re.MULTILINE)
MARK = "\0question\0"


class FinishedPrompt(NamedTuple):
    """The question of a rendered prompt, and what rendered it: a built-in prompt, or a kind of template."""

    question: str
    rendered_by: str


def recognize_prompt(text: str) -> FinishedPrompt | None:
    """Recognise a rendered prompt; return None for a bare question."""
    for name, (before, after) in _list_shelf().items():
        if len(text) > len(before) + len(after) and text.startswith(before) and text.endswith(after):
            return FinishedPrompt(text[len(before) : len(text) - len(after)], name)
    for end, turn, kind in ((CHAT_END, CHAT_TURN, "a chat template"), (PLAIN_END, PLAIN_TURN, "a dialogue in text")):
        begun = end.search(text)
        asked = list(turn.finditer(text, 0, begun.start())) if begun else []
        if begun and asked:
            question = TURN_END.split(text[asked[-1].end() : begun.start()], maxsplit=1)[0].strip()
            return FinishedPrompt(question, kind) if question else None
    return FinishedPrompt(text, "a text that opens the reasoning") if TAG_END.search(text) else None


def is_chat_text(text: str) -> bool:
    """Return whether a text ends where a chat template begins the assistant's turn."""
    return CHAT_END.search(text) is not None


@cache
def _list_shelf() -> dict[str, tuple[str, str]]:
    """List the texts before and after the question in the built-in plain prompts, the longest text first."""
    found = {}
    for name in plugins.list_leaves("prompts"):
        leaf = plugins.load_leaf("prompts", name)
        if not leaf.CHAT:
            before, _, after = leaf.render(Problem("", MARK, ""), None).partition(MARK)
            found[name] = (before, after)
    named = sorted(found, key=lambda name: -len("".join(found[name])))
    return {name: found[name] for name in named if found[name][0].strip()}
