"""Text that a program wrote to parquet as bytes is read as text; other bytes are refused where text is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.data.sources.local import read_rows
from qed.data.sources.memory import copy_rows
from qed.data.sources.rows import decode_texts

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

Run = Callable[..., tuple[int, str, str]]
IMAGE = b"\x89PNG\xff"


def write(file: Path, **columns: list[Any]) -> Path:
    parquet.write_table(pyarrow.table(columns), file)
    return file


def test_bytes_are_text_where_they_are_utf_8(tmp_path: Path) -> None:
    given = {"question": "√4 = ?".encode(), "answer": b"2", "image": IMAGE, "solutions": [b"2", b"two"], "number": 7}
    wanted = {"question": "√4 = ?", "answer": "2", "image": IMAGE, "solutions": ["2", "two"], "number": 7}
    assert decode_texts(given) == wanted
    ids = [1, 2]
    decoded = decode_texts({"turns": [None, {"said": b"7"}], "ids": ids})
    assert decoded["turns"] == [None, {"said": "7"}]
    assert decoded["ids"] is ids, "long lists are not looked through"
    file = write(tmp_path / "bytes.parquet", **{name: [value] for name, value in given.items()})
    assert [row for _, row in read_rows(str(file), "")] == [wanted]
    assert copy_rows("train", pyarrow.table({name: [value] for name, value in given.items()})) == [wanted]
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "train.parquet", **{name: [value] for name, value in given.items()})
    assert [row for _, row in read_rows(str(folder), "train")] == [wanted]


def test_bytes_are_graded_as_the_text_that_they_are(tmp_path: Path, run: Run) -> None:
    """As `b'7'` every answer would be wrong."""
    file = write(tmp_path / "bytes.parquet", gold=[b"7", b"8"], response=[b"It is 7.", "It is √81.".encode()])
    code, out, _ = run("grade", str(file), "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["correct"] == 1


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("response", IMAGE),
        ("response", [b"7", IMAGE]),
        ("response", [{"role": "assistant", "content": IMAGE}]),
        ("gold", IMAGE),
        ("gold", [IMAGE]),
    ],
)
def test_other_bytes_are_no_answer(tmp_path: Path, run: Run, name: str, given: Any) -> None:
    columns = {"gold": ["7"], "response": ["It is 7."]} | {name: [given]}
    code, _, said = run("grade", str(write(tmp_path / "bytes.parquet", **columns)), "--json")
    assert code == 3
    assert f"bytes.parquet, row 1: {name} has bytes that are not UTF-8 text" in said


def test_an_id_may_be_bytes(tmp_path: Path, run: Run) -> None:
    """Such as the 16 of a UUID."""
    file = write(tmp_path / "ids.parquet", id=[IMAGE, IMAGE[::-1]], gold=["7", "8"], response=["7", "9"])
    code, out, said = run("evaluate", "--responses", str(file), "--out", str(tmp_path / "out"), "--json")
    assert code == 0, said
    assert out
