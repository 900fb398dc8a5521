"""Read rows in the common schemas of data for reasoning models.

The schema is recognised by a row's columns, not by the file's name; the first matching schema is used.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from qed.data.sources import choices, conversations, instructions, labels, preferences
from qed.data.sources.explain import describe_expected, describe_nearest, suggest_column_option
from qed.data.sources.fields import (
    ANSWER,
    Fields,
    convert_solution,
    convert_to_text,
    find_column,
    find_filled_column,
    read_answer,
)
from qed.data.sources.finished import recognize_prompt
from qed.data.sources.rows import Place, Row
from qed.errors import DataError, UsageError
from qed.grading.extract import find_last_boxed

QUESTION = ("question", "problem", "prompt")
SOLUTION = ("solution", "completion", "response")
# Complete model answers, from which the prompt builds a demonstration.
TRACE = ("r1_solution_1", "r1_solution_2", "r1_solution_3", "generated_solution")
# What `qed generate` adds to the row of a question.
GENERATED = ("row", "sample", "prompt", "completion", "finish_reason", "n_tokens")
# OpenR1 has several answers of a model per problem, and checks of each.
GENERATIONS = ("generations", "correctness_math_verify", "is_reasoning_complete")
COLUMNS = (
    *(*QUESTION, *ANSWER, *SOLUTION, *TRACE, "subject", "type", "level", "source", "target", "chosen", "rejected"),
    *("messages", "conversations", "instruction", "input", "output", "choices", "options", "reward_model"),
)
# The columns that the readers find, by their names in small letters. A to D stay: single letters are also variables.
FOLDED = {
    name.casefold(): name
    for name in (
        *(*QUESTION, *ANSWER, *SOLUTION, *TRACE, *GENERATIONS, *preferences.CHOSEN, *preferences.REJECTED),
        *(*preferences.PROMPTS, *instructions.REPLIES, *instructions.INPUTS, *instructions.QUESTIONS, "history"),
        *(*labels.LABELS, *labels.REPLIES, *labels.GOLDS, "answerKey", "body", "margin", "segments"),
        *(conversations.TRACES, conversations.PROBABILITIES, "extra_info"),
    )
}
TYPO = 0.85  # a name this similar to one of qed's columns is taken for a typo, not a user-defined column
ALIKE = 0.5  # a column this similar to one of qed's is suggested in its place
OTHER_SCHEMAS = (
    "prompt and completion, messages, conversations, chosen and rejected, instruction and output, question and "
    "choices, prompt and reward_model"
)
# What NuminaMath 1.5 writes, besides this column, instead of an answer for a proof or if none was found.
NUMINA_NONE, NUMINA_CHECK = ("proof", "notfound"), "problem_is_valid"
CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K's calculator annotations: 48/2 = <<48/2=24>>24
# The marker before the answer: the first in GSM8K, the second in its published model solutions.
GSM8K_MARKS = {"answer": "####", "ground_truth": "\nA: "}
# A single number with commas between groups of digits; other commas separate the parts of a point, a set or a list.
GROUPED = re.compile(r"[^\d,()\[\]{}]*\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d)[^,()\[\]{}]*")

Reader = Callable[[Row, Place], Fields]


class OptionalMapping(dict[str, str]):
    """A column mapping that does not change rows lacking some of its columns, because it is meant for another file."""


def rename_columns(row: Row, mapping: Mapping[str, str], place: Place) -> Row:
    """Rename the columns of a row by the user's mapping from qed's name to the file's name.

    A dotted name accesses a nested column: reward_model.ground_truth. Names that qed does not read become columns for a
    user-defined reward.

    Raises:
        UsageError: the mapping misspells one of qed's columns.
        DataError: the row lacks a column of the mapping.
    """
    for ours in mapping:
        if ours not in COLUMNS and (near := difflib.get_close_matches(ours, COLUMNS, 1, TYPO)):
            raise UsageError(
                f"data.map names {ours}, which is not one of qed's columns. Did you mean '{near[0]}'? "
                f"There are: {', '.join(COLUMNS)}."
            )
    found = {ours: _find_nested(row, theirs) for ours, theirs in mapping.items()}
    missing = [mapping[ours] for ours, value in found.items() if value is None]
    if missing and isinstance(mapping, OptionalMapping):
        return row
    if missing:
        raise DataError(f"{place}: data.map names {missing[0]}, but the columns are {', '.join(row)}.")
    rest = {key: value for key, value in row.items() if key not in mapping.values()}
    return {**rest, **{ours: value[0] for ours, value in found.items() if value is not None}}


def _find_nested(row: Row, name: str) -> tuple[Any] | None:
    """Return a column's value in a tuple, or None if there is no such column."""
    if name in row:
        return (row[name],)
    outer, point, inner = name.partition(".")
    return _find_nested(row[outer], inner) if point and isinstance(row.get(outer), dict) else None


def read_fields(row: Row, place: Place) -> Fields:
    """Read the fields of a row. For a rendered prompt, extract its question, and keep the whole text in `rendered`.

    Raises:
        SkippedRow: the row is not a problem; the reason is counted.
        DataError: a column is missing or has an invalid value.
    """
    values = _read_row(row, place)
    if not values.question.strip():
        name = next((key for key in values.used if key.casefold() in QUESTION), "question")
        raise DataError(f"{place}: the {name} is empty.")
    finished = recognize_prompt(values.question)
    if finished is None or not finished.question.strip():
        return values
    # The text after a rendered prompt is the complete reply, not the reasoning before an answer.
    return replace(
        values,
        question=finished.question,
        solution="",
        completion=values.completion or values.solution,
        extra={**values.extra, "rendered": values.question},
    )


def _read_row(row: Row, place: Place) -> Fields:
    """Read a row by its schema; unused columns keep their spelling, for templates and rewards."""
    capitals = _find_capitals(tuple(row))
    known = _fold_columns(row)
    reader = _choose_reader(known)
    if reader is _read_worked and not _has_worked(known):
        raise DataError(_explain_missing(row, place))
    values = reader(known, place)
    if not capitals:
        return values
    written = {ours: theirs for theirs, ours in capitals.items()}
    return replace(values, used=tuple(written.get(name, name) for name in values.used))


def _fold_columns(row: Row) -> Row:
    """Return a row with known columns renamed to their known spelling."""
    capitals = _find_capitals(tuple(row))
    return {capitals.get(name, name): value for name, value in row.items()} if capitals else row


@lru_cache(maxsize=64)  # the rows of a file have the same columns
def _find_capitals(columns: tuple[str, ...]) -> dict[str, str]:
    """Return the known name of each column that differs in case, unless two columns differ only in case."""
    spelled = Counter(str(name).casefold() for name in columns)
    known = {name: FOLDED.get(str(name).casefold(), name) for name in columns}
    return {name: ours for name, ours in known.items() if ours != name and spelled[str(name).casefold()] == 1}


def _choose_reader(row: Row) -> Reader:
    """Return the reader of a row's schema."""
    return next((reader for matches, reader in SCHEMAS if matches(row)), _read_worked)


def name_schema(row: Row) -> str:
    """Return the usual name of a row's schema."""
    row = _fold_columns(row)
    reader = _choose_reader(row)
    if reader is conversations.read_verl:
        return "LUFFY" if row.get("target") else "verl"
    if reader is _read_worked:
        marked = any(mark in str(row.get(key)) for key, mark in GSM8K_MARKS.items())
        return "GSM8K" if marked else "OpenR1" if "generations" in row else "question and answer"
    return NAMES[reader]


def _has_options(row: Row) -> bool:
    """Return whether a row has options: in a list of texts, in ARC's pair of lists, or in columns named by letter.

    Also true for a row that would be asked without its options, which `choices` rejects.
    """
    lists = any(isinstance(row.get(key), list | dict) for key in ("choices", "options")) or choices.lacks_options(row)
    return "question" in row and (lists or set("ABCD") <= set(row)) and bool({"answer", "answerKey"} & set(row))


def _has_worked(row: Row) -> bool:
    """Return whether a row has a question, and an answer or a solution."""
    return find_column(row, QUESTION) is not None and find_column(row, (*ANSWER, *SOLUTION, *TRACE)) is not None


def _read_worked(row: Row, place: Place) -> Fields:
    """Read a question, an answer and a worked solution: GSM8K, MATH, competitions, OpenR1, DeepMath and similar data.

    `body` (SVAMP, ASDiv) and `context` (OlympiadBench) have the text that the question refers to.
    """
    question_key = find_column(row, QUESTION) or QUESTION[0]
    solution_key = find_filled_column(row, SOLUTION)
    question = convert_to_text(row[question_key], place, question_key)
    story_key = find_filled_column(row, ("body", "context"))
    if story_key and question.strip():
        question = _join_story(convert_to_text(row[story_key], place, story_key), question)
    solution = convert_solution(row[solution_key], place, solution_key) if solution_key else ""
    answer_key, answer = read_answer(row, place)
    if answer in NUMINA_NONE and NUMINA_CHECK in row:
        answer = ""
    mark = GSM8K_MARKS.get(answer_key, "")
    if mark and mark in answer:
        solution, _, answer = answer.rpartition(mark)
        solution, answer = CALCULATOR.sub("", solution), answer.strip()
        answer = answer.replace(",", "") if GROUPED.fullmatch(answer) else answer
    trace_key = find_filled_column(row, TRACE)
    trace = convert_to_text(row[trace_key], place, trace_key) if trace_key else _find_right_generation(row, place)
    # Some files have the same problem under both names.
    used = (*QUESTION[:2], question_key, *(key for key in (story_key, answer_key, solution_key, trace_key) if key))
    return Fields(question, answer, solution, trace, (*used, *GENERATIONS))


def _read_generated(row: Row, place: Place) -> Fields:
    """Read an answer written by `qed generate`, which is imitated instead of the solution in the question's row.

    A truncated answer is not imitated, because that would teach the model to stop there.
    """
    prompt, completion = (convert_to_text(row[name], place, name) for name in ("prompt", "completion"))
    asked = {key: value for key, value in row.items() if key not in GENERATED}
    try:
        values = _read_row({**asked, "prompt": prompt}, place)
    except DataError:  # a question alone is not a row of a data file
        values = Fields(prompt)
    return replace(
        values,
        question=prompt,
        answer=values.answer or find_last_boxed(values.solution) or "",
        solution="",
        completion="" if row["finish_reason"] == "length" else completion,
        used=(*values.used, "prompt", "completion"),
    )


def _find_right_generation(row: Row, place: Place) -> str:
    """Return the first generation that is correct and complete; empty if there is none."""
    answers, correct, complete = (row[key] if isinstance(row.get(key), list) else () for key in GENERATIONS)
    good = [answer for answer, *checks in zip(answers, correct, complete, strict=False) if all(checks)]
    return convert_to_text(good[0], place, GENERATIONS[0]) if good else ""


def _join_story(story: str, question: str) -> str:
    story = story.strip()
    return f"{story}{'' if story.endswith(('.', '!', '?', ',', ':')) else '.'} {question.strip()}"


def _read_prompt(row: Row, place: Place) -> Fields:
    """Read a TRL prompt with a completion (LUFFY: target), with an answer, or alone; other columns are for a reward."""
    question = conversations.read_question(row["prompt"], place, "prompt")
    answer_key, answer = read_answer(row, place)
    solution_key = find_filled_column(row, (*SOLUTION, "target"))
    used = ("prompt", answer_key, solution_key or "")
    if not (answer_key or solution_key) and ("chosen" in row) != ("rejected" in row):
        present, missing = ("chosen", "rejected") if "chosen" in row else ("rejected", "chosen")
        raise DataError(
            f"{place}: there is a column {present} but none {missing}; the columns are {', '.join(map(str, row))}. "
            f"A preference needs both: add a column {missing} with the other reply."
        )
    # A reply without a separate answer is the complete demonstration, not the reasoning before an answer.
    if solution_key in ("completion", "target") or (solution_key == "response" and not answer_key):
        completion = conversations.read_reply(row[solution_key], place, solution_key)
        return Fields(question, answer, completion=completion, used=used)
    solution = convert_solution(row[solution_key], place, solution_key) if solution_key else ""
    if not answer and "\\boxed" not in solution and "\n" not in solution.strip():
        # The examples in TRL's documentation have the bare answer in `solution`, where their rewards read it.
        answer, solution = solution, ""
    return Fields(question, answer, solution, used=used)


def _read_context(row: Row, place: Place) -> Fields:
    """Read a row of OpenRLHF whose prompt is in `context_messages`."""
    return _read_prompt({**row, "prompt": row["context_messages"], "context_messages": None}, place)


# The order matters: OpenR1 rows have both messages and a problem, MMLU rows both an answer and a question.
SCHEMAS: tuple[tuple[Callable[[Row], bool], Reader], ...] = (
    (lambda row: set(GENERATED) <= set(row) and not labels.has_bad_reply(row), _read_generated),
    (lambda row: "prompt" in row and isinstance(row.get("reward_model"), dict), conversations.read_verl),
    (preferences.has_preference, preferences.read_preference),
    (labels.has_bad_reply, labels.skip_bad_reply),
    (lambda row: "question" in row and "Correct Answer" in row, choices.read_gpqa),
    (_has_options, choices.read_options),
    (instructions.has_instruction, instructions.read_instruction),
    (instructions.has_question_and_reply, instructions.read_question_and_reply),
    (lambda row: find_column(row, QUESTION[:2]) is not None, _read_worked),
    (lambda row: conversations.is_conversation(row.get("messages")), conversations.read_messages),
    (lambda row: conversations.is_conversation(row.get("conversations")), conversations.read_sharegpt),
    (instructions.has_segments, instructions.read_segments),
    (lambda row: "prompt" in row, _read_prompt),
    (lambda row: "context_messages" in row, _read_context),
)


NAMES: dict[Reader, str] = {
    _read_generated: "answers of qed generate",
    preferences.read_preference: "preferences",
    labels.skip_bad_reply: "labelled replies",
    choices.read_gpqa: "GPQA",
    choices.read_options: "multiple choice",
    instructions.read_instruction: "Alpaca",
    instructions.read_question_and_reply: "question and reply",
    instructions.read_segments: "axolotl segments",
    conversations.read_messages: "messages",
    conversations.read_sharegpt: "ShareGPT",
    _read_prompt: "TRL prompts",
    _read_context: "OpenRLHF prompts",
}


def _explain_missing(row: Row, place: Place) -> str:
    if "text" in row:
        return (
            f"{place}: the rows are plain text (the column text), without a question. A reasoning model is trained on "
            "answers to questions: split the text into the columns prompt and completion."
        )
    hints: dict[str, str] = {}
    for ours, names in (("question", QUESTION), ("answer", ANSWER)):
        if find_column(row, names) is None and (theirs := _find_nearest(row, names)):
            hints[ours] = theirs
    how, perhaps = suggest_column_option(hints)
    expected = describe_expected(QUESTION, (*ANSWER, *SOLUTION), OTHER_SCHEMAS)
    return (
        f"{place}: the columns are {', '.join(map(str, row)) or '(none)'}; {expected}. {how}{describe_nearest(row)}"
        f"{perhaps}"
    )


def _find_nearest(row: Row, names: tuple[str, ...]) -> str:
    """Return the column closest to one of the names, or an empty string; replies of a preference are not answers."""
    replies = (*preferences.CHOSEN, *preferences.REJECTED)
    columns = [str(key) for key in row if str(key).casefold() not in replies]
    for name in names:
        if near := difflib.get_close_matches(name, columns, 1, ALIKE):
            return near[0]
    return ""
