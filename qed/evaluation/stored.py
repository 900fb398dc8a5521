"""Score stored answers, which may come from another program, as an evaluation.

Rows with the same id, or without ids the same question, are answers to the same problem.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from qed.config.task_names import strip_suffix
from qed.console.live import Console
from qed.console.progress import report_progress, say_on_stderr
from qed.data.sources import local
from qed.data.sources.fields import SOURCE, SUBJECT, convert_level, find_filled_column
from qed.errors import DataError
from qed.evaluation.answer_lists import pick_own, require_answers, split_answers
from qed.evaluation.answer_rows import GOLD, RESPONSE, read_value
from qed.evaluation.grade_files import grade_answers
from qed.evaluation.per_sample_metrics import compute_sample_metrics
from qed.evaluation.stored_problems import StoredRow, describe_uneven, find_problems
from qed.evaluation.summary import average_columns, summarize
from qed.evaluation.table import show_summary
from qed.evaluation.verdicts import SecondGrader, judge_again, show_verdicts, summarize_verdicts
from qed.grading.policy import PolicyName, find_policy
from qed.rewards.base import FINAL_ANSWER
from qed.rewards.grader import Grader, list_tags
from qed.runs.run import Row, build_row, write_evaluation
from qed.types import Problem, Rollout, StopReason

DECODING = "responses"
LAST_LINE = "last-line"  # flexible extraction from the last line only, for models trained to end with the answer


@dataclass(frozen=True)
class Scoring:
    """How stored answers are read and graded.

    The keys are the columns of the gold, the answers and the id, empty to use the known names; `mode` is the extraction
    mode, or `last-line`; `lists` says what a list of answers means, see `split_answers`; `ties` is the tie rule of
    maj@k; `policy` names the grading policy, and `also` additional graders; `grader` is that of a reward, if one is
    given, and `second` holds the loaded additional graders.
    """

    gold_key: str = ""
    response_keys: tuple[str, ...] = ("",)
    id_key: str = ""
    mode: str = "flexible"
    grader: Grader | None = None
    lists: str = ""
    ties: str = "split"
    policy: PolicyName = "math"
    also: tuple[str, ...] = ()
    second: tuple[SecondGrader, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """An answer to grade: its problem, its text, its index among the answers to its problem, and further known values.

    `tokens` is the number of tokens and `stop_reason` why the answer ended; both are None if the file lacks them.
    A table holds these instead of rollouts, which are built one at a time.
    """

    id: str
    question: str
    gold: str
    meta: Row
    text: str
    index: int
    tokens: int | None
    stop_reason: StopReason | None

    def build_rollout(self) -> Rollout:
        """Build the rollout that a reward takes; without a known stop reason it counts as complete."""
        problem = Problem(self.id, self.question, self.gold, meta=self.meta)
        return Rollout(problem, (), (), (), self.text, self.stop_reason or "stop", index=self.index)


Placed = list[tuple[int, StoredAnswer]]  # answers with their places in a column of answers


@dataclass(frozen=True)
class AnswerTable:
    """The answers of a file, [row][column of answers][answer]; `notes` describe irregularities."""

    rows: list[list[list[StoredAnswer]]]
    notes: list[str]

    def list_problems(self) -> list[list[Placed]]:
        """Return the answers by problem, [problem][column of answers][answer], each with its place in its column."""
        columns = range(len(self.rows[0]))
        problems: dict[str, list[Placed]] = {}
        places = [count() for _ in columns]
        for row in self.rows:
            for number in columns:
                for answer in row[number]:
                    own = problems.setdefault(answer.id, [[] for _ in columns])
                    own[number].append((next(places[number]), answer))
        return list(problems.values())


def score_responses(file: Path, scoring: Scoring) -> dict[str, list[Row]]:
    """Return the rows of an evaluation for each column of answers, named by the file or by the column.

    Raises:
        DataError: the file is missing, empty or broken, or a column is missing; the message names the row.
    """
    return score_table(read_answers(file, scoring), name_columns(file, scoring), scoring, say_on_stderr)


def score_table(
    table: AnswerTable, names: Sequence[str], scoring: Scoring, say: Callable[[str], None]
) -> dict[str, list[Row]]:
    """Return the rows of an evaluation for each column of answers, in order, reporting progress with `say`."""
    scored, problems = {}, table.list_problems()
    for number, name in enumerate(names):
        groups, rows = [problem[number] for problem in problems], dict[int, Row]()
        total = sum(map(len, groups))
        for _, group in report_progress(groups, say, "Grading", f"answers of {name}", total, count=rows.__len__):
            rows.update(score_answers(group, scoring))
        scored[name] = [rows[position] for position in sorted(rows)]
    return scored


def name_columns(file: Path, scoring: Scoring) -> list[str]:
    """Return the name of each column of answers: its own name if there are several, else the file's."""
    if len(scoring.response_keys) == 1:
        return [strip_suffix(file.name)]
    short = [key.split(".")[0] for key in scoring.response_keys]
    return short if len(set(short)) == len(short) else list(scoring.response_keys)


def read_answers(file: Path, scoring: Scoring) -> AnswerTable:
    """Read the answers of a file; see `score_responses` for the errors."""
    table = list(local.read_rows(str(file), ""))
    if not table:
        raise DataError(f"{file} has no row to score.")
    rows, notes = find_problems(table, scoring.gold_key, scoring.id_key)
    columns = [_read_column(rows, key, scoring) for key in scoring.response_keys]
    for column in columns:
        counts: Counter[str] = Counter()
        for each, answers in zip(rows, column, strict=True):
            counts[each.id] += len(answers)
        notes.extend(note for note in describe_uneven(counts.values()) if note not in notes)
    return AnswerTable([list(row) for row in zip(*columns, strict=True)], notes)


def _read_column(rows: Sequence[StoredRow], key: str, scoring: Scoring) -> list[list[StoredAnswer]]:
    """Read the answers of a column, row by row, numbered among the answers to the same problem."""
    values = [(each.place, read_value(each.place, each.row, key, RESPONSE, "--response-key")) for each in rows]
    if not scoring.lists:
        require_answers(values)
    counts: Counter[str] = Counter()
    column = []
    for each, (place, value) in zip(rows, values, strict=True):
        gold = read_value(place, each.row, scoring.gold_key, GOLD, "--gold-key")
        texts = split_answers(place, value, gold, scoring.lists)
        answers = [_build_answer(each, text, number, len(texts), counts[each.id]) for number, text in enumerate(texts)]
        counts[each.id] += len(texts)
        column.append(answers)
    return column


def _build_answer(each: StoredRow, text: str, number: int, count: int, before: int) -> StoredAnswer:
    """Build answer `number` of `count` in a row; `before` counts the answers to its problem in earlier rows."""
    row = each.row
    stop = pick_own(row.get("stop_reason"), number, count) or pick_own(row.get("finish_reason"), number, count)
    tokens = pick_own(row.get("n_tokens"), number, count)
    return StoredAnswer(
        each.id,
        each.question,
        each.gold,
        _read_meta(row),
        text,
        before + number,
        int(tokens) if isinstance(tokens, int | float) and math.isfinite(tokens) else None,
        ("length" if stop == "length" else "stop") if stop else None,
    )


def score_answers(answers: Placed, scoring: Scoring) -> Iterator[tuple[int, Row]]:
    """Grade the answers to a problem, and yield the row of an evaluation for each, with its place."""
    policy, mode = find_policy(scoring.policy), scoring.mode
    rollouts = [answer.build_rollout() for _, answer in answers]
    if mode == LAST_LINE:
        rollouts = [replace(rollout, text=rollout.text.rstrip().rpartition("\n")[2]) for rollout in rollouts]
        mode = "flexible"
    grades = grade_answers(rollouts, [""] * len(rollouts), scoring.grader, mode, policy) if rollouts else []
    for (place, answer), rollout, grade in zip(answers, rollouts, grades, strict=True):
        # Mark unknown values as such; the defaults would claim 0 tokens, a complete answer and weights of version 0.
        known = {"n_tokens": answer.tokens, "stop_reason": answer.stop_reason, "version": None, "advantage": None}
        graded = replace(rollout, grade=grade)
        measures = {**compute_sample_metrics(graded, list_tags(scoring.grader), policy), "text": answer.text, **known}
        row = {"decoding": DECODING, **build_row(graded, 0), **measures, **judge_again(rollout, scoring.second)}
        yield place, row


def _read_meta(row: Row) -> dict[str, Any]:
    """Return a row's subject, level and source under the names that a problem has for them."""
    # In rows that qed wrote, `source` says who wrote the answer.
    sources = ("data_source",) if {"group_id", "sample_id"} <= row.keys() else SOURCE
    names = {"subject": SUBJECT, "level": ("level",), "source": sources}
    columns = {name: find_filled_column(row, known) for name, known in names.items()}
    meta = {name: row[column] for name, column in columns.items() if column is not None}
    return {name: convert_level(value) if name == "level" else value for name, value in meta.items()}


def summarize_columns(
    scored: dict[str, list[Row]], judge: str | None = None, notes: Sequence[str] = (), ties: str = "split"
) -> dict[str, Row]:
    """Summarize each column of answers, and record what decided correctness: a reward, or the final answer.

    `notes` describe irregularities of the file; `ties` is the tie rule of maj@k, see `vote_majority`.
    """
    about = {"judged_by": judge or FINAL_ANSWER, **({"notes": list(notes)} if notes else {})}
    return {name: {**about, **summarize(rows, ties), **summarize_verdicts(rows)} for name, rows in scored.items()}


def finish_scores(
    scored: dict[str, list[Row]], figures: dict[str, Row], out: Path | None, console: Console
) -> dict[str, Any]:
    """Print the figures of scored answers, write all verdicts as an evaluation of step 0, and return the figures.

    Args:
        scored: the rows of each column of answers.
        figures: see `summarize_columns`.
        out: the folder for the verdicts; None to write none.
        console: for the output.
    """
    for note in dict.fromkeys(note for own in figures.values() for note in own.get("notes", ())):
        console.say(note)
    overall = average_columns(list(scored.values()))
    show_summary(console, figures, overall)
    show_verdicts(console, figures)
    if out:
        for name, rows in scored.items():
            write_evaluation(out, 0, name, rows, {DECODING: figures[name]})
        console.say(f"Every verdict is in {out / 'eval'}.")
    return {"tasks": figures, "overall": overall}
