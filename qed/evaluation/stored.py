"""Score answers from a file, which another program may have generated, as an evaluation.

Rows with the same id, or without ids the same question, are answers to the same problem.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qed.console.live import Console
from qed.data.sources import local
from qed.data.sources.rows import Place
from qed.errors import DataError
from qed.evaluation.grade_files import (
    GOLD,
    RESPONSE,
    convert_gold,
    convert_to_text,
    extract_gold,
    grade_answer,
    read_value,
)
from qed.evaluation.per_sample_metrics import compute_sample_metrics
from qed.evaluation.summary import average_tasks, summarize
from qed.evaluation.table import show_summary
from qed.grading import symbolic
from qed.randomness import derive_seed
from qed.rewards.base import FINAL_ANSWER
from qed.rewards.grader import Grader
from qed.runs.run import Row, build_row, write_evaluation
from qed.types import Problem, Rollout, StopReason

ID = ("id", "unique_id", "problem_id", "group_id")
QUESTION = ("question", "problem", "prompt", "input")
KEPT = ("subject", "level", "source")
DECODING = "responses"
LAST_LINE = "last-line"  # flexible extraction from the last line only, for models trained to end with the answer


@dataclass(frozen=True)
class Scoring:
    """How stored answers are read and graded.

    The keys are the columns of the gold, the answers and the id, empty for known ones; `mode` is the mode of
    extraction, or `last-line`; `grader` is that of a reward, if one is given.
    """

    gold_key: str = ""
    response_keys: tuple[str, ...] = ("",)
    id_key: str = ""
    mode: str = "flexible"
    grader: Grader | None = None


@dataclass(frozen=True)
class StoredAnswer:
    """An answer to grade, with its number of tokens where the file has it: only its program knows them."""

    rollout: Rollout
    tokens: Row


def score_responses(file: Path, scoring: Scoring) -> dict[str, list[Row]]:
    """Return the rows of an evaluation for each column of answers, named by the file or by the column.

    Raises:
        DataError: the file is missing, empty or broken, or a column is missing; the message names the row.
    """
    symbolic.CHILD.start()  # the process loads while the first rows are read
    table = read_answers(file, scoring)
    names = name_columns(file, scoring)
    return {name: [score_answer(row[number], scoring) for row in table] for number, name in enumerate(names)}


def name_columns(file: Path, scoring: Scoring) -> list[str]:
    """Return the name of each column of answers: its own if there are several, else the file's."""
    several = len(scoring.response_keys) > 1
    return [key.split(".")[0] if several else file.name.split(".")[0] for key in scoring.response_keys]


def read_answers(file: Path, scoring: Scoring) -> list[list[StoredAnswer]]:
    """Read the answers of a file, for each row those of all columns; see `score_responses` for the errors."""
    table = list(local.read_rows(str(file), ""))
    if not table:
        raise DataError(f"{file} has no row to score.")
    # If the first row has an id, every row must have one; otherwise the question identifies a problem.
    id_key = scoring.id_key or next((name for name in ID if name in table[0][1]), "")
    scoring = replace(scoring, id_key=id_key)
    columns = [_read_column(table, key, scoring) for key in scoring.response_keys]
    return [list(row) for row in zip(*columns, strict=True)]


def _read_column(table: Sequence[tuple[Place, Row]], key: str, scoring: Scoring) -> list[StoredAnswer]:
    counts: Counter[str] = Counter()
    return [
        StoredAnswer(
            _build_rollout(place, row, key, scoring, counts),
            {"n_tokens": row["n_tokens"]} if isinstance(row.get("n_tokens"), int) else {},
        )
        for place, row in table
    ]


def score_answer(answer: StoredAnswer, scoring: Scoring) -> Row:
    """Grade an answer, and return its row of an evaluation."""
    rollout = answer.rollout
    text = rollout.text
    if scoring.mode == LAST_LINE:
        rollout = replace(rollout, text=text.rstrip().rpartition("\n")[2])
    mode = "flexible" if scoring.mode == LAST_LINE else scoring.mode
    graded = replace(rollout, grade=grade_answer(rollout, scoring.grader, "", mode))
    measures = {**compute_sample_metrics(graded), "text": text, **answer.tokens}
    return {"decoding": DECODING, **build_row(graded, 0), **measures}


def _build_rollout(place: Place, row: Row, key: str, scoring: Scoring, counts: Counter[str]) -> Rollout:
    """Build a rollout from a row, numbered among the answers to the same problem."""
    gold = extract_gold(convert_gold(read_value(place, row, scoring.gold_key, GOLD, "--gold-key")))
    if not gold:
        raise DataError(
            f"{place}: the gold is empty, so nothing can be right. Drop the row, or name another --gold-key."
        )
    response = convert_to_text(read_value(place, row, key, RESPONSE, "--response-key"))
    question = convert_to_text(next((row[name] for name in QUESTION if name in row), ""))
    problem = Problem(_read_id(place, row, question, gold, scoring), question, gold, meta=_read_meta(row))
    reason: StopReason = "length" if row.get("stop_reason", row.get("finish_reason")) == "length" else "stop"
    counts[problem.id] += 1
    return Rollout(problem, (), (), (), response, reason, index=counts[problem.id] - 1)


def _read_id(place: Place, row: Row, question: str, gold: str, scoring: Scoring) -> str:
    """Return what identifies a problem: its id, else its question, else its row."""
    if not scoring.id_key:
        return f"{derive_seed(question, gold):016x}" if question else str(place.number)
    value = read_value(place, row, scoring.id_key, ID, "--id-key")
    if value in (None, ""):
        raise DataError(f"{place}: the {scoring.id_key} is empty, while other rows have one.")
    return str(value)


def _read_meta(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in KEPT if row.get(name) not in (None, "")}


def summarize_columns(scored: dict[str, list[Row]], judge: str | None = None) -> dict[str, Row]:
    """Summarize each column of answers, and name the judge: a reward's, or the final answer."""
    return {name: {"judged_by": judge or FINAL_ANSWER, **summarize(rows)} for name, rows in scored.items()}


def finish_scores(
    scored: dict[str, list[Row]], judge: str | None, reward: str, out: Path | None, console: Console
) -> dict[str, Any]:
    """Print the figures of scored answers, write all verdicts as an evaluation of step 0, and return the figures.

    Args:
        scored: the rows of each column of answers.
        judge: the part of the reward that decides correctness; None for the final answer.
        reward: the reward that graded the answers, if one was given.
        out: the folder of the verdicts, if they are wanted.
        console: prints.
    """
    figures = summarize_columns(scored, judge)
    if reward and judge is None:
        console.say(f"{reward} does not judge correctness: an answer is correct by its final answer.")
    show_summary(console, figures)
    if out:
        for name, rows in scored.items():
            write_evaluation(out, 0, name, rows, {DECODING: figures[name]})
        console.say(f"Every verdict is in {out / 'eval'}.")
    return {"tasks": figures, "overall": average_tasks(list(figures.values()))}
