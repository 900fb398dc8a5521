"""What the columns of a row mean: every schema that data for reasoning models commonly comes in.

A row is recognised by its columns alone, whatever the file is called; the first schema that fits is taken.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from qed.data.sources import choices, conversations
from qed.data.sources.fields import (
    Fields,
    convert_answer,
    convert_solution,
    convert_to_text,
    find_column,
    find_filled_column,
)
from qed.data.sources.rows import Place, Row
from qed.errors import DataError, UsageError, suggest_nearest

QUESTION = ("question", "problem", "prompt")
ANSWER = ("answer", "final_answer", "expected_answer", "gold", "ground_truth")
SOLUTION = ("solution", "completion", "response")
TRACE = ("r1_solution_1", "generated_solution")  # whole answers of a model, to imitate as they stand
# OpenR1 keeps several answers of a model to each problem, and what was found out about each of them.
GENERATIONS = ("generations", "correctness_math_verify", "is_reasoning_complete")
COLUMNS = (*QUESTION, *ANSWER, *SOLUTION, "subject", "type", "level", "source")
OTHER_SCHEMAS = (
    "prompt and completion, messages, conversations, chosen and rejected, instruction and output, question and "
    "choices, prompt and reward_model"
)
CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K writes its sums twice: 48/2 = <<48/2=24>>24
# GSM8K's answers stand behind the first, those of its published model solutions behind the second.
GSM8K_MARKS = {"answer": "####", "ground_truth": "\nA: "}

Reader = Callable[[Row, Place], Fields]


def rename_columns(row: Row, mapping: Mapping[str, str], place: Place) -> Row:
    """A row with the columns that a user named for ours.

    Raises:
        UsageError: one of ours is none that we read.
        DataError: one of theirs is not there.
    """
    unknown = [ours for ours in mapping if ours not in COLUMNS]
    if unknown:
        raise UsageError(f"data.map names {', '.join(unknown)}, which is none of our columns: {', '.join(COLUMNS)}.")
    missing = [theirs for theirs in mapping.values() if theirs not in row]
    if missing:
        raise DataError(f"{place}: data.map names {missing[0]}, but the columns are {', '.join(row)}.")
    rest = {key: value for key, value in row.items() if key not in mapping.values()}
    return {**rest, **{ours: row[theirs] for ours, theirs in mapping.items()}}


def read_fields(row: Row, place: Place) -> Fields:
    """A row in our words.

    Raises:
        LeftOut: the row is no problem; the reason is counted.
        DataError: a column is missing or holds what it cannot.
    """
    found = _choose_reader(row)(row, place)
    if not found.question.strip():
        name = next((key for key in found.used if key.casefold() in QUESTION), "question")
        raise DataError(f"{place}: the {name} is empty.")
    return found


def _choose_reader(row: Row) -> Reader:
    """The schema of a row."""
    return next((reader for fits, reader in SCHEMAS if fits(row)), _read_worked)


def name_schema(row: Row) -> str:
    """What people call the schema of a row."""
    reader = _choose_reader(row)
    if reader is conversations.read_verl:
        return "LUFFY" if row.get("target") else "verl"
    if reader is _read_worked:
        marked = any(mark in str(row.get(key)) for key, mark in GSM8K_MARKS.items())
        return "GSM8K" if marked else "OpenR1" if "generations" in row else "question and answer"
    return NAMES[reader]


def _has_options(row: Row) -> bool:
    """Options in a list of texts, in ARC's pair of lists, or in columns named by letter."""
    lists = any(isinstance(row.get(key), list | dict) for key in ("choices", "options"))
    return "question" in row and (lists or set("ABCD") <= set(row)) and bool({"answer", "answerKey"} & set(row))


def _read_worked(row: Row, place: Place) -> Fields:
    """A question, an answer, a worked solution: GSM8K, MATH, the competitions, OpenR1, DeepMath and their kin.

    `body` (SVAMP, ASDiv) and `context` (OlympiadBench) tell the story that the question is about.
    """
    question_key = find_column(row, QUESTION)
    answer_key, solution_key = find_filled_column(row, ANSWER), find_filled_column(row, SOLUTION)
    if question_key is None or not find_column(row, (*ANSWER, *SOLUTION, *TRACE)):
        raise DataError(_explain_missing(row, place))
    question = convert_to_text(row[question_key], place, question_key)
    story_key = find_filled_column(row, ("body", "context"))
    if story_key and question.strip():
        question = _join_story(convert_to_text(row[story_key], place, story_key), question)
    solution = convert_solution(row[solution_key], place, solution_key) if solution_key else ""
    answer = convert_answer(row[answer_key], place, answer_key) if answer_key else ""
    mark = GSM8K_MARKS.get(answer_key or "", "")
    if mark and mark in answer:
        solution, _, answer = answer.rpartition(mark)
        solution, answer = CALCULATOR.sub("", solution), answer.strip().replace(",", "")
    trace_key = find_filled_column(row, TRACE)
    trace = convert_to_text(row[trace_key], place, trace_key) if trace_key else _find_right_generation(row, place)
    # Some files give the same problem under both names.
    used = (*QUESTION[:2], question_key, *(key for key in (story_key, answer_key, solution_key, trace_key) if key))
    return Fields(question, answer, solution, trace, (*used, *GENERATIONS))


def _find_right_generation(row: Row, place: Place) -> str:
    """The first of several answers that was found right and that is complete; empty where there is none."""
    answers, right, complete = (row[key] if isinstance(row.get(key), list) else () for key in GENERATIONS)
    good = [answer for answer, *checks in zip(answers, right, complete, strict=False) if all(checks)]
    return convert_to_text(good[0], place, GENERATIONS[0]) if good else ""


def _join_story(story: str, question: str) -> str:
    story = story.strip()
    return f"{story}{'' if story.endswith(('.', '!', '?', ',', ':')) else '.'} {question.strip()}"


def _read_prompt(row: Row, place: Place) -> Fields:
    """TRL's prompt with a completion, with an answer, or alone: then its other columns are there for a reward."""
    question = conversations.read_question(row["prompt"], place, "prompt")
    answer_key, solution_key = find_filled_column(row, ANSWER), find_filled_column(row, SOLUTION)
    answer = convert_answer(row[answer_key], place, answer_key) if answer_key else ""
    used = ("prompt", answer_key or "", solution_key or "")
    if not (answer_key or solution_key) and ("chosen" in row) != ("rejected" in row):
        there, missing = ("chosen", "rejected") if "chosen" in row else ("rejected", "chosen")
        raise DataError(
            f"{place}: there is a column {there} and none {missing}; the columns are {', '.join(map(str, row))}. A "
            f"preference has both: give the file a column {missing} with the other reply."
        )
    # A reply without an answer beside it is all that there is to imitate, not the reasoning in front of one.
    if solution_key == "completion" or (solution_key == "response" and not answer_key):
        completion = conversations.read_reply(row[solution_key], place, solution_key)
        return Fields(question, answer, completion=completion, used=used)
    solution = convert_solution(row[solution_key], place, solution_key) if solution_key else ""
    if not answer and "\\boxed" not in solution and "\n" not in solution.strip():
        # The examples of TRL's documentation have the bare result in `solution`, where their rewards look for it.
        answer, solution = solution, ""
    return Fields(question, answer, solution, used=used)


def _read_alpaca(row: Row, place: Place) -> Fields:
    """An instruction, perhaps with something to apply it to, and the reply."""
    question = convert_to_text(row["instruction"], place, "instruction")
    given = convert_to_text(row.get("input") or "", place, "input")
    if given.strip():
        question = f"{question.strip()}\n\n{given.strip()}"
    return Fields(
        question, completion=convert_to_text(row["output"], place, "output"), used=("instruction", "input", "output")
    )


# The order matters: OpenR1 has messages beside its problem, MMLU an answer beside its question.
SCHEMAS: tuple[tuple[Callable[[Row], bool], Reader], ...] = (
    (lambda row: "prompt" in row and isinstance(row.get("reward_model"), dict), conversations.read_verl),
    (lambda row: "chosen" in row and "rejected" in row, conversations.read_preference),
    (lambda row: "Question" in row and "Correct Answer" in row, choices.read_gpqa),
    (_has_options, choices.read_options),
    (lambda row: "instruction" in row and "output" in row, _read_alpaca),
    (lambda row: find_column(row, QUESTION[:2]) is not None, _read_worked),
    (lambda row: conversations.is_conversation(row.get("messages")), conversations.read_messages),
    (lambda row: conversations.is_conversation(row.get("conversations")), conversations.read_sharegpt),
    (lambda row: "prompt" in row, _read_prompt),
)


NAMES: dict[Reader, str] = {
    conversations.read_preference: "TRL preferences",
    choices.read_gpqa: "GPQA",
    choices.read_options: "multiple choice",
    _read_alpaca: "Alpaca",
    conversations.read_messages: "messages",
    conversations.read_sharegpt: "ShareGPT",
    _read_prompt: "TRL prompts",
}


def _explain_missing(row: Row, place: Place) -> str:
    if set(row) & {"text"}:
        return (
            f"{place}: the rows are plain text (the column text), without a question. A reasoning model is trained on "
            "answers to questions: split the text into the columns prompt and completion."
        )
    hints = [
        f"{ours}={theirs}"
        for ours, known in (("question", QUESTION), ("answer", ANSWER))
        if find_column(row, known) is None
        for theirs in [_find_nearest(row, known)]
        if theirs
    ]
    return (
        f"{place}: the columns are {', '.join(map(str, row)) or '(none)'}; expected one of {', '.join(QUESTION)} and "
        f"one of {', '.join((*ANSWER, *SOLUTION))}; or {OTHER_SCHEMAS}. Name yours with --data.map "
        "question=YOURS,answer=YOURS, for example --data.map question=problem."
        + (f" Perhaps: --data.map {','.join(hints)}" if hints else "")
    )


def _find_nearest(row: Row, known: tuple[str, ...]) -> str:
    """The column nearest to one of the known names."""
    for name in known:
        found = suggest_nearest(name, [str(key) for key in row])
        if found:
            return found.split("'")[1]
    return ""
