"""Read multiple-choice rows: the question contains the options with their letters, and the answer is a letter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from qed.data.sources.fields import Fields, convert_to_text
from qed.data.sources.rows import Place, Row
from qed.errors import DataError
from qed.randomness import derive_seed, shuffle_indices

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
DIGITS = "123456789"
LISTED = re.compile(r"\bA\b.*\bB\b", re.DOTALL)  # matches a question with its options, in any format
SEVERAL = re.compile(r"\w\W+\w")  # matches a text with options, but not one such as "none"
MARKER = re.compile(r"(?:^|\s)([A-Z1-9])[).] ")  # the label of an option in a question


def build_fields(question: str, options: Sequence[str], answer: str, used: tuple[str, ...]) -> Fields:
    """Build a question followed by its options.

    `meta["choices"]` are the options' texts, `meta["options"]` their letters.
    """
    letters = LETTERS[: len(options)]
    listed = "\n".join(f"{letter}) {option}" for letter, option in zip(letters, options, strict=True))
    extra: dict[str, Any] = {"choices": tuple(options), "options": letters}
    if question != question.strip():
        extra["stem"] = question  # unchanged, for scores that depend on every character
    return Fields(f"{question.strip()}\n\n{listed}", answer, used=used, extra=extra)


def read_options(row: Row, place: Place) -> Fields:
    """Read options from a list or columns A to D, and the answer as a letter, an index from 0, a label or a text.

    MMLU: `question, choices, answer`; MMLU-Pro: `question, options, answer`; ARC: `choices {text, label}, answerKey`.
    """
    key = next((name for name in ("choices", "options") if row.get(name) not in (None, "")), "")
    labels: Sequence[str] = LETTERS
    given: Any = row[key] if key else [row[letter] for letter in "ABCD"]
    if isinstance(given, dict):
        given, labels = given.get("text"), given.get("label") or ()
    if isinstance(given, str):
        given = _split_written(given) or given
    if not isinstance(given, list | tuple) or not isinstance(labels, str | list | tuple):
        raise DataError(
            f"{place}: {key or 'A to D'} is not a list of options: {str(given)[:80]}. Use a list, which needs a .jsonl "
            "or .parquet file, or the columns A, B, C and D."
        )
    if len(given) > len(LETTERS):
        raise DataError(f"{place}: {key} has {len(given)} options, and only {len(LETTERS)} have letters.")
    options = [convert_to_text(option, place, key) for option in given]
    gold_key = next((name for name in ("answerKey", "answer") if name in row), "")
    gold: Any = row.get(gold_key)
    names = [str(label) for label in labels[: len(options)]]
    if isinstance(gold, str | int) and str(gold) in names:
        number = names.index(str(gold))
    elif isinstance(gold, int) and not isinstance(gold, bool) and 0 <= gold < len(options):
        number = gold
    else:
        number = _find_option(convert_to_text(gold, place, gold_key).strip(), options, place)
    used = ("question", key, gold_key, "answer_index", "A", "B", "C", "D")
    return build_fields(convert_to_text(row["question"], place, "question"), options, LETTERS[number], used)


def lacks_options(row: Row) -> bool:
    """Return whether a row asks for a letter, but has its options only in a text outside of the question."""
    question, letter = row.get("question"), row.get("answerKey", row.get("answer"))
    texts = [text for key in ("choices", "options") if isinstance(text := row.get(key), str) and SEVERAL.search(text)]
    if not (texts and isinstance(question, str) and isinstance(letter, str) and letter.strip() in (*LETTERS,)):
        return False
    if any(text.strip() in question for text in texts):
        return False
    written = (option for text in texts for option in _split_written(text))
    return LISTED.search(question) is None or not all(option in question for option in written)


def _split_written(text: str) -> list[str]:
    """Return the options of a text of the form `A) … B) …`; an empty list for other forms."""
    options = list(parse_written_options(text).get("choices", ()))
    return options if options and options[0] and text.lstrip()[3:].lstrip().startswith(options[0]) else []


def _find_option(gold: str, options: Sequence[str], place: Place) -> int:
    """Return the index of the option whose text is the answer.

    Raises:
        DataError: the answer is not an option, or is ambiguous.
    """
    meant = {number for number, option in enumerate(options) if gold and option.strip() == gold}
    # In a text-only file, a digit may be an option's text or its index: a guess could teach a wrong answer.
    if meant and gold in map(str, range(len(options))):
        meant.add(int(gold))
    if not meant:
        raise DataError(f"{place}: the answer {gold!r} is none of the {len(options)} options.")
    if len(meant) > 1:
        letters = " or ".join(LETTERS[number] for number in sorted(meant))
        raise DataError(
            f"{place}: the answer {gold!r} may mean option {letters}, by the option's text or by its index from 0: "
            "give the letter."
        )
    return meant.pop()


def read_gpqa(row: Row, place: Place) -> Fields:
    """Read a GPQA row: one correct and three wrong options, in a random order that is fixed for each question."""
    columns = ("Correct Answer", *(f"Incorrect Answer {number}" for number in (1, 2, 3)))
    question = convert_to_text(row["question"], place, "question")
    options = [convert_to_text(row.get(column), place, column).strip() for column in columns]
    order = shuffle_indices(len(options), "gpqa", derive_seed(question, *options))
    return build_fields(question, [options[index] for index in order], LETTERS[order.index(0)], ("question", *columns))


def parse_written_options(question: str) -> dict[str, Any]:
    """Parse options such as `A) …` or `1) …` from the text of a question; return an empty dict if there are none."""
    for labels in (LETTERS, DIGITS):
        marks = [mark for mark in MARKER.finditer(question) if mark[1] in labels]
        # The options are the last run of labels that starts at the first label.
        start = max((index for index, mark in enumerate(marks) if mark[1] == labels[0]), default=len(marks))
        marks = marks[start:]
        letters = "".join(mark[1] for mark in marks)
        if len(letters) >= 2 and labels.startswith(letters):
            ends = [mark.start() for mark in marks[1:]] + [len(question)]
            texts = tuple(question[mark.end() : end].strip() for mark, end in zip(marks, ends, strict=True))
            return {"choices": texts, "options": letters}
    return {}
