"""Second verdicts (`--also-grade`): their columns, figures and table, in every way to grade."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qed.cli.commands import evaluate, grade, merge
from qed.errors import UsageError
from qed.evaluation.verdicts import load_second_graders, split_names, summarize_verdicts

ANSWERS = (("0.25", r"\boxed{25}"), ("20", r"it is 20\%"), ("7", r"\boxed{7}"), ("8", r"\boxed{9}"))


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    rows = [{"id": number, "gold": gold, "text": text} for number, (gold, text) in enumerate(ANSWERS)]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def read_result(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_stored_answers_get_a_column_and_figures_for_each(
    answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    also = "qwen,strict,boxed,question_only.grader=slow"
    assert evaluate.run(["--responses", str(answers), "--also-grade", also, "--out", str(out), "--json"]) == 0
    captured = capsys.readouterr()
    figures = json.loads(captured.out.splitlines()[-1])["tasks"]["answers"]
    assert figures["accuracy"] == 0.5
    assert {name: each["accuracy"] for name, each in figures["also"].items()} == {
        "qwen": 0.75,
        "strict": 0.25,
        "boxed": 0.25,
        "question_only.grader=slow": 0.25,
    }
    qwen = figures["also"]["qwen"]
    assert (qwen["answers"], qwen["agree"], qwen["only_first"], qwen["only_here"]) == (4, 3, 0, 1)
    assert qwen["ci_lo"] < 0.75 < qwen["ci_hi"]
    rows = [json.loads(line) for line in (out / "eval/step_000000/answers.jsonl").read_text().splitlines()]
    assert [row["correct/qwen"] for row in rows] == [True, True, True, False]
    assert [row["correct"] for row in rows] == [False, True, True, False]
    stored = json.loads((out / "eval/step_000000/summary.json").read_text())["answers"]["responses"]
    assert stored["also"] == figures["also"]
    assert "Right by other graders" in captured.err + captured.out


def test_graded_rows_get_a_column_for_each(answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "graded.jsonl"
    assert grade.run([str(answers), "--also-grade", "qwen", "--out", str(out), "--json"]) == 0
    figures = read_result(capsys)
    assert figures["ci_lo"] < figures["accuracy"] == 0.5 < figures["ci_hi"]
    assert figures["also"]["qwen"]["accuracy"] == 0.75
    assert figures["also"]["qwen"]["only_here"] == 1
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["correct/qwen"] for row in rows] == [True, True, True, False]


@pytest.mark.parametrize("command", ["evaluate", "grade"])
def test_shards_join_to_the_same(
    command: str, answers: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, given = (evaluate, ["--responses"]) if command == "evaluate" else (grade, [])
    names = ("one", "many") if command == "evaluate" else ("one.jsonl", "many.jsonl")
    one, many = (str(tmp_path / name) for name in names)
    options = [*given, str(answers), "--also-grade", "qwen", "--policy", "strict"]
    module.run([*options, "--out", one, "--json"])
    whole = read_result(capsys)
    for shard in ("1/2", "2/2"):
        module.run([*options, "--out", many, "--shard", shard])
    capsys.readouterr()
    merge.run([many, "--json"])
    joined = read_result(capsys)
    if command == "evaluate":
        assert joined == whole
    else:
        assert (joined["also"], joined["correct"]) == (whole["also"], whole["correct"])


def test_sampled_answers_get_a_column(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "test.jsonl"
    data.write_text("".join(json.dumps({"question": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(3)))
    options = ["--model", "new:tiny", "--tasks", str(data), "--max-tokens", "4", "--greedy", "--threads", "1", "--json"]
    options += ["--out", str(tmp_path / "out"), "--policy", "strict", "--also-grade", "qwen,math_verify"]
    assert evaluate.run(options) == 0
    figures = read_result(capsys)["tasks"]["test"]
    assert set(figures["also"]) == {"qwen", "math_verify"}
    assert figures["settings"]["policy"] == "strict"
    assert figures["settings"]["also"] == ["qwen", "math_verify"]
    assert figures["settings"]["reward_options"] == [f"{figures['judged_by']}.policy=strict"]
    assert evaluate.run(options) == 0
    assert read_result(capsys)["tasks"]["test"]["also"] == figures["also"]


def test_what_is_no_grader_is_refused() -> None:
    assert split_names("qwen, qwen,boxed") == ("qwen", "boxed")
    with pytest.raises(UsageError, match="empty name"):
        split_names("qwen,,boxed")
    with pytest.raises(UsageError, match="does not decide"):
        load_second_graders(["length"])
    with pytest.raises(UsageError, match="boxed"):
        load_second_graders(["boxd"])
    with pytest.raises(UsageError, match="policy"):
        load_second_graders(["boxed.policy=lax"])


def test_rows_without_second_verdicts_have_no_figures() -> None:
    assert summarize_verdicts([{"group_id": "1", "correct": True}]) == {}
