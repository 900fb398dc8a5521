"""`qed compare A B --rollouts` names the first sampled token that differs in two runs, and how close the draw was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import ONLINE

from qed.cli.main import main
from qed.runs.run import Run, read_lines

Qed = Callable[..., Any]
SHAPED = ["--sampling.temperature", 0.8, "--sampling.top_p", 0.9]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of every step."""
    out = tmp_path_factory.mktemp("compared") / "run"
    more = ["--model", "new:tiny", "--steps", 2, "--run.save_every", 1, "--sampling.max_tokens", 6, "--lr", 1e-3]
    quiet = ["--evaluation.problems", 2, "--run.preflight", "false", "--run.on_no_signal", "warn", "--run.threads", 1]
    arguments = ["grpo", *more, *quiet, *ONLINE, *SHAPED, "--algorithm.entropy", 0.01, "--out", out]
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert not left.value.code
    return out


def change(run: Path, to: Path, step: int, edit: Callable[[list[dict[str, Any]]], None]) -> Path:
    """A copy of a run with other rows in one step."""
    shutil.copytree(run, to, symlinks=True)
    rows = read_lines(to / f"rollouts/step_{step:06d}.jsonl.zst")
    edit(rows)
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    import zstandard  # noqa: PLC0415 -- what writes a run takes rollouts, not their rows

    (to / f"rollouts/step_{step:06d}.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    return to


def test_runs_that_are_the_same_do_not_part(qed: Qed, run: Path) -> None:
    done = qed("compare", run, run, "--rollouts")
    assert (done.code, done.out) == (0, "All answers of the 2 steps that both have are the same, token by token.\n")
    assert qed("compare", run, run, "--rollouts", "--json").result == {}


def test_the_first_token_that_differs_is_named_with_the_margin_of_its_draw(qed: Qed, run: Path, tmp_path: Path) -> None:
    def edit(rows: list[dict[str, Any]]) -> None:
        rows[1]["tokens"][4] += 1
        rows[3]["tokens"][2] += 1  # before the other one within its answer
        rows[3]["logps"][1] += 0.25

    other = change(run, tmp_path / "other", 2, edit)
    found = qed("compare", run, other, "--rollouts", "--json").result
    row = read_lines(run / "rollouts/step_000002.jsonl.zst")[3]
    named = {name: found[name] for name in ("step", "problem", "sample", "position", "answers")}
    assert named == {"step": 2, "problem": row["group_id"], "sample": row["sample_id"], "position": 2, "answers": 2}
    assert found["tokens"] == [row["tokens"][2], row["tokens"][2] + 1]
    assert found["logps"] == [row["logps"][2]] * 2
    assert found["drift"] == pytest.approx(0.25)
    # From the weights behind step 1, the draw is the one that was made: its share is its probability.
    margin = found["margin"]
    assert margin["lower"] <= margin["uniform"] < margin["upper"]
    assert margin["margin"] == min(margin["uniform"] - margin["lower"], margin["upper"] - margin["uniform"])
    share = torch.tensor(margin["upper"] - margin["lower"], dtype=torch.float64).log()
    assert float(share) == pytest.approx(row["logps"][2], abs=1e-4)
    told = qed("compare", run, other, "--rollouts").out
    assert "The runs diverge in step 2: 2 answers differ" in told
    assert f"A: token {row['tokens'][2]}, log-prob" in told


def test_without_the_weights_the_margin_is_not_known(qed: Qed, run: Path, tmp_path: Path) -> None:
    def edit(rows: list[dict[str, Any]]) -> None:
        del rows[0]["tokens"][-1], rows[0]["logps"][-1]

    other = change(run, tmp_path / "other", 1, edit)
    done = qed("compare", run, other, "--rollouts")
    assert done.code == 0
    assert "B: the answer has ended" in done.out
    assert "but neither run has that checkpoint: run.save_every=1 saves one at every step." in done.out


def test_runs_of_other_problems_are_refused(qed: Qed, run: Path, tmp_path: Path) -> None:
    other = change(run, tmp_path / "other", 1, lambda rows: rows.reverse())
    done = qed("compare", run, other, "--rollouts")
    assert done.code == 3
    assert "only runs with the same data, seed and sampling can be compared token by token" in done.err
    Run(tmp_path / "empty")
    assert "no rollouts/step_N in common" in qed("compare", run, tmp_path / "empty", "--rollouts").err
