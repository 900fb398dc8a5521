"""Your own data: a jsonl, json, csv or parquet file, recognised by its columns.

Known columns: `question, answer` (GSM8K: the answer stands behind ####), `problem, solution, answer` (MATH and its
kin), `prompt, completion` and `prompt, answer` (TRL). Others are renamed with --data.map question=problem.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from qed.draws import seed_of
from qed.errors import DataError, UsageError, nearest
from qed.grading.extract import last_boxed
from qed.types import Problem

PROMPT = "r1_zero"
QUESTION = ("question", "problem", "prompt")
ANSWER = ("answer", "final_answer", "gold", "ground_truth")
SOLUTION = ("solution", "completion", "response")
COLUMNS = (*QUESTION, *ANSWER, *SOLUTION, "subject", "type", "level", "source")
CALCULATOR = re.compile(r"<<[^<>]*>>")  # GSM8K writes its sums twice: 48/2 = <<48/2=24>>24

Row = dict[str, Any]


def load(split: str) -> list[Problem]:
    """This task needs a path."""
    raise UsageError("The task 'files' needs a path: give the data file itself, for example --tasks data/train.jsonl.")


def load_file(path: str, mapping: Mapping[str, str]) -> list[Problem]:
    """The problems of a data file, one a row; `mapping` names for our columns those of the file.

    Raises:
        DataError: the file is missing, a row is broken (named by its number), or no question or answer column is there.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"There is no data file {path}.")
    unknown = [ours for ours in mapping if ours not in COLUMNS]
    if unknown:
        raise UsageError(f"data.map names {', '.join(unknown)}, which is none of our columns: {', '.join(COLUMNS)}.")
    problems = []
    for number, row in _rows(file):
        missing = [theirs for theirs in mapping.values() if theirs not in row]
        if missing:
            raise DataError(f"{file}, row {number}: data.map names {missing[0]}, but the columns are {', '.join(row)}.")
        problems.append(_problem({**row, **{ours: row[theirs] for ours, theirs in mapping.items()}}, file, number))
    return problems


def _problem(row: Row, file: Path, number: int) -> Problem:
    question_key = next((key for key in QUESTION if key in row), None)
    if question_key is None or not any(key in row for key in (*ANSWER, *SOLUTION)):
        raise DataError(_missing(row, file, number))
    question = _text(row[question_key], file, number, question_key)
    solution_key = next((key for key in SOLUTION if row.get(key)), None)
    answer_key = next((key for key in ANSWER if row.get(key) not in (None, "")), None)
    solution = _text(row[solution_key], file, number, solution_key) if solution_key else ""
    answer = _text(row[answer_key], file, number, answer_key) if answer_key else ""
    meta: dict[str, Any] = {key: row[key] for key in ("subject", "type", "level", "source") if key in row}
    if answer_key == "answer" and "####" in answer:
        solution, _, answer = answer.rpartition("####")
        solution, answer = CALCULATOR.sub("", solution).strip(), answer.strip().replace(",", "")
    elif question_key == "prompt" and solution_key == "completion":
        meta["completion"], solution = solution, ""
    elif not answer:
        answer = last_boxed(solution) or ""
    if not question.strip():
        raise DataError(f"{file}, row {number}: the {question_key} is empty.")
    # Several solutions of one question are several demonstrations; only a row that stands twice has the same id.
    address = seed_of(question, answer, solution, str(meta.get("completion", "")))
    return Problem(f"{file.stem}-{address:016x}", question.strip(), answer.strip(), solution, meta)


def _text(value: Any, file: Path, number: int, key: str) -> str:
    if isinstance(value, str):
        if not value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise DataError(f"{file}, row {number}: {key} holds half of a UTF-16 pair, which is no text.")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{file}, row {number}: {key} is {type(value).__name__}, not text: {str(value)[:80]}")
    return str(value)


def _missing(row: Row, file: Path, number: int) -> str:
    hints = [
        f"{ours}={theirs}"
        for ours, known in (("question", QUESTION), ("answer", ANSWER))
        if not any(key in row for key in known)
        for theirs in [_likely(row, known)]
        if theirs
    ]
    return (
        f"{file}, row {number}: the columns are {', '.join(map(str, row)) or '(none)'}; expected one of "
        f"{', '.join(QUESTION)} "
        f"and one of {', '.join((*ANSWER, *SOLUTION))}. Name yours with --data.map question=YOURS,answer=YOURS."
        + (f" Perhaps: --data.map {','.join(hints)}" if hints else "")
    )


def _likely(row: Row, known: tuple[str, ...]) -> str:
    """The column nearest to one of the known names."""
    for name in known:
        found = nearest(name, [str(key) for key in row])
        if found:
            return found.split("'")[1]
    return ""


def _rows(file: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a file with their numbers, counted from 1 (in jsonl, the line)."""
    name = file.name.lower().removesuffix(".gz")
    if name.endswith(".parquet"):
        yield from _parquet(file)
        return
    try:
        raw = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise DataError(f"{file}, line {line}: not UTF-8 text ({error.reason}). Save the file as UTF-8.") from error
    if name.endswith(".jsonl"):
        yield from _jsonl(file, text)
    elif name.endswith(".csv"):
        yield from _csv(file, text)
    elif name.endswith(".json"):
        yield from enumerate(_json_list(file, text), 1)
    else:
        raise DataError(f"{file} is no .jsonl, .json, .csv or .parquet file.")


def _jsonl(file: Path, text: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{file}, row {number}: broken JSON ({error.msg} at column {error.colno}): {line[:80]}"
            ) from error
        if not isinstance(row, dict):
            raise DataError(f"{file}, row {number}: expected an object with columns, found {type(row).__name__}.")
        yield number, row


def _csv(file: Path, text: str) -> Iterator[tuple[int, Row]]:
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))
    try:
        yield from enumerate(csv.DictReader(io.StringIO(text)), 1)
    except csv.Error as error:
        raise DataError(f"{file} is no readable csv: {error}.") from error


def _json_list(file: Path, text: str) -> list[Row]:
    try:
        rows = json.loads(text) if text.strip() else []
    except json.JSONDecodeError as error:
        raise DataError(f"{file}, line {error.lineno}: broken JSON ({error.msg} at column {error.colno}).") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{file}: expected a list of objects.")
    return rows


def _parquet(file: Path) -> Iterator[tuple[int, Row]]:
    from datasets import Dataset  # noqa: PLC0415 -- heavy, and needed for this one format

    try:
        table = Dataset.from_parquet(str(file), keep_in_memory=True)
    except Exception as error:
        raise DataError(f"{file} cannot be read as parquet: {error}") from error
    yield from enumerate(table, 1)
