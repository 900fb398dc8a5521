"""`qed data` as its users meet it: what it shows, writes and refuses."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console as RichConsole

from qed.console.live import Console
from qed.data import tasks
from qed.data.sources import hub
from qed.data.sources.rows import Place
from qed.data.tasks import gsm8k
from qed.data.tools import snapshot
from qed.errors import DataError
from qed.runs.manifest import hash_file

Run = Callable[..., tuple[int, str, str]]
ROWS = [{"question": f"What is {n} and {n}?", "answer": f"It is <<{n}+{n}={2 * n}>>\n#### {2 * n}"} for n in range(20)]


@pytest.fixture
def run(run: Callable[..., tuple[int, str, str]]) -> Run:
    """The command line, with paths as arguments."""
    return lambda *arguments: run("data", *map(str, arguments))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def last(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_inspect_in_characters(run: Run, file: Path) -> None:
    code, out, err = run("inspect", file)
    assert code == 0, err
    for words in ("GSM8K (20)", "with a demonstration", "⟦", "<end of answer>⟧", "without a model"):
        assert words in out
    (found,) = last(run("inspect", file, "--json")[1])["data"]
    assert (found["rows"], found["problems"], found["answers"], found["demonstrations"]) == (20, 20, 20, 20)
    assert (found["schemas"], found["unit"], found["unreadable_answers"]) == ({"GSM8K": 20}, "characters", 0)
    assert found["lengths"]["question, characters"]["n"] == 20


@pytest.mark.parametrize("prompt", ["r1_zero", "boxed"])
def test_inspect_in_tokens(run: Run, file: Path, prompt: str) -> None:
    """What is marked ends with the end token; the lengths of prompt and answer add up."""
    code, out, err = run("inspect", file, "--model", "new:tiny", "--prompt", prompt)
    assert code == 0, err
    assert out.count("<|end|>⟧") == 3
    assert ("<think>⟦" in out) == (prompt == "r1_zero")
    (found,) = last(run("inspect", file, "--model", "new:tiny", "--prompt", prompt, "--json")[1])["data"]
    means = {name: spread["mean"] for name, spread in found["lengths"].items()}
    assert means["prompt + answer, tokens"] == pytest.approx(means["prompt, tokens"] + means["answer, tokens"], abs=0.2)


def test_inspect_real_files(run: Run, shared: Path) -> None:
    data = shared / "data"
    names = [data / "luffy" / "valid.parquet", f"gsm8k:test@{data}/gsm8k/test.jsonl", f"mmlu:dev@{data}/mmlu"]
    luffy, gsm8k, mmlu = last(run("inspect", *names, "--json")[1])["data"]
    assert (luffy["rows"], luffy["problems"], luffy["schemas"]) == (2019, 1560, {"verl": 2019})
    assert luffy["sources"]["olympiad_bench"] == 675
    assert (gsm8k["problems"], gsm8k["solutions"], gsm8k["unreadable_answers"]) == (1319, 1319, 0)
    assert (mmlu["problems"], mmlu["distinct_problems"], len(mmlu["subjects"])) == (285, 284, 57)


def test_convert_with_filters(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    arguments = ("--to", "luffy", "--unique-train-examples", 8, "--validation-split", 0.1, "--correct-only", "--json")
    code, said, err = run("convert", file, out, *arguments)
    assert code == 0, err
    found = last(said)
    assert list(found["written"].values()) == [8, 2]
    assert found["left_out"] == {"problems beyond data.unique_examples": 10}
    train, held = (tasks.load_task(str(path), "train", {}) for path in (out, tmp_path / "out-validation.parquet"))
    assert not {problem.question for problem in train} & {problem.question for problem in held}
    assert all(problem.meta["completion"].endswith("}.") for problem in train)


def test_a_row_without_an_answer_is_not_converted(run: Run, tmp_path: Path) -> None:
    """It was an error to `qed data validate`; what is for a reward of one's own is written, as questions alone are."""
    file, out = tmp_path / "x.jsonl", tmp_path / "out.jsonl"
    rows = [*ROWS[:3], {"question": "Why?", "answer": ""}, {"question": "How?", "answer": None}]
    file.write_text("\n".join(map(json.dumps, rows)))
    code, said, _ = run("convert", file, out)
    assert (code, len(lines(out))) == (0, 3)
    assert "3 of 5 rows" in said
    assert "without an answer and a demonstration" in said
    assert run("validate", out)[0] == 0
    tested = {"question": "Sort.", "answer": "", "tests": ["sort([2, 1])"]}
    for more, count in ((rows[3:], 2), ([*rows, tested], 4), ([{**row, "tests": []} for row in rows] + [tested], 4)):
        file.write_text("\n".join(map(json.dumps, more)))
        assert run("convert", file, out, "--overwrite")[0] == 0
        assert len(lines(out)) == count


def test_lengths_are_filtered_in_the_unit_that_is_said(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    reasons = last(run("convert", file, out, "--max-prompt-percentile", 50, "--json")[1])["left_out"]
    assert reasons == {"with a prompt beyond the 50th percentile, 16 characters": 10}
    more = ("--overwrite", "--model", "new:tiny", "--max-tokens", 400, "--json")
    assert last(run("convert", file, out, *more)[1])["unit"] == "tokens"


def test_nothing_is_replaced_unasked(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    code, _, err = run("convert", file, out)
    assert (code, out.read_text(), len(err.splitlines())) == (2, "mine", 1)
    assert "--overwrite" in err
    assert run("convert", file, out, "--overwrite")[0] == 0
    assert len(lines(out)) == 20
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("mine")
    code, _, err = run("prepare", "--tasks", file, "--to", tmp_path / "home", "--overwrite")
    assert (code, "is not a snapshot" in err) == (2, True)
    assert (tmp_path / "home" / "letter").read_text() == "mine"


def test_an_interrupt_leaves_what_was_there(tmp_path: Path) -> None:
    def interrupted() -> Any:
        yield {"a": 1}
        raise KeyboardInterrupt

    (tmp_path / "out.jsonl").write_text("mine")
    with pytest.raises(KeyboardInterrupt):
        snapshot.write_rows(tmp_path / "out.jsonl", interrupted())
    with snapshot.open_snapshot(tmp_path / "snap", False) as place:
        (place / tasks.MANIFEST).write_text("{}")

    def half() -> None:
        with snapshot.open_snapshot(tmp_path / "snap", True) as place:
            (place / "half").write_text("x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert sorted(path.name for path in tmp_path.rglob("*")) == [tasks.MANIFEST, "out.jsonl", "snap"]
    assert (tmp_path / "out.jsonl").read_text() == "mine"


def test_a_snapshot_is_read_back(run: Run, file: Path, tmp_path: Path) -> None:
    snap = tmp_path / "snap"
    names = f"gsm8k:train@{file},gsm8k:test@{file},arithmetic:test,{file}"
    code, said, err = run("prepare", "--tasks", names, "--to", snap, "--split", 0.2, "--json")
    assert code == 0, err
    manifest = last(said)
    assert manifest == json.loads((snap / tasks.MANIFEST).read_text())
    counts = {entry["task"]: entry["problems"] for entry in manifest["tasks"]}
    assert counts == {
        "gsm8k:train": 16,
        "gsm8k:validation": 4,
        "gsm8k:test": 20,
        "arithmetic:test": 1000,
        "train:train": 16,
        "train:validation": 4,
    }
    before = {problem.id for problem in tasks.load_task(f"gsm8k:train@{file}", "train", {})}
    parts = [tasks.load_task(f"gsm8k:{part}@{snap}", "test", {}) for part in ("train", "validation", "test")]
    assert {problem.id for problem in [*parts[0], *parts[1]]} == {problem.id for problem in parts[2]} == before
    for entry in manifest["tasks"]:
        assert len(tasks.load_task(entry["read_with"], "train", {})) == entry["problems"]
        assert hash_file(snap / entry["file"]) == entry["sha256"]
    with pytest.raises(DataError, match="no split 'test'"):
        tasks.load_task(f"math:test@{snap / 'train'}", "test", {})


def test_a_snapshot_of_the_hub_says_its_revision(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are those that the hub has, and a benchmark is kept whole whatever the filters."""
    asked = []

    def rows(place: hub.HubDataset, task: str) -> Iterator[tuple[Place, dict[str, Any]]]:
        asked.append((place.name, place.revision))
        yield from ((Place(place.name, number), row) for number, row in enumerate(ROWS, 1))

    monkeypatch.setattr(hub, "load_rows", rows)
    more = ("--unique-train-examples", 5, "--dedupe", "--json")
    entries = {}
    for name, revisions in (("one", ()), ("two", ("--revisions", "gsm8k=abc"))):
        code, said, err = run("prepare", "--tasks", "gsm8k,gsm8k:test", "--to", tmp_path / name, *more, *revisions)
        assert code == 0, err
        entries[name] = last(said)["tasks"]
    assert [revision for _, revision in asked] == [gsm8k.REVISION] * 2 + ["abc"] * 2
    assert [entry["from"]["revision"] for entry in entries["one"]] == [gsm8k.REVISION] * 2
    assert {entry["from"]["source"] for entry in entries["two"]} == {"hub:openai/gsm8k"}
    assert [entry["problems"] for entry in entries["one"]] == [5, 20]
    assert lines(tmp_path / "one" / "gsm8k" / "test" / "data.jsonl") == ROWS


def test_a_snapshot_keeps_k_answers(run: Run, shared: Path, tmp_path: Path) -> None:
    file = shared / "data" / "luffy" / "valid.parquet"
    code, said, err = run("prepare", "--tasks", file, "--to", tmp_path / "snap", "--json")
    assert code == 0, err
    (entry,) = last(said)["tasks"]
    assert (entry["rows"], entry["problems"]) == (2019, 1560)
    before, after = (tasks.load_task(name, "train", {}) for name in (str(file), entry["read_with"]))
    assert [(one.id, one.meta.get("k")) for one in before] == [(one.id, one.meta.get("k")) for one in after]


def test_what_is_trained_is_bold_on_a_terminal() -> None:
    console, out = Console(), io.StringIO()
    console.rich = RichConsole(file=out, force_terminal=True, color_system="truecolor")
    console.marked("[asked]", "said\x1b[2J")
    assert out.getvalue() == "\x1b[2m[asked]\x1b[0m\x1b[1msaid[2J\x1b[0m\n"  # and no sign commands the terminal


def test_a_snapshot_is_compared_with_benchmarks(run: Run, tmp_path: Path, shared: Path) -> None:
    gsm8k = shared / "data" / "gsm8k"
    names = ("--tasks", f"gsm8k:train@{gsm8k}/train.jsonl", "--against", f"gsm8k:test@{gsm8k}/test.jsonl")
    code, said, err = run("prepare", *names, "--to", tmp_path / "snap", "--drop-contaminated", "--json")
    assert code == 0, err
    manifest = last(said)
    (found,) = manifest["contamination"].values()
    assert (found["contaminated"], found["benchmarks"]["gsm8k"]["touched"], len(found["examples"])) == (4, 3, 4)
    (entry,) = manifest["tasks"]
    assert (entry["problems"], entry["left_out"]) == (7469, {"problems that overlap with a benchmark": 4})
    assert "snow" in found["examples"][0]["shared"]
    assert len(tasks.load_task(f"gsm8k:train@{tmp_path / 'snap'}", "train", {})) == 7469


BROKEN = [
    b'{"question": "1+1?", "answer": "2"}',
    b'{"question": "1+1?", "answer": "2"}',
    b'{"question": "1+1?", "answer": "3"}',
    b'{"question": "  ", "answer": "2"}',
    b'{"question": "a?", "answer": ',
    b'{"question": "b\xff?", "answer": "2"}',
    b'{"question": "c?", "answer": null}',
    b'{"question": "d?", "answer": NaN}',
    b'{"question": ["e"], "answer": "2"}',
    b'{"question": "f?", "answer": "2", "score": [1.0, Infinity]}',
    b'{"question": "g\\ud800?", "answer": "2"}',
    b'{"question": "h\xef\xbf\xbd?", "answer": "2"}',
    b'{"question": "i?", "answer": "$ @ ;; $"}',
    b"[1]",
]


def test_validate_names_every_row(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b"\n".join(BROKEN))
    code, said, _ = run("validate", path, "--json")
    (found,) = last(said)["files"]
    assert (code, found["rows"], found["errors"], found["remarks"], found["unreadable_answers"]) == (3, 14, 9, 4, 1)
    out = run("validate", path)[1]
    for row, words in {
        4: "question is empty",
        5: "broken JSON",
        6: "not UTF-8",
        7: "no answer",
        8: "answer is not a finite number",
        9: "question is list, not text",
        10: "score is not a finite number",
        11: "half of a UTF-16 pair",
        14: "expected an object",
    }.items():
        assert any(f"row {row}: " in line and words in line and "error" in line for line in out.splitlines()), words
    for row, words in {2: "the same as row 1", 3: "with another answer", 12: "lost", 13: "cannot read"}.items():
        assert any(f"row {row}: " in line and words in line and "remark" in line for line in out.splitlines()), words


def test_validate_names_every_row_of_a_table(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "cells.csv"
    path.write_text("question,answer\n1?,1\n2, or 3?,2\n3?,3\n4?\n5?,5\n", encoding="utf-8")
    code, said, _ = run("validate", path, "--json")
    (found,) = last(said)["files"]
    assert (code, found["rows"], found["errors"]) == (3, 5, 2)
    out = run("validate", path)[1]
    assert "row 2: 3 cells under 2 columns" in out
    assert "row 4: 1 cells under 2 columns" in out


def test_validate_says_when_all_is_well(run: Run, file: Path, tmp_path: Path) -> None:
    assert run("validate", file)[0] == 0
    (tmp_path / "twice.jsonl").write_text("\n".join(json.dumps(row) for row in [*ROWS, ROWS[0]]))
    assert run("validate", tmp_path / "twice.jsonl")[0] == 0
    assert run("validate", tmp_path / "twice.jsonl", "--strict")[0] == 3
    (tmp_path / "empty.jsonl").write_text("")
    assert run("validate", tmp_path / "empty.jsonl")[0] == 3
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({"frage": "1+1?", "gold": str(n)}) for n in range(30)))
    code, out, _ = run("validate", other)
    assert (code, "19, 20 and 10 more: the columns are frage, gold" in out) == (3, True)
    assert run("validate", other, "--map", "question=frage")[0] == 0


@pytest.mark.parametrize(
    ("file", "errors"),
    [("gsm8k/train.jsonl", 0), ("luffy/valid.all.parquet", 0), ("qwen_eval/gaokao2023en.jsonl", 2)],
)
def test_validate_real_files(run: Run, shared: Path, file: str, errors: int) -> None:
    """Repeats that ask for k answers are no duplicates; two rows of Gaokao have their answer in the question."""
    code, out, _ = run("validate", shared / "data" / file, "--json")
    (found,) = last(out)["files"]
    assert (code, found["errors"]) == (3 if errors else 0, errors)
    assert not any("the same as" in line for line in found["first_remarks"])


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["inspekt", "train.jsonl"], 2, ["no action 'inspekt'", "'inspect'"]),
        (["inspect", "nothing.jsonl"], 3, ["There is no data file nothing.jsonl. A relative path is relative"]),
        (["inspect", "gsm9k"], 2, ["Did you mean 'gsm8k'"]),
        (["inspect", "fold"], 2, ["no 'fold' among the tasks. The folder of this name is ./fold. There are: "]),
        (["inspect", "train.jsonl:test"], 2, ["a file is read whole", "files:test@train.jsonl"]),
        (["inspect", "train.jsonl", "--model", "new:huge"], 2, ["no model size 'huge'"]),
        (["inspect", "train.jsonl", "--model", "."], 3, ["The tokenizer of . cannot be loaded"]),
        (["convert", "train.jsonl", "x.xlsx"], 2, [".jsonl, .jsonl.gz, .csv, .parquet"]),
        (["convert", "train.jsonl", "x.csv", "--to", "jsonl"], 2, ["does not match"]),
        (["convert", "train.jsonl", "x.jsonl", "--to", "verl", "--prompt", "r1_zero"], 2, ["plain text", "chat"]),
        (["convert", "train.jsonl", "x.jsonl", "--max-tokens", "9"], 2, ["--model", "--max-characters"]),
        (["convert", "train.jsonl", "x.jsonl", "--max-characters", "1"], 3, ["No problem is left of 20"]),
        (["convert", "train.jsonl", "x.jsonl", "--unique-train-examples", "some"], 2, ["or all, not 'some'"]),
        (["convert", "train.jsonl", "x.jsonl", "--validation-split", "1"], 2, ["[0, 1)"]),
        (["convert", "train.jsonl", "x.jsonl", "--validation-split", "0.99"], 3, ["leaves none for training"]),
        (["convert", "train.jsonl", "x.jsonl", "--max-prompt-percentile", "0"], 2, ["(0, 100]"]),
        (["convert", "train.jsonl", "x.jsonl", "--map", "question"], 2, ["--map must be NAME=VALUE"]),
        (["convert", "train.jsonl", "x.jsonl", "--map", "A=x", "--map=B=y"], 2, ["--map is given twice", "A=X,B=Y"]),
        (["convert", "train.jsonl", "x.jsonl", "--map", "A=x", "--data.map=B=y"], 2, ["--map and --data.map are two"]),
        (["inspect", "odd.csv"], 3, ["Name yours with --map question=YOURS", "Perhaps: --map question=prblem"]),
        (["convert", "train.jsonl", "."], 2, ["is a folder"]),
        (["prepare", "--tasks", "train.jsonl"], 2, ["--to"]),
        (["prepare", "--tasks", "train.jsonl,train.jsonl", "--to", "s"], 2, ["Two of the tasks"]),
        (["prepare", "--tasks", ",", "--to", "s"], 2, ["--tasks names no task"]),
        (["prepare", "--tasks", "train.jsonl", "--to", "s", "--drop-contaminated"], 2, ["--against"]),
        (["prepare", "--tasks", "train.jsonl", "--to", "s", "--words", "0"], 2, ["--words"]),
        (["validate", "nothing.jsonl"], 3, ["There is no file nothing.jsonl"]),
    ],
)
def test_mistakes_are_one_line(run: Run, file: Path, arguments: list[str], code: int, words: list[str]) -> None:
    (file.parent / "odd.csv").write_text("prblem,answer\n1+1,2\n")
    (file.parent / "fold").mkdir()
    before = sorted(file.parent.iterdir())
    found, _, err = run(*arguments)
    assert found == code, err
    assert len(err.splitlines()) == 1, err
    for word in words:
        assert word in err
    assert sorted(file.parent.iterdir()) == before


def test_help_of_each_action(run: Run) -> None:
    assert run()[0] == 2
    for action in ("inspect", "convert", "prepare", "validate"):
        code, out, _ = run(action, "--help")
        assert code == 0
        assert f"qed data {action}" in out
