"""`--shard I/N` and `qed merge` as their users meet them: shards of an evaluation, an interruption, mistakes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.evaluation import run as evaluation_run
from qed.evaluation.shards import find_shards
from qed.models import load

Qed = Callable[..., Any]


@pytest.fixture
def command(tmp_path: Path) -> tuple[object, ...]:
    """An evaluation of two tasks, in 8 chunks."""
    file = tmp_path / "sums.jsonl"
    rows = [{"question": f"What is {a} + 2{'?' * a}", "answer": f"#### {a + 2}", "level": a % 2} for a in range(9)]
    file.write_text("\n".join(map(json.dumps, rows)))
    tasks = ("--tasks", f"{file},arithmetic", "--limit", 7, "--samples", 2)
    return ("evaluate", "--model", "new:tiny", *tasks, "--max-tokens", 4, "--rows-per-batch", 1, "--preflight", "false")


def read_evaluation(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (out / "eval/step_000000").iterdir()}


@pytest.fixture
def whole(qed: Qed, tmp_path: Path, command: tuple[object, ...]) -> Any:
    """The same evaluation in one process: its files, and its result."""
    done = qed(*command, "--out", tmp_path / "whole", "--json")
    assert done.code == 0, done.err
    return read_evaluation(tmp_path / "whole"), done.result


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_joined_shards_equal_one_process(
    qed: Qed, tmp_path: Path, command: tuple[object, ...], whole: Any, count: int
) -> None:
    out = tmp_path / "out"
    for number in range(count, 0, -1):
        made = qed(*command, "--out", out, "--shard", f"{number}/{count}", "--json")
        assert made.code == 0, made.err
    files = find_shards([out])
    assert len(files) == count
    assert made.result["shard"] == str(files[0])
    assert not (out / "eval").exists()
    joined = qed("merge", out, "--json")
    assert joined.code == 0, joined.err
    assert read_evaluation(out) == whole[0]
    assert joined.result == {**whole[1], "folder": str(out)}
    assert sorted(path.name for path in out.iterdir()) == ["command.txt", "env.json", "eval"]
    assert len((out / "command.txt").read_text().splitlines()) == count
    again = qed(*command, "--out", out, "--shard", "1/2")
    assert (again.code, "nothing is sampled again" in again.out) == (0, True)


def test_an_interrupted_shard_goes_on(
    qed: Qed, tmp_path: Path, command: tuple[object, ...], whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, calls, real = tmp_path / "out", [], evaluation_run.grade

    def interrupted(groups: Any, grader: Any) -> None:
        calls.append([group[0].problem.id for group in groups])
        if len(calls) == 3:
            raise KeyboardInterrupt
        real(groups, grader)

    monkeypatch.setattr(evaluation_run, "grade", interrupted)
    shard = (*command, "--out", out, "--shard", "2/2")
    stopped = qed(*shard)
    assert (stopped.code, "continue with the same command" in stopped.err) == (130, True)
    refused = qed("merge", out)
    assert (refused.code, "is not finished: run its command again to resume it" in refused.err) == (3, True)
    other = qed(*shard, "--seed", 1)
    assert (other.code, "sums.seed 0 there and 1 here" in other.err) == (2, True), other.err
    gone_on = qed(*shard)
    assert gone_on.code == 0, gone_on.err
    assert calls[3] == calls[2], "the chunk that was cut is sampled again, and none before it"
    missing = qed("merge", out)
    assert (missing.code, "Of 2 shards 1 is missing: 1/2" in missing.err) == (3, True)
    assert qed(*command, "--out", out, "--shard", "1/2").code == 0
    assert qed("merge", out).code == 0
    assert read_evaluation(out) == whole[0]


def save_model(folder: Path, seed: int) -> Path:
    network, tokenizer = load.build_model("new:tiny", ["What is 1 + 2? Think step by step."], seed)
    for part in (network, tokenizer):
        part.save_pretrained(folder)
    return folder


def test_shards_of_copied_weights_join(qed: Qed, tmp_path: Path, command: tuple[object, ...], monkeypatch: Any) -> None:
    """Without shared storage weights have other times on each machine; other weights are told apart by content."""
    machines = [tmp_path / name for name in ("one", "two", "three")]
    for machine, seed in zip(machines, (0, 0, 1), strict=True):
        save_model(machine / "model", seed)
        monkeypatch.chdir(machine)
        number = 1 if machine is machines[0] else 2
        made = qed(*command, "--model", "model", "--out", machine / "out", "--shard", f"{number}/2")
        assert made.code == 0, made.err
    one, two, three = (machine / "out" for machine in machines)
    refused = qed("merge", tmp_path / "joined", one, three)
    assert (refused.code, "not shards of the same work: parameters" in refused.err) == (3, True)
    joined = qed("merge", tmp_path / "joined", one, two)
    assert joined.code == 0, joined.err
    monkeypatch.chdir(machines[0])
    assert qed(*command, "--model", "model", "--out", tmp_path / "whole").code == 0
    assert read_evaluation(tmp_path / "joined") == read_evaluation(tmp_path / "whole")


def test_outputs_of_a_task_without_answers(qed: Qed, tmp_path: Path) -> None:
    rows = [{"instruction": f"Say {n}.", "output": f"{n}", "generator": "gold", "dataset": "d"} for n in range(6)]
    (tmp_path / "alpaca.json").write_text(json.dumps(rows))
    model = ("evaluate", "--model", "new:tiny", "--tasks", f"alpaca_eval@{tmp_path / 'alpaca.json'}")
    command = (*model, "--greedy", "--max-tokens", 4, "--rows-per-batch", 1, "--preflight", "false")
    assert qed(*command, "--out", tmp_path / "whole").code == 0
    for number in (1, 2):
        assert qed(*command, "--out", tmp_path / "out", "--shard", f"{number}/2").code == 0
    joined = qed("merge", tmp_path / "out")
    assert joined.code == 0, joined.err
    expected = read_evaluation(tmp_path / "whole")
    assert sorted(expected) == ["alpaca_eval.outputs.json", "alpaca_eval.references.json"]
    assert read_evaluation(tmp_path / "out") == expected


def test_what_is_not_a_shard(qed: Qed, tmp_path: Path, command: tuple[object, ...]) -> None:
    for text in ("0/2", "3/2", "1", "1/x", "-1/2"):
        refused = qed(*command, "--out", tmp_path / "out", f"--shard={text}")
        assert (refused.code, "--shard takes I/N" in refused.err) == (2, True)
    refused = qed(*command, "--shard", "1/2")
    assert (refused.code, "add --out" in refused.err) == (2, True)
    refused = qed(*command, "--shard", "1/2", "--cluster", "auto", "--out", tmp_path / "out")
    assert (refused.code, "leave one of them out" in refused.err) == (2, True)
    refused = qed("merge", tmp_path / "out")
    assert (refused.code, "holds no finished shard" in refused.err) == (3, True)


def test_copies_of_a_row_are_problems_in_shards_and_comparisons(qed: Qed, tmp_path: Path) -> None:
    """Each has as many answers as the others, and counts in its subject."""
    rows = [{"question": f"What is {a} + 2?", "answer": str(a + 2), "subject": "one"} for a in range(4)]
    rows += [{**rows[0], "subject": "two"}, {**rows[1], "subject": "two"}]
    file, out, half = tmp_path / "sums.jsonl", tmp_path / "out", tmp_path / "half"
    file.write_text("\n".join(map(json.dumps, rows)))
    options = ("--tasks", file, "--samples", 2, "--max-tokens", 4, "--rows-per-batch", 1, "--preflight", "false")
    command = ("evaluate", "--model", "new:tiny", *options)
    done = qed(*command, "--out", out, "--json")
    assert "2 rows repeat another; each counts as a separate problem" in done.err
    figures = done.result["tasks"]["sums"]
    assert (figures["n"], figures["k"], figures["answers"], "k_min" in figures) == (6, 2, 12, False)
    assert {name: each["n"] for name, each in figures["by"]["subject"].items()} == {"one": 4, "two": 2}
    for number in (1, 2):
        assert qed(*command, "--out", tmp_path / "shards", "--shard", f"{number}/2").code == 0
    assert qed("merge", tmp_path / "shards").code == 0
    assert read_evaluation(tmp_path / "shards") == read_evaluation(out)
    assert qed(*command, "--out", out, "--json").result == done.result, "an evaluation that is there goes on"
    assert qed(*command, "--out", half, "--limit", 5).code == 0
    compared = qed("compare", out, half, "--json")
    assert compared.result["sums, sampled"]["n"] == 5
