"""Answer the prompts of a file with a policy, and write one row per answer, batch by batch.

Only complete rows are appended, and those of an earlier attempt are not sampled again. The random draws of an answer
depend only on the seed, the row and the answer's index, so the result does not depend on where an attempt stopped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from qed.console.live import Console
from qed.data.prompts.base import PromptTemplate
from qed.data.sources import local
from qed.data.sources.fields import SkippedRow, convert_to_text, find_column
from qed.data.sources.rows import Place, Row
from qed.data.sources.schemas import QUESTION, read_fields
from qed.data.sources.texts import read_text
from qed.errors import DataError, UsageError
from qed.evaluation.store import append_rows, list_differences, read_whole_rows
from qed.randomness import derive_seed
from qed.rollout.policy import Policy
from qed.runs.run import read_json, write_whole
from qed.sampling.base import Sampling
from qed.types import Completion, Problem

TEXT_SUFFIXES = (".txt", ".md")  # one prompt per line
TOO_LONG = "prompts longer than the model's window"
CHUNK = 256  # answers sampled together and then written; one that ends early makes room for the next
Key = tuple[int, int]  # the row number from 1 (in jsonl and txt, the line number), and the answer's index from 0


@dataclass(frozen=True, eq=False)
class Question:
    """A prompt of the file: its row with all columns, the row's number, and the text of the question.

    `rendered` is the complete prompt for the model, if the file has it.
    """

    number: int
    text: str
    row: Row
    rendered: str = ""

    def build_row(self, sample: int, completion: str, finish_reason: str, n_tokens: int | None) -> Row:
        """Build the row of an answer: the file's columns, then those of the answer."""
        return {
            **self.row,
            "row": self.number,
            "sample": sample,
            "prompt": self.text,
            "completion": completion,
            "finish_reason": finish_reason,
            "n_tokens": n_tokens,
        }


def read_questions(file: Path, column: str, left_out: Counter[str]) -> list[Question]:
    """Read the questions of a text or data file.

    Args:
        file: .txt with a prompt in each line, or any data file.
        column: column of the question; empty to use a known name.
        left_out: receives counts of the skipped rows, by reason.

    Raises:
        DataError: the file is missing or broken, or has no question.
    """
    questions = []
    for place, row in _read_rows(file):
        try:
            text, rendered = _read_question(row, place, column)
            # Dates and other parquet values without a JSON form become text.
            questions.append(Question(place.number, text, json.loads(json.dumps(row, default=str)), rendered))
        except SkippedRow as reason:
            left_out[str(reason)] += 1
    if not questions:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise DataError(f"{file} has no prompt{f': {reasons}' if reasons else ''}.")
    return questions


def _read_rows(file: Path) -> Iterator[tuple[Place, Row]]:
    if file.suffix not in TEXT_SUFFIXES:
        yield from local.read_rows(str(file), "")
        return
    if not file.is_file():
        raise DataError(f"There is no data file {file}.")
    lines = read_text(file).split("\n")
    yield from ((Place(str(file), number), {"prompt": line}) for number, line in enumerate(lines, 1) if line.strip())


def _read_question(row: Row, place: Place, column: str) -> tuple[str, str]:
    """Return the question of a row, and its rendered prompt if the row has one.

    The question is in the given column, in that of the row's schema, or, if the row has no answer, in a known column.
    """
    if column:
        if column not in row:
            raise DataError(f"{place}: there is no column {column}; the columns are {', '.join(map(str, row))}.")
        return convert_to_text(row[column], place, column), ""
    known = find_column(row, QUESTION)
    try:
        fields = read_fields(row, place)
        return fields.question, fields.extra.get("rendered", "")
    except DataError:
        if known is None:
            raise
        return convert_to_text(row[known], place, known), ""


class Output:
    """The rows written so far, in a JSON Lines file.

    Args:
        file: file of the rows.
        asked: everything that determines the rows, saved next to the file; rows of an earlier attempt are reused only
            if it is identical.
        overwrite: start again.

    Raises:
        UsageError: the file was not written by this command, or with other settings.
    """

    def __init__(self, file: Path, asked: Mapping[str, Any], overwrite: bool) -> None:
        self.file = file
        request = file.with_name(f".{file.name}.request.json")
        asked = json.loads(json.dumps(asked))  # JSON round trip, to compare equal to what is read from a file
        if overwrite:
            file.unlink(missing_ok=True)
        elif file.exists():
            before = read_json(request, None)
            if before is None:
                raise UsageError(
                    f"{file} already exists, and was not written by this command; choose another --out, or replace "
                    "it with --overwrite."
                )
            if before != asked:
                raise UsageError(
                    f"{file} has answers with other settings: {list_differences(before, asked)}. Choose another "
                    "--out, or replace it with --overwrite."
                )
        write_whole(request, json.dumps(asked, indent=1).encode())
        self.prompts: dict[Key, str] = {}  # the prompt of each answer
        self._load()

    def _load(self) -> None:
        """Read the existing answers."""
        if not self.file.exists():
            write_whole(self.file, b"")
            return
        self.prompts = {(row["row"], row["sample"]): row["prompt"] for row in read_whole_rows(self.file)}

    def has(self, question: Question, sample: int) -> bool:
        """Return whether an answer exists.

        Raises:
            DataError: it answers another question, because the file of prompts has changed.
        """
        before = self.prompts.get((question.number, sample))
        if before is not None and before != question.text:
            raise DataError(
                f"Row {question.number} is not the prompt that was answered in {self.file}: the file has changed. "
                "Choose another --out, or replace it with --overwrite."
            )
        return before is not None

    def add(self, rows: Sequence[Row]) -> None:
        """Append answers.

        Raises:
            QedError: the disk is full; none of them is kept.
        """
        append_rows(self.file, rows)
        self.prompts |= {(row["row"], row["sample"]): row["prompt"] for row in rows}


def generate(
    policy: Policy,
    questions: Sequence[Question],
    output: Output,
    sampling: Sampling,
    samples: int,
    seed: int,
    console: Console,
) -> Counter[str]:
    """Answer the questions that have no answers yet.

    Args:
        policy: the policy that answers.
        questions: questions of the file.
        output: receives the answers.
        sampling: sampling parameters.
        samples: answers per question.
        seed: seed of the random numbers.
        console: shows the progress.

    Returns:
        counts of skipped prompts, by reason.
    """
    missing = {question: [n for n in range(samples) if not output.has(question, n)] for question in questions}
    total = len(questions) * samples
    finished = total - sum(map(len, missing.values()))
    if finished:
        console.say(f"{finished} of {total} answers are already there.")
    left_out: Counter[str] = Counter()
    limit = policy.max_prompt_tokens(sampling.max_tokens)
    console.phase("", finished, "answer")
    for chunk in _split_chunks(missing, CHUNK):
        asked = [_Asked(question, samples, policy.template) for question, samples in chunk]
        fitting = [each for each in asked if len(each.tokens) <= limit]
        left_out[TOO_LONG] += len(asked) - len(fitting)
        seeds = [[derive_seed(seed, "generate", each.question.number, n) for n in each.samples] for each in fitting]
        answers = policy.sampler.generate([each.tokens for each in fitting], seeds, sampling) if fitting else []
        rows = [row for each, own in zip(fitting, answers, strict=True) for row in each.build_rows(own)]
        output.add(rows)
        finished += sum(len(each.samples) for each in asked)
        console.step(finished, total, {"length/mean": fmean(row["n_tokens"] for row in rows)} if rows else {})
    console.end_phase()
    return +left_out


def _split_chunks(missing: Mapping[Question, list[int]], size: int) -> Iterator[list[tuple[Question, list[int]]]]:
    """Yield the questions with the indices of their missing answers, in chunks of about `size` answers."""
    chunk: list[tuple[Question, list[int]]] = []
    for question, samples in missing.items():
        if samples:
            chunk.append((question, samples))
        if sum(len(own) for _, own in chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class _Asked:
    """A question in the form that the policy takes, with the indices of the answers to sample."""

    def __init__(self, question: Question, samples: list[int], template: PromptTemplate) -> None:
        self.question, self.samples, self.template = question, samples, template
        self.prompt = template.prompt(Problem("", question.text, "", meta={"rendered": question.rendered}))
        self.tokens = template.tokens(self.prompt)

    def build_rows(self, completions: Sequence[Completion]) -> list[Row]:
        """Build the rows of the answers, see `Question.build_row`."""
        return [
            self.question.build_row(n, self.template.read(self.prompt, each.tokens), each.stop_reason, len(each.tokens))
            for n, each in zip(self.samples, completions, strict=True)
        ]
