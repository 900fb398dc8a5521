"""Sweeps of evaluations: their cells, files, table, failures and interruptions."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.cli.commands import evaluate
from qed.errors import Interrupted, ModelError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{number}+1=", "answer": str(number + 1)} for number in range(3)]
    Path("test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return "test.jsonl"


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The options of each evaluation, which a small stand-in makes."""
    calls: list[Any] = []

    def stand_in(args: Any, arguments: Any) -> dict[str, Any]:
        calls.append(args)
        if args.model == "bad":
            raise ModelError("no such model")
        if args.model == "crash":
            raise ValueError("out of luck")
        if args.model == "slow":
            raise Interrupted("Interrupted.", 130)
        figures = {"n": 2, "k": 1, "accuracy": args.temperature / 2, "ci_lo": 0.0, "ci_hi": 1.0}
        return {"folder": str(args.out), "tasks": {"test": figures}}

    monkeypatch.setattr(evaluate, "_evaluate", stand_in)
    return calls


def test_a_sweep_evaluates_the_product_in_order(run: Run, tasks: str) -> None:
    options = ["--tasks", tasks, "--model", "new:tiny", "--max-tokens", "2", "--threads", "1", "--out", "o"]
    options += ["--sweep", "temperature=0,1", "--sweep", "prompt=boxed,question_only", "--samples", "2"]
    code, out, _ = run("evaluate", *options)
    assert code == 0
    table = out[out.rindex("\ntemperature") :].splitlines()[1:]
    header, lines = table[0], table[1:5]
    assert header.split()[:5] == ["temperature", "prompt", "task", "n", "k"]
    assert [line.split()[:5] for line in lines] == [
        ["0", "boxed", "test", "3", "1"],
        ["0", "question_only", "test", "3", "1"],
        ["1", "boxed", "test", "3", "2"],
        ["1", "question_only", "test", "3", "2"],
    ]
    assert (Path("o") / "temperature=1,prompt=boxed" / "eval/step_000000/test.jsonl").is_file()
    stored = json.loads(Path("o/sweep.json").read_text())
    assert [each["swept"] for each in stored][1] == {"temperature": "0", "prompt": "question_only"}
    assert stored[3]["result"]["tasks"]["test"]["k"] == 2
    rows = list(csv.DictReader(Path("o/sweep.csv").read_text().splitlines()))
    assert [(row["temperature"], row["prompt"], row["n"]) for row in rows][2] == ("1", "boxed", "3")
    code, out, err = run("evaluate", *options, "--resume", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1]) == json.loads(Path("o/sweep.json").read_text())
    assert (out + err).count("nothing is sampled again") == 4


def test_one_failing_cell_does_not_lose_the_others(run: Run, tasks: str, called: list[Any]) -> None:
    code, out, err = run("evaluate", "--tasks", tasks, "--sweep", "model=bad,crash,good", "--out", "o")
    assert (code, [args.model for args in called]) == (1, ["bad", "crash", "good"])
    assert "error: no such model" in err
    assert "error: ValueError: out of luck" in err
    lines = [line for line in out.splitlines() if "o/model=" in line]
    assert [line.endswith("(failed)") for line in lines] == [True, True, False]
    stored = json.loads(Path("o/sweep.json").read_text())
    assert [each["error"] for each in stored] == ["no such model", "ValueError: out of luck", None]


def test_an_interruption_keeps_finished_cells(run: Run, tasks: str, called: list[Any]) -> None:
    options = ["--tasks", tasks, "--sweep", "model=good,slow,other", "--out", "o"]
    code, _, err = run("evaluate", *options)
    assert code == 130
    assert "Interrupted after 1 of 3 evaluations" in err
    assert "o/model=good" in err
    assert [each["swept"]["model"] for each in json.loads(Path("o/sweep.json").read_text())] == ["good"]
    assert len(called) == 2


def test_cells_of_another_sweep_stay_in_the_table(run: Run, tasks: str, called: list[Any]) -> None:
    """Also those that a repeated sweep has not come to when it is interrupted; one that is there again is replaced."""
    options = ["--tasks", tasks, "--out", "o"]
    run("evaluate", *options, "--sweep", "model=bad,other,good")
    _, out, _ = run("evaluate", *options, "--sweep", "temperature=0,1", "--model", "m")
    assert "with 3 cells of earlier sweeps" in out
    assert run("evaluate", *options, "--sweep", "model=good,slow")[0] == 130
    assert len(called) == 7
    stored = json.loads(Path("o/sweep.json").read_text())
    assert [Path(each["run"]).name for each in stored] == [
        *("model=bad", "model=other", "model=good", "temperature=0", "temperature=1"),
    ]
    rows = list(csv.DictReader(Path("o/sweep.csv").read_text().splitlines()))
    assert [(row["model"], row["temperature"]) for row in rows][2:4] == [("good", ""), ("", "0")]


def test_cells_of_similar_names_keep_their_folders(run: Run, tasks: str, called: list[Any]) -> None:
    options = ["--tasks", tasks, "--out", "o"]
    run("evaluate", *options, "--sweep", "model=x/y,x_y")
    for model, name in (("x_y", "model=x_y-2"), ("x/y", "model=x_y"), ("x?y", "model=x_y-3")):
        assert run("evaluate", *options, "--sweep", f"model={model}")[0] == 0
        assert called[-1].out == Path("o") / name
    stored = {each["swept"]["model"]: Path(each["run"]).name for each in json.loads(Path("o/sweep.json").read_text())}
    assert stored == {"x/y": "model=x_y", "x_y": "model=x_y-2", "x?y": "model=x_y-3"}


def test_what_has_failed_takes_the_place_of_no_result(
    run: Run, tasks: str, called: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["evaluate", "--tasks", tasks, "--out", "o", "--sweep", "model=good"]
    assert run(*options)[0] == 0
    before = Path("o/sweep.csv").read_text()

    def refuse(args: Any, arguments: Any) -> dict[str, Any]:
        raise ModelError("already there, with other settings")

    monkeypatch.setattr(evaluate, "_evaluate", refuse)
    code, out, _ = run(*options, "--limit", "1")
    assert (code, "(failed)" in out) == (1, True)
    assert Path("o/sweep.csv").read_text() == before
    assert len(called) == 1


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '[{"swept": {}}]', '[{"swept": {"a": "1"}, "run": "r", "result": {"tasks": ["x"]}, "error": null}]'],
)
def test_a_damaged_table_is_refused_and_stays(run: Run, tasks: str, called: list[Any], text: str) -> None:
    Path("o").mkdir()
    Path("o/sweep.json").write_text(text)
    code, _, err = run("evaluate", "--tasks", tasks, "--out", "o", "--sweep", "model=good,other")
    assert (code, "sweep.json is not the table of a sweep" in err) == (3, True)
    assert (Path("o/sweep.json").read_text(), called) == (text, [])


def test_a_sweep_resumes_what_has_begun(run: Run, tasks: str, called: list[Any]) -> None:
    (Path("o") / "seed=1" / "eval").mkdir(parents=True)
    Path("o/sweep.json").write_text("[]")
    code, _, _ = run("evaluate", "--model=m", "--tasks", tasks, "--sweep=seed=0,1", "--out=o", "--resume")
    assert (code, [args.resume for args in called]) == (0, [False, True])


def test_a_sweep_in_a_file_and_over_lists(run: Run, tasks: str, called: list[Any]) -> None:
    Path("sweep.yaml").write_text("model: m\ntasks: test.jsonl\nsweep: temperature=0.5,0.7\n")
    assert run("evaluate", "sweep.yaml", "--out", "o")[0] == 0
    assert [args.temperature for args in called] == [0.5, 0.7]
    called.clear()
    Path("other.jsonl").write_text(Path(tasks).read_text())
    code, _, _ = run("evaluate", "--model=m", '--sweep=tasks=[test.jsonl, "test.jsonl,other.jsonl"]')
    assert code == 0
    assert [args.tasks for args in called] == ["test.jsonl", "test.jsonl,other.jsonl"]
    assert called[0].out.parent.name.startswith("sweep-evaluate-")
    called.clear()
    assert run("evaluate", "sweep.yaml", "--tasks=other.jsonl", "--sweep=tasks=test.jsonl", "--out", "p")[0] == 0
    assert [args.tasks for args in called] == ["test.jsonl", "test.jsonl"], "the last of a file, the line and a sweep"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--sweep=temprature=1"], "Did you mean 'temperature'?"),
        (["--sweep=temperature"], "lacks values"),
        (["--sweep=temperature="], "lacks values"),
        (["--sweep=greedy=true"], "not an option"),
        (["--sweep=out=a,b"], "applies to the whole sweep"),
        (["--sweep=seed=1", "--sweep=seed=2"], "twice"),
        (["--sweep=temperature=1,x"], "invalid float"),
        (["--sweep=temperature=1,-1"], "above 0"),
        (["--sweep=temperature=1", "--greedy"], "--greedy contradicts"),
        (["--sweep=seed=1", "--resume"], "add --out DIR"),
        (["--sweep=seed=1", "--shard=1/2", "--out=o"], "one process"),
        (["--sweep=seed=1", "--out=."], "contains no sweep"),
        (
            ["--sweep=seed=1", "--map=A=x", "--map=B=y"],
            "--map is given twice. Separate several with a comma: --map A=X",
        ),
        (["--tasks=other.jsonl"], "--tasks is given twice. Separate several with a comma: --tasks A,B."),
    ],
)
def test_a_mistake_is_found_before_anything_runs(
    run: Run, tasks: str, called: list[Any], options: list[str], reason: str
) -> None:
    code, _, err = run("evaluate", "--model=new:tiny", "--tasks", tasks, *options)
    assert (code, called) == (2, [])
    assert reason in err
