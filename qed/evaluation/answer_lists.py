"""Read the answers of a row: one text, a list of k answers, or one answer split into a list of parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from qed.data.sources.rows import Place
from qed.errors import DataError
from qed.grading.extract import extract_final_answer

WHATS = "Say what a list is: --lists answers (each item is an answer) or --lists parts (the items are one answer)"


def split_answers(place: Place, value: Any, gold: Any, lists: str = "") -> list[str]:
    """Return the answers in a value of the column of answers.

    A list of texts or numbers holds k answers. A conversation is one answer, its last message; content parts with a
    `type`, as chat interfaces return them, are one answer too, and so is an empty list.

    Args:
        place: where the row is, for errors.
        value: the value as read from a file, of any type.
        gold: the row's gold. If it has several values, a list of answers is ambiguous: one answer in parts, or k.
        lists: `answers` or `parts` says what a list is.

    Raises:
        DataError: the list is ambiguous.
    """
    if not is_list(value):
        return [convert_to_text(value)]
    if not value:
        return [""]
    several_golds = is_list(gold) and len({convert_to_text(one) for one in gold}) > 1
    if several_golds and len(value) > 1 and not lists:
        raise DataError(f"{place}: both the gold and the answer are lists of several values. {WHATS}.")
    answers = [convert_to_text(one) for one in value]
    return [_join_parts(answers, several_golds)] if lists == "parts" else answers


def is_list(value: Any) -> bool:
    """Return whether a value is a list of answers or golds rather than a conversation or the parts of a message."""
    if not isinstance(value, list):
        return False
    return not any(isinstance(one, dict) and ("role" in one or "type" in one) for one in value)


def require_answers(values: Iterable[tuple[Place, Any]]) -> None:
    """Raise if lists look like the steps or pieces of one answer.

    Args:
        values: the places and values of a column of answers.

    Raises:
        DataError: in every list only the last item has a boxed or tagged answer, or all items but the first start with
            whitespace.
    """
    lists = [(place, [convert_to_text(one) for one in value]) for place, value in values if is_list(value)]
    lists = [(place, items) for place, items in lists if len(items) > 1]
    if not lists:
        return
    steps = all(_has_answer(items[-1]) and not any(map(_has_answer, items[:-1])) for _, items in lists)
    pieces = all(
        not items[0][:1].isspace() and all(item[:1].isspace() for item in items[1:] if item) for _, items in lists
    )
    if steps or pieces:
        why = "only the last item of each list has an answer" if steps else "the items continue each other"
        raise DataError(f"{lists[0][0]}: the lists look like one answer in parts: {why}. {WHATS}.")


def pick_own(row_value: Any, number: int, count: int) -> Any:
    """Return the value for one of `count` answers: item `number` of a list of that length, else the whole value."""
    return row_value[number] if isinstance(row_value, list) and len(row_value) == count else row_value


def convert_gold(value: Any) -> str:
    """Convert a gold to text; several plain values are joined, because all of them are required.

    A value that is only repeated, as in files with k answers per row, is one gold.
    """
    if isinstance(value, list) and not any(isinstance(one, dict | list) for one in value):
        texts = [convert_to_text(one) for one in value]
        return texts[0] if len(set(texts)) == 1 else ", ".join(texts)
    return convert_to_text(value)


def convert_to_text(value: Any) -> str:
    """Convert an answer to text: the last message, or the text of a choice; missing values become empty."""
    while isinstance(value, dict | list):
        if isinstance(value, dict):
            value = value.get("content", value.get("text", value.get("message")))
        elif value and all(isinstance(part, dict) and "type" in part for part in value):
            return "".join(convert_to_text(part.get("text")) for part in value)
        else:
            value = next(reversed(value), None)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if _is_missing(value) else str(value)


def _is_missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or pandas.NA, which has no truth value even when compared with itself."""
    try:
        return value is None or bool(value != value)
    except TypeError:
        return True


def _has_answer(text: str) -> bool:
    return extract_final_answer(text, "strict") is not None


def _join_parts(texts: Sequence[str], values: bool) -> str:
    """Join the parts of an answer: `values` and single words with commas, pieces with whitespace as they are, steps
    as lines.
    """
    spaced = any(text != text.strip() for text in texts)
    values = values or all(text and not any(map(str.isspace, text)) for text in texts)
    return ", ".join(texts) if values else ("" if spaced else "\n").join(texts)
