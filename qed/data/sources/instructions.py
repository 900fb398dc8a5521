"""Read a question or an instruction with its full reply: Alpaca, Dolly, OpenOrca, OpenRLHF, and axolotl's segments."""

from __future__ import annotations

from itertools import groupby

from qed.data.sources import conversations
from qed.data.sources.fields import Fields, SkippedRow, convert_to_text, find_filled_column, read_answer_beside_reply
from qed.data.sources.labels import GOLDS
from qed.data.sources.rows import Place, Row
from qed.errors import DataError
from qed.grading.extract import find_last_boxed

REPLIES = ("output", "response", "completion")
INPUTS = ("input", "context")  # the text that an instruction refers to, in Alpaca and in Dolly
QUESTIONS = ("question", "problem", "query")


def has_instruction(row: Row) -> bool:
    """Return whether a row has an instruction and a reply."""
    return "instruction" in row and bool(set(REPLIES) & set(row))


def read_instruction(row: Row, place: Place) -> Fields:
    """Read a row of Alpaca, LLaMA-Factory or Dolly: an instruction, an optional input or context, and the reply."""
    skip_history(row)
    reply = find_filled_column(row, REPLIES) or next(key for key in REPLIES if key in row)
    question = join_input(convert_to_text(row["instruction"], place, "instruction"), row, place)
    completion = convert_to_text(row[reply], place, reply)
    answer_key, answer = read_answer_beside_reply(row, place)
    return Fields(question, answer, completion=completion, used=("instruction", *INPUTS, reply, "history", answer_key))


def skip_history(row: Row) -> None:
    """Raise SkippedRow if a row of LLaMA-Factory has earlier turns in `history`."""
    if isinstance(row.get("history"), list) and row["history"]:
        raise SkippedRow("conversations that are not one question and one answer")


def join_input(instruction: str, row: Row, place: Place) -> str:
    """Return an instruction followed by the input or context of its row."""
    key = find_filled_column(row, INPUTS)
    text = convert_to_text(row[key], place, key).strip() if key else ""
    return f"{instruction.strip()}\n\n{text}" if text else instruction


def has_question_and_reply(row: Row) -> bool:
    """Return whether a row has a question and a reply without a gold answer, not even a boxed one in the reply."""
    if find_filled_column(row, GOLDS):
        return False
    reply = row.get("response")
    asked = find_filled_column(row, QUESTIONS) and isinstance(reply, str) and find_last_boxed(reply) is None
    return bool(asked) or ({"input", "output"} <= set(row) and not find_filled_column(row, (*QUESTIONS, "prompt")))


def read_question_and_reply(row: Row, place: Place) -> Fields:
    """Read a question and its reply, as in OpenOrca, MetaMathQA and OpenRLHF (input and output, also as messages)."""
    asked, replied = find_filled_column(row, QUESTIONS) or "input", "response" if "response" in row else "output"
    question = conversations.read_question(row[asked], place, asked)
    return Fields(question, completion=conversations.read_reply(row[replied], place, replied), used=(asked, replied))


def has_segments(row: Row) -> bool:
    """Return whether a row has axolotl's segments: texts, each with a label that says whether it is trained on."""
    segments = row.get("segments")
    return isinstance(segments, list) and bool(segments) and all(isinstance(part, dict) for part in segments)


def read_segments(row: Row, place: Place) -> Fields:
    """Read axolotl's input_output format: leading untrained segments are the prompt, the rest is the reply."""
    if not all(isinstance(part.get("label"), bool) for part in row["segments"]):
        raise DataError(f"{place}: a segment has no label, which must say whether the text is trained on.")
    runs = [
        (trained, "".join(convert_to_text(part.get("text"), place, "segments") for part in parts))
        for trained, parts in groupby(row["segments"], key=lambda part: part["label"])
    ]
    if [trained for trained, _ in runs] != [False, True]:
        raise SkippedRow("conversations that are not one question and one answer")
    return Fields(runs[0][1], completion=runs[1][1], used=("segments",))
