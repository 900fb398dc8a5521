"""Data that is not as it should be: a message with the row and what to do, or a count of what was left out."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pyarrow.parquet
import pytest

from qed.data import tasks
from qed.errors import DataError
from qed.types import Problem

GOOD = [{"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1}"} for n in range(30)]


def lines(rows: list[Any], end: str = "\n") -> str:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + end for row in rows)


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sink)
    return sink.getvalue()


def loaded(file: Path) -> tuple[list[Problem], Counter[str]]:
    left_out: Counter[str] = Counter()
    return tasks.load_task(str(file), "train", {}, left_out=left_out), left_out


MESSAGES = [{"role": "user", "content": "What is 1 + 1?"}]
VERL = {
    "data_source": "x",
    "prompt": MESSAGES,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "train", "index": 0},
}
# The name of a file, its content, and how many problems are read from it.
READ: dict[str, tuple[str, bytes, int]] = {
    "byte order mark": ("x.jsonl", b"\xef\xbb\xbf" + lines(GOOD).encode(), 30),
    "carriage returns": ("x.jsonl", lines(GOOD, "\r\n").encode(), 30),
    "no last line break": ("x.jsonl", lines(GOOD).encode().rstrip(), 30),
    "blank lines": ("x.jsonl", lines(GOOD, "\n\n  \n").encode(), 30),
    "unicode": ("x.jsonl", lines([{"question": "¿Cuánto? 💯 \u202e", "answer": "½"}]).encode(), 1),
    "line separators in a text": ("x.jsonl", '{"question": "a\u2028b\u0085c", "answer": "1"}\n'.encode(), 1),
    "a null character": ("x.jsonl", b'{"question": "a\\u0000b", "answer": "1"}\n', 1),
    "one row": ("x.jsonl", lines(GOOD[:1]).encode(), 1),
    "a row of 10 MB": ("x.jsonl", lines([{"question": "long " * 2_000_000, "answer": "1"}]).encode(), 1),
    "numbers as answers": (
        "x.jsonl",
        lines([{"question": "1?", "answer": 1}, {"question": "2?", "answer": 2.5}]).encode(),
        2,
    ),
    "a list": ("x.json", json.dumps(GOOD).encode(), 30),
    "a list with a byte order mark": ("x.json", b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), 30),
    "compressed": ("x.jsonl.gz", gzip.compress(lines(GOOD).encode()), 30),
    "commas and quotes": ("x.csv", b'question,answer\n"a, ""b""?",1\n"c\nd?",2\n', 2),
    "empty cells behind the last": ("x.csv", b"question,answer\n1?,1,,\n\n2?,2,\n", 2),
    "a table with a mark and returns": ("x.csv", b"\xef\xbb\xbfquestion,answer\r\n1?,1\r\n", 1),
    "columns": ("x.parquet", parquet(GOOD), 30),
    "messages and a nested gold": ("x.parquet", parquet([VERL]), 1),
    "both schemas": ("x.parquet", parquet([{**VERL, "problem": "What is 1 + 1?", "answer": "2"}]), 1),
    "arrays of numpy": ("x.parquet", parquet([{"prompt": list(numpy.array(MESSAGES)), "answer": "2"}]), 1),
    "other columns": ("x.jsonl", lines([{**GOOD[0], "extra": {"deep": [1, {"x": None}]}, "none": None}]).encode(), 1),
}


@pytest.mark.parametrize("name", READ)
def test_what_can_be_read(tmp_path: Path, name: str) -> None:
    file, content, count = READ[name]
    (tmp_path / file).write_bytes(content)
    problems, _ = loaded(tmp_path / file)
    assert len(problems) == count
    assert all(problem.question.strip() and problem.id for problem in problems)


# The name of a file, its content, and words of the message.
REFUSED: dict[str, tuple[str, bytes, list[str]]] = {
    "no rows": ("x.jsonl", b"", ["no problems"]),
    "a list of none": ("x.json", b"[]", ["no problems"]),
    "a table of none": ("x.csv", b"question,answer\n", ["no problems"]),
    "a table with a cell too many": ("x.csv", b"question,answer\n1?,1\n2, or 3?,2\n", ["row 2", "3 cells", "quotes"]),
    "a table with a cell too few": ("x.csv", b"question,answer\n1?,1\n2?\n", ["row 2", "1 cells under 2"]),
    "a table with an open quote": ("x.csv", b'question,answer\n1?,"1\n2?,2\n3?,3\n', ["line 4", "quote"]),
    "a table with two columns of a name": ("x.csv", b"question,answer,answer\n1?,1,2\n", ["answer, so one would"]),
    "a number of 5,000 digits": (
        "x.jsonl",
        b'{"question": "1?", "answer": 1' + b"0" * 5000 + b"}\n",
        ["row 1", "digits"],
    ),
    "a list of such numbers": ("x.json", b"[1" + b"0" * 5000 + b"]", ["digits"]),
    "a list that is too deep": ("x.json", b"[" * 200_000 + b"]" * 200_000, ["deep"]),
    "no bytes of parquet": ("x.parquet", b"", ["parquet"]),
    "half a parquet": ("x.parquet", parquet(GOOD)[:200], ["parquet"]),
    "half a sign of two bytes": (
        "x.jsonl",
        lines(GOOD).encode("utf-16")[:-1],
        ["line", "utf-16", "Save the file as UTF-8"],
    ),
    "two encodings in a file": (
        "x.jsonl",
        lines(GOOD).encode() + b'{"question": "caf\xe9 \xc3\xa9", "answer": "1"}\n',
        ["line 31", "UTF-8"],
    ),
    "half a gzip": ("x.jsonl.gz", gzip.compress(lines(GOOD * 50).encode())[:-40], ["x.jsonl.gz"]),
    "half a row": ("x.jsonl", lines([*GOOD[:2], '{"question": "1?"']).encode(), ["row 3", "JSON"]),
    "a row that is a number": ("x.jsonl", lines([GOOD[0], "3"]).encode(), ["row 2"]),
    "a row that is nothing": ("x.jsonl", lines([GOOD[0], "null"]).encode(), ["row 2"]),
    "other columns alone": ("x.jsonl", lines([{"a": 1, "b": 2}]).encode(), ["a, b", "--data.map"]),
    "a question that is nothing": ("x.jsonl", lines([GOOD[0], {"question": None, "answer": "1"}]).encode(), ["row 2"]),
    "a question that is a list": ("x.jsonl", lines([{"question": [1], "answer": "1"}]).encode(), ["row 1", "question"]),
    "a question that is empty": ("x.jsonl", lines([{"question": "\t ", "answer": "1"}]).encode(), ["row 1", "empty"]),
    "an answer that is an object": (
        "x.jsonl",
        lines([{"question": "1?", "answer": {"a": 1}}]).encode(),
        ["row 1", "answer"],
    ),
    "nesting without end": ("x.jsonl", b'{"question": ' + b"[" * 100_000 + b"\n", ["row 1"]),
    "a list that is an object": ("x.json", b'{"rows": 1}', ["list of objects"]),
    "half a list": ("x.json", b'[{"question": "1?"},\n{"question":', ["line 2"]),
    "a program": ("x.jsonl", b"\x7fELF\x02\x01\x01" + bytes(range(256)), ["x.jsonl"]),
    "a folder without files": ("x.jsonl/readme.txt", b"nothing", ["x.jsonl"]),
    "an unknown suffix": ("x.xlsx", b"PK", ["x.xlsx"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_named_by_its_row(qed: Callable[..., Any], tmp_path: Path, name: str) -> None:
    file, content, words = REFUSED[name]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(content)
    done = qed("grpo", "--tasks", tmp_path / file.split("/")[0], "--out", tmp_path / "run", "--dry-run")
    assert done.code in (2, 3), done.err
    assert "Traceback" not in done.err
    assert "bug in qed" not in done.err
    assert len(done.err.splitlines()) <= 12
    for word in words:
        assert word in done.err, done.err


def test_rows_that_stand_twice_are_counted(qed: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(lines([*GOOD, *GOOD[:7]]))
    done = qed("grpo", "--tasks", tmp_path / "x.jsonl", "--out", tmp_path / "run", "--dry-run")
    assert done.code == 0, done.err
    assert "7 duplicate rows" in done.out


@pytest.mark.parametrize(
    "gold", ["\\frac{1}{", "see figure", "x = ?", "∅", "1" * 5000, "\\boxed{}", "<answer>", "[1, 2"]
)
def test_a_gold_that_cannot_be_parsed_costs_nobody_the_run(tmp_path: Path, gold: str) -> None:
    """It is a problem that may never be solved, and the others are read."""
    (tmp_path / "x.jsonl").write_text(lines([*GOOD, {"question": "odd?", "answer": gold}]))
    problems, _ = loaded(tmp_path / "x.jsonl")
    assert len(problems) == 31


def test_a_missing_file_and_an_unreadable_one(tmp_path: Path) -> None:
    for name in ("gone.jsonl", "gone.parquet", "gone.csv"):
        with pytest.raises(DataError, match="gone"):
            loaded(tmp_path / name)
