"""A run of several ranks is the run of one, for every method and every way to shard a model.

In float64, so that what is summed in another order differs in the last bits alone and no draw flips.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cutting import OFFLINE, ONLINE
from ranks import Ranks, measure_difference, read_metrics, read_rollouts, run_ranks, wait_for_step

from qed.config.ranks_settings import ParallelSettings
from qed.config.resolve import resolve_settings
from qed.errors import UsageError
from qed.loops.supported import require_supported
from qed.rollout.stages import grade
from qed.training.parallel import Parallel

Command = Callable[..., list[object]]
DOUBLE = ["--model.precision", "float64", "--evaluation.every", 2]
# Several updates of a step, rows of several lengths, an idle rank now and then, and a reference that follows.
UPDATES = ["--learner.passes", 2, "--learner.batch_size", 6, "--algorithm.kl", 0.1, "--algorithm.entropy", 0.01]
METHODS: dict[str, list[object]] = {
    "sft": [*OFFLINE, "--learner.tokens_per_microbatch", 300],
    "grpo": [*ONLINE, *UPDATES, "--algorithm.reference_every", 2, "--algorithm.reference_mix", 0.5],
    "dpo": [*OFFLINE],
    "luffy": [*ONLINE, "--model.lora_rank", 2, "--sampling.curriculum", "thompson"],
    "reward_model": [*OFFLINE, "--data.validation_split", 0.2],
    "ppo": [*ONLINE, "--learner.batch_size", 12, "--algorithm.critic.batch_size", 6],
}


@pytest.fixture
def run(command: Command, tmp_path: Path) -> Callable[..., Path]:
    """The run of a method at a number of ranks."""

    def make(name: str, world: int, *more: object) -> Path:
        out = tmp_path / "-".join(map(str, (name, world, *more)))
        return run_ranks(command(name, *METHODS[name], *DOUBLE, *more), world, out)

    return make


def test_a_weight_that_is_no_number_is_a_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [{"a": torch.zeros(2), "b": torch.tensor([0.0, each])} for each in (0.0, math.nan)]
    (tmp_path / "metrics.jsonl").touch()
    for one, other, same in ((0, 0, True), (0, 1, False), (1, 0, False), (1, 1, False)):
        given = iter((weights[one], weights[other]))
        monkeypatch.setattr("ranks.read_weights", lambda _, given=given: next(given))
        assert (measure_difference(tmp_path, tmp_path) < 1e-9) == same


@pytest.mark.parametrize(("name", "shard"), [("sft", "none"), ("grpo", "full"), ("dpo", "grads"), ("luffy", "full")])
def test_two_ranks_make_the_run_of_one(run: Callable[..., Path], name: str, shard: str) -> None:
    one, two = run(name, 1), run(name, 2, "--parallel.shard", shard)
    assert measure_difference(one, two) < 1e-9
    assert read_rollouts(one) == read_rollouts(two)


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", METHODS)
def test_every_number_of_ranks_makes_the_run_of_one(run: Callable[..., Path], name: str, world: int) -> None:
    one = run(name, 1)
    # Two ranks make others above; every way to shard with every method is in laws/test_processes_share_a_step.py.
    for shard in ("grads",) if world == 2 else ("none", "full"):
        other = run(name, world, "--parallel.shard", shard)
        assert measure_difference(one, other) < 1e-9, shard


@pytest.mark.parametrize("setting", ["learner.compile true", "learner.optimizer adamw8bit", "model.quantization nf4"])
def test_what_sharded_models_do_not_support_is_refused(setting: str) -> None:
    parallel = Parallel(0, 2, settings=ParallelSettings(shard="full"))
    name, value = setting.split()
    settings = resolve_settings("grpo", [f"--{name}", value, "--model.lora_rank", "2", "--model", "some"]).settings
    require_supported([settings], Parallel(0, 2))
    with pytest.raises(UsageError, match=f"{name}.* does not work with parallel.shard=full"):
        require_supported([settings], parallel)


@pytest.mark.slow
@pytest.mark.faults
def test_a_run_goes_on_with_another_number_of_ranks(run: Callable[..., Path], command: Command, tmp_path: Path) -> None:
    """2, then 1, then 2, then 4 ranks: each is stopped in the middle, and goes on from its last complete step."""
    arguments = [*command("grpo", *METHODS["grpo"], *DOUBLE, "--steps", 8), "--run.save_every", 100]
    whole = run_ranks(arguments, 1, tmp_path / "whole")
    out = tmp_path / "resumed"
    for number, (world, shard) in enumerate([(2, "full"), (1, "none"), (2, "none"), (4, "grads")]):
        more = ["--resume"] if number else []
        ranks = Ranks([*arguments, *more, "--out", out, "--parallel.shard", shard], world, tmp_path / f"said-{number}")
        if number < 3:
            wait_for_step(out, 2 * number + 1)
            ranks.send(world - 1, signal.SIGTERM)
        ended = ranks.wait()
        assert set(ended.codes) == ({143} if number < 3 else {0}), ended
    assert measure_difference(whole, out) < 1e-9
    assert read_rollouts(whole) == read_rollouts(out)
    assert len({row["step"] for row in read_metrics(out)}) == len({row["step"] for row in read_metrics(whole)})


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["qed", pytest.param("torchrun", marks=pytest.mark.faults)])
def test_a_launcher_starts_the_run_of_one(
    command: Command, tmp_path: Path, launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started as a user does; grading is real, so that no reward tells answers apart and entropy alone trains."""
    arguments = [str(each) for each in command("grpo", *METHODS["grpo"], *DOUBLE)]
    monkeypatch.setattr("qed.rollout.collector.grade", grade)
    one, two = run_ranks(arguments, 1, tmp_path / "one"), tmp_path / "two"
    start = [sys.executable, "-m", "qed", *arguments, "--ranks", "2"]
    if launcher == "torchrun":
        start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m", "qed", *arguments]
    done = subprocess.run([*start, "--out", str(two)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert measure_difference(one, two) < 1e-9
    assert read_rollouts(one) == read_rollouts(two)
    said = (tmp_path / "two/logs/attempt_1/rank_1.log").read_text(encoding="utf-8")
    assert "step 4/4" in said
