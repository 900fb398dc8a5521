"""Files of every usual format, compression and encoding give the same problems."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import zstandard
from pyarrow.parquet import write_table

from qed.config.task_names import COMPRESSIONS, DATA_SUFFIXES, parse_task
from qed.data import tasks
from qed.data.sources import local, texts
from qed.data.sources.rows import Row
from qed.data.tools.validate import validate_file
from qed.errors import DataError

ROWS: list[Row] = [
    {"question": "Zoë has 2 cafés; how many, in all?", "answer": "2"},
    {"question": 'Say "π", twice.\nHow often?', "answer": "2"},
]
LATIN: list[Row] = [{"question": "Zoë has 2 cafés “open”?", "answer": "2"}]
Said = Callable[[], str]


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Said:
    """Return what was reported on stderr."""
    monkeypatch.setattr(texts, "_told", set())
    return lambda: capfd.readouterr().err


def lines(rows: list[Row]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(rows: list[Row], delimiter: str) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def load(file: Path, split: str = "train") -> list[Row]:
    return [{"question": p.question, "answer": p.answer} for p in tasks.load_task(str(file), split, {})]


TEXTS = {
    "jsonl": ("x.jsonl", lines(ROWS)),
    "json": ("x.json", json.dumps(ROWS)),
    "lines in json": ("x.json", lines(ROWS)),
    "under data": ("x.json", json.dumps({"version": 1, "data": ROWS})),
    "one split": ("x.json", json.dumps({"train": ROWS})),
    "another single list": ("x.json", json.dumps({"examples": ROWS, "name": "x"})),
    "columns": ("x.json", json.dumps({key: [row[key] for row in ROWS] for key in ROWS[0]})),
    "comma": ("x.csv", table(ROWS, ",")),
    "semicolon": ("x.csv", table(ROWS, ";")),
    "tab in csv": ("x.csv", table(ROWS, "\t")),
    "tab": ("x.tsv", table(ROWS, "\t")),
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_file_is_read(tmp_path: Path, name: str) -> None:
    file, text = TEXTS[name]
    (tmp_path / file).write_text(text, encoding="utf-8", newline="")
    assert load(tmp_path / file) == ROWS
    check = validate_file(tmp_path / file, {})
    assert (check.rows, check.errors) == (2, [])


def compress_zst(raw: bytes) -> bytes:
    """Two frames, the first without its size, as `zstd` writes from a pipe and `cat` joins."""
    half = len(raw) // 2
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(raw[:half]) + stream.flush() + zstandard.ZstdCompressor().compress(raw[half:])


COMPRESS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": compress_zst}


@pytest.mark.parametrize("end", COMPRESSIONS)
@pytest.mark.parametrize(("file", "text"), [TEXTS["jsonl"], TEXTS["json"], TEXTS["semicolon"], TEXTS["tab"]])
def test_a_compressed_file_is_read(tmp_path: Path, file: str, text: str, end: str) -> None:
    path = tmp_path / f"{file}{end}"
    path.write_bytes(COMPRESS[end](text.encode()))
    assert load(path) == ROWS
    assert (parse_task(str(path)).leaf, parse_task(str(path)).label) == ("files", "x")
    folder = tmp_path / "folder"
    folder.mkdir()
    path.rename(folder / f"train-{path.name}")
    assert load(folder) == ROWS
    (folder / f"train-{path.name}").write_bytes(COMPRESS[end](text.encode() * 9)[:-9])
    with pytest.raises(DataError, match=rf"{end} cannot be read"):
        load(folder)


def test_every_suffix_is_a_data_file() -> None:
    for suffix in DATA_SUFFIXES:
        assert parse_task(f"a/b{suffix}").path == f"a/b{suffix}"
        assert parse_task(f"a/b{suffix}").label == "b"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "windows-1252", "latin-1"])
@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_an_encoding_is_recognised_and_reported(tmp_path: Path, said: Said, encoding: str, kind: str) -> None:
    rows = LATIN if encoding != "latin-1" else [{"question": "Zoë\x81 has 2 cafés?", "answer": "2"}]
    text = {"jsonl": lines(rows), "json": json.dumps(rows, ensure_ascii=False), "csv": table(rows, ";")}[kind]
    file = tmp_path / f"x.{kind}"
    file.write_bytes(text.encode(encoding))
    assert load(file) == rows
    assert load(file) == rows
    assert said().count(f"x.{kind} is not UTF-8: read as {encoding}") == 1
    check = validate_file(file, {})
    assert (check.rows, check.errors) == (1, [])


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_utf8_is_not_reported(tmp_path: Path, said: Said, mark: bytes) -> None:
    (tmp_path / "x.jsonl").write_bytes(mark + lines(ROWS).encode())
    assert load(tmp_path / "x.jsonl") == ROWS
    assert said() == ""


def test_damaged_utf8_is_not_taken_for_another_encoding(tmp_path: Path) -> None:
    """Else every other letter beyond ASCII would be read as two."""
    (tmp_path / "x.jsonl").write_bytes(lines(ROWS).encode() + '{"question": "é?", "answer": "1"}'.encode("latin-1"))
    with pytest.raises(DataError, match="line 3: not UTF-8 text"):
        load(tmp_path / "x.jsonl")
    assert [str(issue.place) for issue in validate_file(tmp_path / "x.jsonl", {}).errors] == [
        f"{tmp_path / 'x.jsonl'}, row 3"
    ]


def test_splits_of_a_json_file(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"train": ROWS[:1], "test": ROWS[1:], "info": [1]}))
    assert load(file) == ROWS[:1]
    assert load(file, "test") == ROWS[1:]
    assert load(Path(f"files:test@{file}")) == ROWS[1:]
    assert validate_file(file, {}).rows == 2
    with pytest.raises(DataError, match=rf"has no split 'dev'. There are: train, test. Name one as files:train@{file}"):
        load(file, "dev")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"question": "x?", "answer": "3"}, "under data or the names of splits; found an object with question, answer"),
        ({"question": ["x?"], "answer": []}, "found an object with question, answer"),
        ("x", "expected a list of objects, found str"),
        ([1], "expected a list of objects, found list"),
        ({}, "found an object with nothing"),
        ({"question": {"0": "x?"}, "answer": {"0": "3"}}, r'pandas .* Write rows: .*orient="records", lines=True\)'),
        ({"0": {"question": "x?", "answer": "3"}}, r'orient="records", lines=True'),
        ({"train": {"question": ["x?"], "answer": ["3"]}}, r"list under data or the names of splits; found .* train"),
        ({"data": {"question": ["x?"], "answer": ["3"]}}, r"list under data or the names of splits; found .* data"),
        ({"a1": {"question": "x?", "answer": "3"}}, r"list under data or the names of splits; found .* a1"),
        ({"columns": ["question", "answer"], "index": [0], "data": [["x?", "3"]]}, r'orient="records", lines=True'),
        ({"features": [{"name": "question"}], "rows": [{"row_idx": 0, "row": {"question": "x?"}}]}, r"parquet files"),
    ],
)
def test_another_json_is_explained(tmp_path: Path, content: Any, words: str) -> None:
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=words):
        load(tmp_path / "x.json")


def test_columns_in_one_line_are_explained(tmp_path: Path) -> None:
    """Without orient and lines, pandas writes one object, whatever the name of the file."""
    (tmp_path / "x.jsonl").write_text(json.dumps({"question": {"0": "x?"}, "answer": {"0": "3"}}))
    with pytest.raises(DataError, match=r'x\.jsonl, row 1: this looks like .*orient="records", lines=True'):
        load(tmp_path / "x.jsonl")


def test_a_comma_in_a_header_of_semicolons_needs_quotes(tmp_path: Path) -> None:
    """The header decides: cells between commas are not cut at semicolons."""
    (tmp_path / "x.csv").write_text("question,answer\na; b?,1\n")
    assert load(tmp_path / "x.csv") == [{"question": "a; b?", "answer": "1"}]
    (tmp_path / "y.csv").write_text('"question";"answer"\n"a, b?";"1,5"\n')
    assert load(tmp_path / "y.csv") == [{"question": "a, b?", "answer": "1,5"}]
    (tmp_path / "z.tsv").write_text("question\tanswer\na\tb?\t1\n")
    with pytest.raises(DataError, match=r"row 1: 3 cells under 2 columns\. A cell with a tab"):
        load(tmp_path / "z.tsv")


def test_a_list_in_jsonl_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(ROWS))
    with pytest.raises(DataError, match=r"row 1: expected an object with columns, found list. .* is a .json file"):
        list(local.read_rows(str(tmp_path / "x.jsonl"), ""))


def write_parquet(file: Path, answers: list[Any]) -> list[Row]:
    rows = [{"question": f"{file.name} {number}?", "answer": answer} for number, answer in enumerate(answers)]
    write_table(
        pyarrow.table({name: pyarrow.array([row[name] for row in rows]) for name in ("question", "answer")}), file
    )
    return rows


def test_parquet_files_beside_text_are_read(tmp_path: Path) -> None:
    """They were left out in silence."""
    (tmp_path / "a.jsonl").write_text(lines(ROWS))
    rows = ROWS + write_parquet(tmp_path / "b.parquet", ["1", "2"])
    assert sorted(row["question"] for row in load(tmp_path)) == sorted(row["question"] for row in rows)
    assert validate_file(tmp_path, {}).rows == len(rows)


def test_a_parquet_file_with_the_name_of_a_text_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It most likely has the same rows, which would count twice."""
    (tmp_path / "train.jsonl").write_text(lines(ROWS))
    write_parquet(tmp_path / "train.parquet", ["1", "2"])
    for _ in range(2):
        assert len(list(local.read_rows(str(tmp_path), "train"))) == len(ROWS)
    told = capsys.readouterr().err
    assert told.count("train.parquet is skipped: train.jsonl has the same name") == 1


def test_an_empty_parquet_file_among_others_is_read(tmp_path: Path) -> None:
    """The library takes the rows of a file as the size of its batches."""
    table = pyarrow.table({name: pyarrow.array([], pyarrow.string()) for name in ("question", "answer")})
    write_table(table, tmp_path / "train-0.parquet")
    rows = write_parquet(tmp_path / "train-1.parquet", ["1", "2"])
    assert load(tmp_path) == rows
    assert not validate_file(tmp_path, {}).errors


@pytest.mark.parametrize("name", ["x.parquet", ""])
def test_a_cache_of_the_library_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_parquet(tmp_path / "x.parquet", ["1"])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", Path("/dev/null/datasets"))
    with pytest.raises(DataError, match=r"cache folder, but /dev/null/datasets is not: set .* HF_HOME or"):
        list(local.read_rows(str(tmp_path / name), ""))


def test_a_bad_parquet_file_of_a_folder_is_named(tmp_path: Path) -> None:
    for number in range(3):
        write_parquet(tmp_path / f"train-{number}.parquet", ["1"])
    (tmp_path / "train-1.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"ArrowInvalid: .* footer.* /.*train-1\.parquet cannot be read: restore"):
        load(tmp_path)
    write_parquet(tmp_path / "train-0.parquet", [7])
    write_parquet(tmp_path / "train-1.parquet", ["a"])
    with pytest.raises(DataError, match=r"answer is string in .*train-1\.parquet, and int64 in .*train-0\.parquet"):
        load(tmp_path)


def test_two_columns_of_the_same_name_are_told(tmp_path: Path) -> None:
    columns = [pyarrow.array(["1?"])] * 3
    write_table(pyarrow.Table.from_arrays(columns, ["question", "answer", "question"]), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"x\.parquet: two columns have the name question, .* Rename one"):
        load(tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"In .*x\.parquet two columns have the name question"):
        load(tmp_path)


def test_a_column_of_a_type_that_is_not_read_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The library knows no maps; the file was refused, whatever the column."""
    kind = pyarrow.map_(pyarrow.string(), pyarrow.int64())
    columns = {name: pyarrow.array([row[name] for row in ROWS]) for name in ("question", "answer")}
    extra = {"tags": pyarrow.array([[("a", 1)]] * len(ROWS), kind), "deep": pyarrow.array([[[]]] * len(ROWS))}
    extra["deep"] = extra["deep"].cast(pyarrow.list_(pyarrow.list_(pyarrow.int64())))
    write_table(pyarrow.table({**columns, **extra}), tmp_path / "x.parquet")
    for _ in range(2):
        rows = [row for _, row in local.read_rows(str(tmp_path / "x.parquet"), "")]
        assert rows == [{**row, "deep": [[]]} for row in ROWS]
    told = capsys.readouterr().err
    assert told.count("and are skipped: tags (map<string, int64>)") == told.count("skipped") == 1
    with pytest.raises(
        DataError, match=r"The column tags is map<string, int64> in .*x\.parquet, which is not supported"
    ):
        load(tmp_path)
    write_table(pyarrow.table({"tags": extra["tags"]}), tmp_path / "y.parquet")
    with pytest.raises(DataError, match=r"y\.parquet cannot be read as parquet: ValueError: Arrow type map"):
        load(tmp_path / "y.parquet")


def test_a_folder_is_validated(tmp_path: Path) -> None:
    """Rows are compared across its files, of which one may be empty; hidden ones are not its data."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.jsonl").write_text(lines(ROWS))
    (tmp_path / "b.jsonl").write_text("")
    (tmp_path / ".c.jsonl").write_text("{")
    (tmp_path / "sub" / "d.jsonl").write_text(lines(ROWS[:1]) + "{")
    check = validate_file(tmp_path, {})
    assert (check.rows, len(check.errors), len(check.remarks)) == (4, 1, 1)
    assert str(check.errors[0].place) == f"{tmp_path / 'sub' / 'd.jsonl'}, row 2"
    assert check.remarks[0].reason == f"the same as {tmp_path / 'a.jsonl'}, row 1."
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"none has no \.jsonl, .* `qed data inspect`"):
        validate_file(tmp_path / "none", {})


def test_a_file_that_cannot_be_read_at_all_is_named_once(tmp_path: Path) -> None:
    """It was called by its name, the number of a row, and its name."""
    said = {"x.txt": "is not a .jsonl", "x.jsonl.gz": "cannot be read: ", "x.json": ": expected a list of objects"}
    said |= {"x.csv": " has no rows", "y.json": ", line 2: broken JSON", "x.parquet": "cannot be read as parquet"}
    for name in said:
        (tmp_path / name).write_text({"x.csv": "question,answer\n", "y.json": "[\n"}.get(name, "3"))
        found = validate_file(tmp_path / name, {}).as_dict()
        assert (found["rows"], found["errors"]) == (0, 1)
        (line,) = found["first_errors"]
        assert line.startswith(f"{tmp_path / name}"), line
        assert said[name] in line, line
        assert (line.count(name), "row " in line) == (1, False), line
    (tmp_path / "z.csv").write_text("question,answer\n1?,1\n2,3,4\n")
    (issue,) = validate_file(tmp_path / "z.csv", {}).errors
    assert str(issue.place) == f"{tmp_path / 'z.csv'}, row 2"


def test_files_beside_the_folder_of_a_split_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train/a.jsonl", "b.jsonl", "test.jsonl", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(lines(ROWS))
    assert load(tmp_path) == ROWS
    told = f"The split is read from {tmp_path / 'train'}; files next to that folder are not read: b.jsonl.\n"
    assert capsys.readouterr().err == told


def test_subfolders_beside_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were left out in silence, while `qed data validate` reads them."""
    for name in ("a.jsonl", "more/b.jsonl", "test/c.jsonl", ".git/d.jsonl", "images/README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(lines(ROWS))
    for _ in range(2):
        assert load(tmp_path) == ROWS
    told = capsys.readouterr().err
    assert told.count("in its subfolders are not read: more.") == 1
    assert told.rstrip().endswith(f"such as {tmp_path / 'more'}.")
    assert validate_file(tmp_path, {}).rows == 3 * len(ROWS)


def test_subfolders_that_are_not_read_cannot_stop_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that may be listed and not entered, a link to the folder itself or one around it, a link to nothing."""
    for name in ("data/a.jsonl", "data/locked/b.jsonl", "data/.hidden/c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(lines(ROWS))
    for name, target in {"self": ".", "around": "..", "loop": "loop", "nothing": "nowhere"}.items():
        (tmp_path / "data" / name).symlink_to(target)
    stat = Path.stat

    def refuse_locked(path: Path, **given: Any) -> Any:
        if path.parent.name == "locked":
            raise PermissionError(path)
        return stat(path, **given)

    monkeypatch.setattr(Path, "stat", refuse_locked)
    assert load(tmp_path / "data") == ROWS
    assert "in its subfolders are not read: locked. To" in capsys.readouterr().err


def test_a_pattern_of_names_is_explained(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape("*.jsonl. Glob patterns are not expanded: name the folder")):
        load(tmp_path / "*.jsonl")


def test_decimals_are_numbers(tmp_path: Path) -> None:
    write_parquet(tmp_path / "x.parquet", [Decimal(text) for text in ("2.50", "100.00", "-0.10", "0.00")])
    assert [row["answer"] for row in load(tmp_path / "x.parquet")] == ["2.5", "100", "-0.1", "0"]
