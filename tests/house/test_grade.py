"""`qed grade` as its users meet it: files of several kinds, rewards, what is added to a row, and mistakes."""

from __future__ import annotations

import csv
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from qed.data.sources.rows import Place
from qed.errors import DataError
from qed.evaluation.answer_rows import group_rows
from qed.evaluation.grade_files import grade_groups

Run = Callable[..., tuple[int, str, str]]
ROWS = [
    {"id": "a", "gold": "12", "prediction": "so \\boxed{12}", "note": {"k": [1]}},
    {"id": "b", "gold": "12", "prediction": "the answer is 12"},
    {"id": "c", "gold": "12", "prediction": "so \\boxed{13}"},
    {"id": "d", "gold": "12", "prediction": "I do not know"},
    {"id": "e", "gold": "\\frac12", "prediction": "0.5", "kind": "answer"},
    {"id": "f", "gold": "12", "prediction": None},
]


@pytest.fixture
def run(run: Callable[..., tuple[int, str, str]]) -> Run:
    """The command line, with paths as arguments."""
    return lambda *arguments: run(*map(str, arguments))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    return path


def graded(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


def test_every_row_gets_its_verdict_in_its_place(run: Run, file: Path, tmp_path: Path) -> None:
    code, out, _ = run("grade", file, "--out", tmp_path / "out.jsonl", "--json")
    summary = json.loads(out.splitlines()[-1])
    assert code == 0
    assert (summary["n"], summary["correct"], summary["timeouts"], summary["errors"]) == (6, 3, 0, 0)
    assert summary["cases_per_second"] > 0
    assert summary["classes"] == {"fmt1_ans1": 2, "fmt1_ans0": 1, "fmt0_ans1": 1, "fmt0_ans0": 2}
    rows = graded(tmp_path / "out.jsonl")
    assert [{name: row[name] for name in before} for row, before in zip(rows, ROWS, strict=True)] == ROWS
    assert [row["correct"] for row in rows] == [True, True, False, False, True, False]
    assert [row["format_ok"] for row in rows] == [True, False, True, False, True, False]
    assert [row["extracted"] for row in rows] == ["12", "12", "13", None, "0.5", None]
    assert [row["tier"] for row in rows] == ["string", "string", "typed", "extract", "typed", "extract"]
    assert all(row["seconds"] >= 0 and row["reason"] for row in rows)


def test_a_number_that_json_does_not_have_is_written_as_null(run: Run, tmp_path: Path) -> None:
    """Python reads NaN, and strict readers refuse it."""
    file, out = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"gold": "1", "prediction": "1", "scores": [NaN, {"best": -Infinity}, 0.5]}\n')
    assert run("grade", file, "--out", out)[0] == 0
    assert json.loads(out.read_text(), parse_constant=pytest.fail)["scores"] == [None, {"best": None}, 0.5]


@pytest.mark.parametrize("name", ["out.jsonl.gz", "out.csv", "out.parquet"])
def test_what_it_writes_it_reads(run: Run, file: Path, tmp_path: Path, name: str) -> None:
    assert run("grade", file, "--out", tmp_path / name)[0] == 0
    code, out, _ = run("grade", tmp_path / name, "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["correct"] == 3


def test_a_spreadsheet_computes_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"gold": "-5", "prediction": "=cmd|' /C calc'!A0"}))
    run("grade", tmp_path / "a.jsonl", "--out", tmp_path / "a.csv")
    with (tmp_path / "a.csv").open() as lines:
        [row] = csv.DictReader(lines)
    assert (row["gold"], row["prediction"]) == ("-5", "'=cmd|' /C calc'!A0")


def test_a_reward_of_the_shelf_and_one_of_ones_own(run: Run, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    summary = json.loads(run("grade", file, "--reward", "boxed", "--out", out, "--json")[1].splitlines()[-1])
    assert summary["correct"] == 1
    assert [row["reward"] for row in graded(out)] == [1, 0, 0, 0, 0, 0]
    mine = tmp_path / "mine.py"
    mine.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    while 'know' in solution_str: pass\n"
        "    return float(ground_truth in solution_str)\n"
    )
    code, said, _ = run("grade", file, "--reward", mine, "--seconds", "0.3", "--out", out, "--json")
    summary = json.loads(said.splitlines()[-1])
    assert (code, summary["timeouts"]) == (0, 1)
    assert [row["reward"] for row in graded(out)] == [1, 1, 0, None, 0, 0]
    assert graded(out)[3]["tier"] == "timeout"
    assert (summary["mean_reward"], summary["without_reward"]) == (0.4, 1)
    mine.write_text("def compute_score(*_, **__):\n    return 1 / 0\n")
    code, _, err = run("grade", file, "--reward", mine, "--out", out)
    assert code == 1
    assert "The reward failed on all of 6 answers." in err
    assert len(graded(out)) == 6
    mine.write_text(
        "def compute_score(data_source, solution_str, *_, **__):\n    while '5' in solution_str: pass\n    1 / 0\n"
    )
    shared = tmp_path / "shared.jsonl"
    assert run("grade", file, "--reward", mine, "--seconds", "0.2", "--out", shared, "--shard", "1/1")[0] == 0
    code, _, err = run("merge", shared)
    assert code == 1
    assert "The reward failed on all of 6 answers, on 1 by taking too long." in err
    assert len(graded(shared)) == 6


def test_columns_by_name_nested_and_known(run: Run, tmp_path: Path) -> None:
    rows = [
        {"reward_model": {"ground_truth": "7"}, "out": [{"role": "assistant", "content": "\\boxed{7}"}]},
        {"reward_model": {"ground_truth": "7"}, "out": [{"role": "assistant", "content": "\\boxed{8}"}]},
    ]
    (tmp_path / "verl.jsonl").write_text("\n".join(map(json.dumps, rows)))
    code, out, _ = run("grade", tmp_path / "verl.jsonl", "--response-key", "out", "--json")
    assert (code, json.loads(out.splitlines()[-1])["correct"]) == (0, 1)
    (tmp_path / "gsm8k.jsonl").write_text(json.dumps({"answer": "1+1 = <<1+1=2>>2\n#### 2", "response": "It is 2."}))
    assert json.loads(run("grade", tmp_path / "gsm8k.jsonl", "--json")[1].splitlines()[-1])["correct"] == 1


@pytest.mark.parametrize(
    ("content", "arguments", "code", "words"),
    [
        ('{"gold": "1", "said": "1"}', [], 3, ["row 1", "no column of the known", "gold, said", "--response-key"]),
        ('{"gold": "1", "prediction": "1"}\n{"gold": ', [], 3, ["row 2", "broken JSON"]),
        ("", [], 3, ["no row to grade"]),
        ('{"gold": "1", "prediction": "1"}', ["--rewrad", "boxed"], 2, ["no option --rewrad", "'--reward'"]),
        ('{"gold": "1", "prediction": "1"}', ["--reward", "boxd"], 2, ["Did you mean 'boxed'"]),
        ('{"gold": "1", "prediction": "1"}', ["--out", "x.xlsx"], 2, [".jsonl, .jsonl.gz, .csv, .parquet"]),
        ('{"gold": "1", "prediction": "1"}', ["--extract", "hard"], 2, ["--extract", "flexible"]),
    ],
)
def test_mistakes_are_named(
    run: Run, tmp_path: Path, content: str, arguments: list[str], code: int, words: list[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    found, _, err = run("grade", tmp_path / "a.jsonl", *arguments)
    assert found == code, err
    assert len(err.splitlines()) == 1
    for word in words:
        assert word in err


def test_no_file(run: Run, tmp_path: Path) -> None:
    assert run("grade")[0] == 2
    code, _, err = run("grade", tmp_path / "nothing.jsonl")
    assert (code, "There is no file" in err) == (3, True)


def test_a_verdict_is_explained(run: Run) -> None:
    code, out, _ = run("grade", "--explain", "\\frac12", "0.5")
    assert code == 0
    for word in ("divide(1, 2)", "1/2", "right", "typed"):
        assert word in out
    told = json.loads(run("grade", "--explain", "12", "(A", "--json")[1])
    assert (told["correct"], told["answer"]["text"]) == (False, "(A")


@pytest.mark.parametrize("arguments", [["--explain", "1", "2", "3"], ["3", "--explain", "1", "2"]])
def test_a_verdict_takes_two_texts(run: Run, arguments: list[str]) -> None:
    code, out, err = run("grade", *arguments)
    assert (code, out) == (2, "")
    assert "takes GOLD and ANSWER, but got 3 too. Is a quote missing?" in err


@pytest.mark.parametrize("listed", [True, False])
def test_a_reward_compares_the_answers_to_a_problem(run: Run, tmp_path: Path, listed: bool) -> None:
    """A list of answers in a row, or rows in turn with one id and one question, are graded as in training."""
    texts = [["a", "abc", "ab"], ["abcd"], ["x", "y"]]
    rows = [{"id": "1", "question": f"q{n}", "gold": "1", "response": own} for n, own in enumerate(texts)]
    if not listed:
        rows = [{**row, "response": text} for row in rows for text in row["response"]]
    file, own = tmp_path / "rows.jsonl", tmp_path / "own.py"
    file.write_text("\n".join(map(json.dumps, rows)))
    own.write_text(
        "def greatest(completions, **columns):\n    return [float(c == max(completions)) for c in completions]\n"
    )
    code, _, err = run("grade", file, "--reward", own, "--out", tmp_path / "out.jsonl", "--lists", "answers")
    assert code == 0, err
    assert [row["reward"] for row in graded(tmp_path / "out.jsonl")] == [0, 1, 0, 1, 0, 1]


def test_rows_before_a_broken_one_are_graded() -> None:
    rows = [(Place("file", number), {"id": "1", "gold": "1", "response": "1"}) for number in (1, 2)]

    def broken() -> Iterator[tuple[Place, dict[str, str]]]:
        yield from rows
        raise DataError("file, row 3: broken JSON")

    for given in (iter([*rows, (Place("file", 3), {"id": "1", "gold": "1"})]), broken()):
        found = grade_groups(group_rows(given), ("", ""), "flexible", (None, ()), 1)
        assert [next(found).grade.correct for _ in rows] == [True, True]
        with pytest.raises(DataError, match="row 3"):
            next(found)


def test_an_explanation_uses_no_reward(run: Run, tmp_path: Path) -> None:
    code, out, err = run("grade", "--explain", "1", "2", "--reward", "boxed", "--out", tmp_path / "x.jsonl")
    assert (code, out) == (2, "")
    assert "Leave out --reward, --out." in err


WEIRD = """{"gold": 12, "prediction": 12, "seconds": 5, "m": {"a": 1}}
{"gold": null, "prediction": null, "m": 1}
{"gold": NaN, "prediction": NaN, "m": [2]}
{"gold": true, "prediction": "false", "m": "\\ud800"}
{"gold": ["1", "2"], "prediction": ["2"]}
{"gold": ["1", 2], "prediction": "\\\\boxed{2, 1}"}
{"gold": ["7"], "prediction": {"text": "7"}}
{"gold": 1.5, "prediction": "3/2", "big": 99999999999999999999999}
{"gold": {"a": 1}, "prediction": []}
"""


@pytest.mark.parametrize("name", ["out.jsonl", "out.csv", "out.parquet"])
def test_rows_of_any_kind_are_graded_and_written(run: Run, tmp_path: Path, name: str) -> None:
    """Nothing is no answer, whichever way it is written; of a gold of several values all are wanted."""
    nested = "[" * 700 + '"1"' + "]" * 700
    deep = f'{{"gold": "1", "prediction": {nested}, "m": {nested}}}'
    (tmp_path / "weird.jsonl").write_text(WEIRD + deep)
    code, out, _ = run("grade", tmp_path / "weird.jsonl", "--out", tmp_path / name)
    assert code == 0
    assert "replaced by new ones: seconds" in out
    code, _, _ = run("grade", tmp_path / name, "--out", tmp_path / "again.jsonl")
    assert code == 0
    if name == "out.jsonl":
        correct = [row["correct"] for row in graded(tmp_path / name)]
        assert correct == [True, False, False, False, False, True, True, True, False, True]


def test_a_csv_with_more_cells_than_columns(run: Run, tmp_path: Path) -> None:
    """What stands in the wrong column would be graded as somebody's answer."""
    (tmp_path / "ragged.csv").write_text("gold,prediction\n1,1\n1,1,2,3\n")
    code, _, err = run("grade", tmp_path / "ragged.csv", "--out", tmp_path / "out.jsonl")
    assert code == 3
    assert "row 2: 4 cells under 2 columns" in err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("name", ["full.jsonl", "full.jsonl.gz", "full.csv"])
def test_a_full_disk_is_said(run: Run, file: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.part").symlink_to("/dev/full")
    code, _, err = run("grade", file, "--out", tmp_path / name)
    assert (code, err) == (1, f"error: {tmp_path / name} cannot be written: No space left on device.\n")


@pytest.mark.parametrize("name", ["g.jsonl", "g.csv"])
def test_rows_that_fit_on_a_full_disk_are_named(tmp_path: Path, name: str) -> None:
    row = {"gold": "4", "response": f"{'x' * 200} 4"}
    (tmp_path / "x.jsonl").write_text(f"{json.dumps(row)}\n" * 400)
    command = f"ulimit -f 40; exec {sys.executable} -m qed grade x.jsonl --out {name}"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    kept = f" The rows written so far are in {name}.part: delete it if you do not need them." if "jsonl" in name else ""
    assert (done.returncode, done.stderr) == (1, f"error: {name} cannot be written: File too large.{kept}\n")
    assert (tmp_path / f"{name}.part").exists() == bool(kept)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_seconds_out_of_range(run: Run, file: Path, seconds: str) -> None:
    code, _, err = run("grade", file, "--seconds", seconds)
    assert (code, "--seconds must be more than 0" in err) == (2, True)


def test_a_folder_is_no_file(run: Run, tmp_path: Path) -> None:
    code, _, err = run("grade", tmp_path)
    assert (code, f"is a folder. Name the files in it, such as {tmp_path / '*.jsonl'}." in err) == (3, True)
    file = tmp_path / "step_1.5.jsonl.zst"
    file.touch()
    assert f"Name the files in it, such as {tmp_path / '*.jsonl.zst'}." in run("grade", tmp_path)[2]
    assert f"Name one file in it, such as {file}." in run("evaluate", "--responses", tmp_path)[2]


def test_an_argument_that_is_no_unicode_is_explained(run: Run) -> None:
    assert run("grade", "--explain", "5", "\udcff")[0] == 0


def test_a_reward_that_is_not_finite_is_said(run: Run, file: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info):\n    return float('nan')\n"
    )
    code, out, err = run("grade", file, "--reward", mine, "--json")
    assert (code, json.loads(out.splitlines()[-1])["mean_reward"]) == (0, None)
    assert "a reward is not finite" in err


@pytest.mark.parametrize(
    ("scores", "mean", "words"),
    [
        ("None if '12' in text else 0.5", 0.5, "mean reward 0.5000; "),
        ("float('nan')", None, "no answer has a reward"),
    ],
)
def test_answers_without_a_reward_are_counted_and_are_not_in_the_mean(
    run: Run, file: Path, tmp_path: Path, scores: str, mean: float | None, words: str
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(f"def pay(completions, **columns):\n    return [{scores} for text in completions]\n")
    code, out, err = run("grade", file, "--reward", mine, "--out", tmp_path / "out.jsonl", "--json")
    summary, rewards = json.loads(out.splitlines()[-1]), [row["reward"] for row in graded(tmp_path / "out.jsonl")]
    assert (code, summary["mean_reward"]) == (0, mean)
    assert summary["without_reward"] == rewards.count(None) > 0
    assert set(rewards) - {None} == ({mean} if mean is not None else set())
    assert words in err


def test_a_list_of_answers_is_a_row_for_each(run: Run, tmp_path: Path) -> None:
    file, out = tmp_path / "lists.jsonl", tmp_path / "out.jsonl"
    file.write_text(json.dumps({"id": "a", "gold": "1", "prediction": ["1", "so 1", "2"]}))
    summary = json.loads(run("grade", file, "--out", out, "--json")[1].splitlines()[-1])
    assert (summary["n"], summary["correct"]) == (3, 2)
    assert [(row["prediction"], row["sample_id"], row["correct"]) for row in graded(out)] == [
        ("1", 0, True),
        ("so 1", 1, True),
        ("2", 2, False),
    ]
    for shard in ("1/2", "2/2"):
        assert run("grade", file, "--out", tmp_path / "shared.jsonl", "--shard", shard)[0] == 0
    assert run("merge", tmp_path / "shared.jsonl")[0] == 0
    assert [row["correct"] for row in graded(tmp_path / "shared.jsonl")] == [True, True, False]
    file.write_text(json.dumps({"gold": ["1", "2"], "prediction": ["1", "2"]}))
    code, _, err = run("grade", file)
    assert (code, "--lists" in err) == (3, True)
    assert json.loads(run("grade", file, "--lists", "parts", "--json")[1].splitlines()[-1])["n"] == 1


@pytest.mark.parametrize("gold", ["null", "NaN", '""', '" "', "[]"])
def test_rows_without_a_gold_are_counted(run: Run, tmp_path: Path, gold: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text('{"gold": "4", "prediction": "4"}\n' + f'{{"gold": {gold}, "prediction": "4"}}\n')
    code, out, _ = run("grade", path)
    assert (code, "rows without a gold: 1; they count as wrong." in out) == (0, True)
    assert re.search(r"right\W+1\W+50\.0%", out), "how many are right is in the first table"
    assert json.loads(run("grade", path, "--json")[1].splitlines()[-1])["without_gold"] == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise ValueError('not today')", "ValueError: not today"),
        ("return Grade('x', True, True, None)", "it returned a Grade with reward='x'"),
        ("return Grade(1.0, True, None, None)", "it returned a Grade with format_ok=None"),
        ("return Grade(1.0, True, True, 5)", "it returned a Grade with extracted=5"),
        ("return Grade(1.0, True, True, None, {'a': 'x'})", "it returned a Grade with parts={'a': 'x'}"),
    ],
)
def test_why_a_reward_fails_is_said(run: Run, file: Path, tmp_path: Path, body: str, told: str) -> None:
    reward = tmp_path / "mine.py"
    reward.write_text(f"from qed.types import Grade\ndef reward(rollout):\n    {body}\n")
    code, out, _ = run("grade", file, "--reward", reward)
    assert code == 1
    assert "The grader failed, first with: " in out
    assert told in out
    assert told in json.loads(run("grade", file, "--reward", reward, "--json")[1].splitlines()[-1])["first_error"]


def test_rows_are_read_as_they_are_graded_by_several_workers() -> None:
    read: list[int] = []

    def rows() -> Iterator[tuple[Place, dict[str, str]]]:
        for number in range(5000):
            read.append(number)
            yield Place("file", number), {"gold": "1", "response": "1"}

    graded = grade_groups(([each] for each in rows()), ("", ""), "flexible", (None, ()), 2)
    assert next(graded).grade.correct
    assert 1000 < len(read) < 2500, "some more, so that no worker waits for a slow answer"
    assert sum(each.grade.correct for each in graded) == 4999


def test_numbers_of_numpy_are_numbers(run: Run, file: Path, tmp_path: Path) -> None:
    reward = tmp_path / "mine.py"
    grade = "Grade(np.float32(0.5), np.bool_(True), np.bool_(True), None, {'a': np.float32(0.25), 'b': np.int64(2)})"
    reward.write_text(f"import numpy as np\nfrom qed.types import Grade\ndef reward(rollout):\n    return {grade}\n")
    assert run("grade", file, "--reward", reward, "--out", tmp_path / "out.jsonl")[0] == 0
    first = graded(tmp_path / "out.jsonl")[0]
    assert (first["reward"], first["parts"]) == (0.5, {"a": 0.25, "b": 2.0})
