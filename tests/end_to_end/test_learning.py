"""Something is learned: SFT teaches the format, every online algorithm raises its reward, the quickstart tells what it
measured."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from qed.cli.main import main
from qed.config import plugins
from qed.config.plugins import load_algorithm
from qed.loops.quickstart import compute_control_steps
from qed.rollout.stages import assign_advantages
from qed.runs.run import read_evaluations, read_json, read_lines

# What SFT has taught is made once, by the one worker that runs these.
pytestmark = pytest.mark.xdist_group("learning")
ONLINE = sorted(name for name in plugins.list_leaves("algorithms") if load_algorithm(name).online)
# One of each kind; benchmarks/learning.py measures the whole shelf over seeds.
LEARNING = (
    pytest.param("expert_iteration", marks=pytest.mark.faults),
    "grpo",
    "luffy",
    pytest.param("online_dpo", marks=pytest.mark.faults),
)


@pytest.fixture(scope="session")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model after SFT: it knows the format, and shows the steps now and then."""
    run = tmp_path_factory.mktemp("taught") / "run"
    evaluation = ["--evaluation.problems", "200", "--evaluation.every", "0"]
    with pytest.raises(SystemExit) as left:
        main(["sft", "arithmetic-sft", *evaluation, "--run.threads", "1", "--out", str(run)])
    assert not left.value.code
    return run


@pytest.mark.slow
def test_sft_teaches_the_format(taught: Path) -> None:
    rows = [row for row in read_lines(taught / "metrics.jsonl") if "train/loss" in row]
    assert rows[-1]["train/loss"] < 0.1 * rows[0]["train/loss"]
    before, after = (summary["arithmetic"]["greedy"] for _, summary in read_evaluations(taught))
    assert before["format"] == 0
    assert after["format"] > 0.95
    assert 0.3 < after["accuracy"] < 0.8


@pytest.mark.parametrize("name", ONLINE)
def test_every_online_algorithm_makes_its_steps(
    qed: Callable[..., Any], taught: Path, tmp_path: Path, name: str
) -> None:
    """Two steps of several updates each, from the policy that SFT taught: what is recorded are finite numbers."""
    # At the start the policy is its own teacher, so that the reward alone has a gradient.
    more = ("--algorithm.teacher", taught / "final" / "hf", "--algorithm.reward", 1) if name == "opd" else ()
    done = qed(
        *(name, "arithmetic-rl", "--model", taught / "final" / "hf", "--steps", 2, "--run.on_no_signal", "warn"),
        *("--sampling.problems_per_step", 6, "--sampling.group_size", 4, "--learner.batch_size", 12),
        *("--evaluation.problems", 4, "--evaluation.samples", 0, "--out", tmp_path / "run", *more),
    )
    assert done.code == 0, done.err
    rows = [row for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "train/loss" in row]
    assert [row["step"] for row in rows] == [1, 2]
    assert all(math.isfinite(value) for row in rows for value in row.values() if isinstance(value, float))
    assert any(row["train/live_rows"] for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", LEARNING)
def test_online_algorithms_improve_on_sft(qed: Callable[..., Any], taught: Path, tmp_path: Path, name: str) -> None:
    """Forty steps, measured on held-out problems by sampled answers, which is what the algorithms optimise."""
    done = qed(
        *(name, "arithmetic-rl", "--model", taught / "final" / "hf", "--steps", 40, "--run.threads", 1),
        *("--evaluation.problems", 200, "--evaluation.every", 0, "--out", tmp_path / "run"),
    )
    assert done.code == 0, done.err
    before, after = (summary["arithmetic"]["sampled"] for _, summary in read_evaluations(tmp_path / "run"))
    assert after["accuracy"] > before["accuracy"] + 0.05
    assert after["format"] > before["format"]


@pytest.mark.slow
def test_the_quickstart_says_what_it_measured(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Reduced to seconds; every figure of its last line stands in the run's folder, and it can be resumed when it is
    done."""
    run = tmp_path / "run"
    arguments = ["quickstart", "--seed", 3, "--out", run, "--json", "--sft.learner.steps", 60]
    arguments += ["--rl.learner.steps", 3, "--rl.algorithm.entropy", 0.01, "--evaluation.problems", 30]
    done = qed(*arguments)
    assert done.code == 0, done.err
    result = done.result
    assert set(result) == {"sft", "rl", "control", "mean_tokens_before", "mean_tokens_after", "seconds", "run"}
    measured = dict(read_evaluations(run))
    assert sorted(measured) == [0, 60, 63]
    for arm, summary in (("sft", measured[60]), ("rl", measured[63])):
        for key, decoding, figure in (
            ("accuracy", "greedy", "accuracy"),
            ("ci_lo", "greedy", "ci_lo"),
            ("sampled_ci_hi", "sampled", "ci_hi"),
            ("format", "greedy", "format"),
            ("sampled_accuracy", "sampled", "accuracy"),
            ("sampled_format", "sampled", "format"),
        ):
            assert result[arm][key] == summary["arithmetic"][decoding][figure]
        assert result[arm]["n"] == 30
        answers = read_lines(run / "eval" / f"step_0000{60 if arm == 'sft' else 63}" / "arithmetic.jsonl")
        greedy = [row for row in answers if row["decoding"] == "greedy"]
        assert fmean(row["correct"] for row in greedy) == result[arm]["accuracy"]
    assert result["mean_tokens_after"] == measured[63]["arithmetic"]["sampled"]["mean_tokens"]
    steps = compute_control_steps(read_lines(run / "metrics.jsonl"), boundary=60)
    assert max(step for step, _ in read_evaluations(run / "control")) == steps >= 1
    assert (run / "report.html").stat().st_size > 10_000
    assert (run / "final" / "hf" / "config.json").is_file()
    assert read_json(run / "env.json", {})["threads"] == 2
    again = qed(*arguments, "--resume")
    assert again.code == 0, again.err
    assert {**again.result, "seconds": 0} == {**result, "seconds": 0}


def test_a_pipeline_cut_in_its_second_phase_goes_on(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The KL's reference is the model as SFT left it, also for the run that was resumed from inside RL."""
    shared = ["pipeline", "quickstart", "--sft.learner.steps", 8, "--rl.learner.steps", 4, "--run.save_every", 2]
    shared += ["--rl.algorithm.kl", 0.1, "--evaluation.problems", 4, "--evaluation.every", 0]
    shared += ["--sampling.problems_per_step", 4, "--sampling.group_size", 4, "--sft.learner.batch_size", 8]
    assert qed(*shared, "--out", tmp_path / "whole").code == 0
    with monkeypatch.context() as patch:
        patch.setattr("qed.loops.online.assign_advantages", _failing_at(3))
        assert qed(*shared, "--out", tmp_path / "cut").code == 1
    log = (tmp_path / "cut" / "logs" / "attempt_1" / "main.log").read_text()
    assert "RuntimeError: the power went" in log
    assert qed(*shared, "--out", tmp_path / "cut", "--resume").code == 0
    weights = [(tmp_path / name / "final" / "hf" / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]
    names = [
        sorted(path.name for path in (tmp_path / name / "rollouts").glob("*.jsonl.zst")) for name in ("whole", "cut")
    ]
    assert names[0] == names[1] == [f"step_{step:06d}.jsonl.zst" for step in range(9, 13)]
    events = [json.loads(line)["event"] for line in (tmp_path / "cut" / "events.jsonl").read_text().splitlines()]
    assert events.count("failed") == events.count("resumed") == events.count("finished") == 1


def _failing_at(step: int) -> Callable[..., None]:
    """Stands in for `credit` and fails the given time it is called."""
    calls = iter(range(1, 100))

    def failing(*arguments: Any) -> None:
        if next(calls) == step:
            raise RuntimeError("the power went")
        assign_advantages(*arguments)

    return failing
