"""Marks around an answer: the end of the thinking, the next turn, answer tags, and the line with `####`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from qed.grading.extraction.boxes import find_box

Tags = tuple[str, str]

TAGS = ("<answer>", "</answer>")
ANSWER_TAGS = (TAGS,)
# An element at the end of a text whose name says that it is the answer, and its content.
ELEMENT = re.compile(
    r"<(?P<name>answer|solution|result|final(?:[_-]?answer)?)>(?P<content>[^<>]{1,200})</(?P=name)>\s*\Z", re.IGNORECASE
)
FIELDS = ("answer", "final_answer", "final answer")
MAX_OBJECT_CHARS = 20_000
LONGEST_ELEMENT = 300  # characters, with its tags and the space after it
OPENING = re.compile(r"<(?:answer|solution|result|final(?:[_-]?answer)?)>", re.IGNORECASE)
# Tags of the thinking in prompts and models; the prompt may already contain the opening tag.
THOUGHTS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<start_working_out>", "<end_working_out>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
)
# A sampler that does not stop writes the next turn; the answer is before it.
TURNS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "</s>")


def may_have_thought(text: str) -> bool:
    """Return whether a text may have a tag of the thinking; False is certain."""
    # Parts of the tags, the fastest to find first; a loop over them would take longer than the searches themselves.
    if "<" in text and ("think" in text or "thought" in text or "reasoning>" in text or "working_out>" in text):
        return True
    return "THINK]" in text or "◁" in text


def cut_to_last_turn(text: str) -> str:
    """Return the text after the thinking and before any next turn."""
    for _, closing in THOUGHTS:
        text = text.rpartition(closing)[2]
    return cut_at_turn(text)


def cut_at_turn(text: str) -> str:
    """Return the text before the token that ends the turn, after which a sampler that does not stop continues."""
    if "<" not in text:
        return text
    ends = [start for turn in TURNS if (start := text.find(turn)) > 0]
    return text[: min(ends)] if ends else text


def cut_open_thought(text: str) -> str:
    """Return the text before a thinking block that is never closed."""
    starts = [start for opening, _ in THOUGHTS if (start := text.find(opening)) >= 0]
    return text[: min(starts)] if starts else text


def find_between(text: str, opening: str, closing: str) -> str | None:
    """Return the stripped text between the last `opening` and the next `closing`; None if either is missing."""
    start = text.rfind(opening) if opening[:1] in text else -1  # most texts do not even have its first character
    if start < 0:
        return None
    start += len(opening)
    end = text.find(closing, start)
    return text[start:end].strip() if end >= 0 else None


def find_tag(text: str, pairs: Sequence[Tags] = ANSWER_TAGS) -> str | None:
    """Return the content of the last opened tag, or of the box in it; None if the tag never closes."""
    answer = find_between(text, *find_last_opened(text, pairs))
    return None if answer is None else find_box(answer) or answer


def find_last_opened(text: str, pairs: Sequence[Tags]) -> Tags:
    """Return the pair of tags whose opening tag is the last in a text; the first pair if there is none."""
    return max(pairs, key=lambda pair: text.rfind(pair[0])) if len(pairs) > 1 and "<" in text else pairs[0]


def list_answer_tags(tags: Sequence[str]) -> tuple[Tags, ...]:
    """List the pairs that may enclose an answer: the last two of a prompt's four tags, and the usual pair."""
    return tuple(dict.fromkeys([*([(tags[2], tags[3])] if len(tags) == 4 else []), *ANSWER_TAGS]))


def find_last_element(text: str) -> str | None:
    """Return the content of an element such as <SOLUTION>5</SOLUTION> that ends a text; None if there are several."""
    found = ELEMENT.search(text[-LONGEST_ELEMENT:])
    return found["content"].strip() or None if found and len(OPENING.findall(text)) == 1 else None


def find_field(text: str) -> str | None:
    """Return the field `answer` of the JSON object that a text consists of; None if there are several such fields."""
    text = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    if not (text.startswith("{") and text.endswith("}")) or len(text) > MAX_OBJECT_CHARS:
        return None
    try:
        fields = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None
    if len(fields) != 1:  # another field may say something else
        return None
    ((name, value),) = fields
    return value.strip() or None if name.casefold() in FIELDS and isinstance(value, str) else None


def find_hashes(text: str) -> str | None:
    """Return the text after the last #### if it is on the last line; elsewhere #### is a heading."""
    line = text.rpartition("####")[2].strip()
    return line if "####" in text and "\n" not in line else None
