"""A run that was cut behind any of its steps goes on as the run that was never cut, bit by bit, whatever it trains.

By default one cut of a few algorithms; `pytest -m faults` cuts every algorithm and every variant behind every step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from cutting import OFFLINE, ONLINE, SHARED, SMALL, STEPS, assert_same, by_chance, cut, write_data

from qed.config import plugins
from qed.config.plugins import load_algorithm
from qed.errors import QedError
from qed.loops.ahead import InTurn
from qed.rollout import collector
from qed.runs import manifest
from qed.runs.run import read_lines
from qed.training.learner import Learner

SHELF = plugins.list_leaves("algorithms")
# Of each kind one, each with several updates in a step; the cut lies within an epoch.
SMOKE = {"sft": 2, "dpo": 1, "expert_iteration": 3, "exgrpo": 2, "luffy": 1, "chord": 2, "prefix_rft": 2, "ppo": 2}
SMOKE |= {"reward_model": 1}
PAIRS = ("dpo", "reward_model")
GRPO = ("grpo", *ONLINE)
SEVERAL = ("--learner.batch_size", 8, "--learner.passes", 2)
VARIANTS: dict[str, tuple[object, ...]] = {
    "lora": (*GRPO, "--model.lora_rank", 4),
    "sft with lora": ("sft", *OFFLINE, "--model.lora_rank", 4),
    "kl": (*GRPO, "--algorithm.kl", 0.1),
    "kl with lora": (*GRPO, "--algorithm.kl", 0.1, "--model.lora_rank", 4),
    "adapted kl": (*GRPO, "--algorithm.kl", 0.1, "--algorithm.kl_target", 1e-4, "--algorithm.kl_horizon", 1000),
    "moving reference": (*GRPO, "--algorithm.kl", 0.1, "--algorithm.reference_every", 2, *SEVERAL),
    "mixed reference": (
        *GRPO,
        "--algorithm.kl",
        0.1,
        "--algorithm.reference_every",
        1,
        "--algorithm.reference_mix",
        0.5,
    ),
    "moving reference with lora": (
        *GRPO,
        "--algorithm.kl",
        0.1,
        "--algorithm.reference_every",
        1,
        "--model.lora_rank",
        4,
    ),
    "moving reference of dpo": ("dpo", *OFFLINE, "--algorithm.reference_every", 1),
    "opd over the vocabulary": ("opd", *ONLINE, "--algorithm.divergence", "jsd", *SEVERAL),
    "opd with lora": ("opd", *ONLINE, "--algorithm.divergence", "forward_kl", "--model.lora_rank", 4),
    "opsd with lora": ("opsd", *ONLINE, "--model.lora_rank", 4),
    "opsd after a moving self": ("opsd", *ONLINE, "--algorithm.teacher_weights", "ema", *SEVERAL),
    "opsd by samples": ("opsd", *ONLINE, "--algorithm.divergence", "sampled", "--algorithm.reward", 1, *SEVERAL),
    "thompson": (*GRPO, "--sampling.curriculum", "thompson", "--sampling.mix", "problems=2"),
    "learnability, several rounds": ("dapo", *ONLINE, "--sampling.curriculum", "learnability"),
    "difficulty": (*GRPO, "--sampling.curriculum", "difficulty", "--sampling.curriculum_column", "level"),
    "several updates": (*GRPO, *SEVERAL),
    "several updates by hf": (*GRPO, *SEVERAL, "--sampling.sampler", "hf"),
    "micro-batches": (*GRPO, *SEVERAL, "--learner.tokens_per_microbatch", 64),
    "without packing": (*GRPO, "--learner.packing", "false"),
    "ppo with lora": ("ppo", *ONLINE, "--model.lora_rank", 4),
    "ppo after a warm-up": ("ppo", *ONLINE, "--algorithm.critic.warmup_steps", 2, "--algorithm.critic.passes", 2),
    "ppo of an offloaded critic": ("ppo", *ONLINE, "--algorithm.critic.offload", "true", *SEVERAL),
    "ppo on the policy's trunk": ("ppo", *ONLINE, "--algorithm.critic.trunk", "policy", *SEVERAL),
    "ppo sampled ahead": ("ppo", *ONLINE, "--rollout.max_staleness", 2, *SEVERAL),
    "ppo in several turns": ("ppo", *ONLINE, "--data.environment", "retry"),
    "ppo in bfloat16": ("ppo", *ONLINE, "--model.precision", "bfloat16", "--model.dtype", "bfloat16", *SEVERAL),
    "cosine": (*GRPO, "--learner.schedule", "cosine", "--learner.warmup_steps", 2),
    "linear": ("sft", *OFFLINE, "--learner.schedule", "linear", "--learner.warmup_steps", 3),
    "bfloat16": (*GRPO, "--model.precision", "bfloat16"),
    "offload": (*GRPO, "--learner.optimizer", "adamw_offload"),
    "skip": (*GRPO, *SEVERAL, "--learner.skip_norm", 0.5, "--learner.weight_decay", 0.1),
    "evaluation between": (*GRPO, "--evaluation.every", 1),
    "validation": ("sft", *OFFLINE, "--evaluation.every", 1, "--data.validation_split", 0.2),
    "windows": ("sft", "--learner.batch_size", 4, "--data.window", 24),
    "dapo refills": ("dapo", *ONLINE, "--sampling.group_size", 2, "--algorithm.max_rounds", 4),
    "exgrpo replays": ("exgrpo", *ONLINE, "--algorithm.mixed", "true", "--algorithm.max_age", 2, *SEVERAL),
    "expert iteration restarts": ("expert_iteration", *ONLINE, "--algorithm.restart", "true"),
    "reward model with lora": ("reward_model", *OFFLINE, "--model.lora_rank", 4, "--data.validation_split", 0.2),
    "dpo held out": ("dpo", *OFFLINE, "--evaluation.every", 1, "--data.validation_split", 0.2),
    "dpo scored beforehand": ("dpo", *OFFLINE, "--algorithm.precompute_reference", "true"),
    "filters": (*GRPO, *SEVERAL, "--sampling.min_p", 0.05, "--sampling.min_tokens", 2),
    "gradient checkpointing": (*GRPO, "--model.gradient_checkpointing", "true"),
}


def command(data: Path, *chosen: object) -> list[object]:
    """A run's command line, less its folder."""
    problems, pairs = write_data(data)
    return [chosen[0], "--tasks", pairs if chosen[0] in PAIRS else problems, *SMALL, *chosen[1:]]


def of_shelf(name: str) -> tuple[object, ...]:
    """The command of an algorithm, by default with two updates in each step where it samples."""
    return (name, *ONLINE, "--learner.batch_size", 10) if load_algorithm(name).online else (name, *OFFLINE)


@pytest.fixture
def resumed(qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes a run, cuts it behind each of some steps, and compares what goes on from there; the uncut run's folder."""
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)

    def make_teacher() -> Path:
        problems, _ = write_data(tmp_path)
        to = tmp_path / "teacher"
        made = qed("sft", "--tasks", problems, *SHARED, *OFFLINE, "--steps", 1, "--lr", 0.01, "--out", to)
        assert made.code == 0, made.err
        return to / "final" / "hf"

    def compare(cuts: list[int], *chosen: object) -> Path:
        whole = tmp_path / "whole"
        if chosen[0] == "opd":
            chosen = (*chosen, "--algorithm.teacher", make_teacher())
        made = qed(*command(tmp_path, *chosen), "--out", whole)
        assert made.code == 0, made.err
        for at in cuts:
            part = cut(whole, at, tmp_path / f"cut-{at}")
            again = qed(*command(tmp_path, *chosen), "--out", part, "--resume")
            assert again.code == 0, again.err
            assert_same(whole, part)
            shutil.rmtree(part)
        return whole

    return compare


@pytest.mark.parametrize("name", SMOKE)
def test_a_cut_run_goes_on_as_if_it_were_whole(resumed: Callable[..., Path], name: str) -> None:
    # The pool holds which tokens could be sampled too.
    more = ("--algorithm.mixed", "true", "--sampling.top_p", 0.9) if name == "exgrpo" else ()
    rows = read_lines(resumed([SMOKE[name]], *of_shelf(name), *more) / "metrics.jsonl")
    assert sum(row.get("train/live_rows", 0) > 0 for row in rows) == STEPS, "every step had a gradient"


@pytest.mark.parametrize(
    ("owner", "name", "saved"),
    [
        (collector, "grade", [2]),
        (Learner, "accumulate", [2]),
        (import_module("torch.optim.adam"), "adam", []),
        (InTurn, "load", [3]),
    ],
    ids=["grade", "gradient", "optimizer", "load"],
)
def test_an_error_loses_no_step_that_was_complete(
    qed: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    saved: list[int],
) -> None:
    """In step 3 the reward fails, the update before or while weights change, or the sampler takes no new weights."""
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    arguments = [*command(tmp_path, *GRPO), "--run.save_every", 0]
    whole, part, calls = tmp_path / "whole", tmp_path / "part", count()
    assert qed(*arguments, "--out", whole).code == 0

    def fail(function: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            if next(calls) == 2:
                raise QedError("the server is gone")
            return function(*given, **more)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, fail(getattr(owner, name)))
        failed = qed(*arguments, "--out", part)
    assert failed.code == 1
    assert failed.err.splitlines()[-1].startswith("error: the server is gone")
    assert list(manifest.list_checkpoints(part)) == saved
    assert [f"step {n}, the last complete one, is saved" in failed.out + failed.err for n in (2, 3)] == [
        n in saved for n in (2, 3)
    ]
    if saved:
        again = qed(*arguments, "--out", part, "--resume")
        assert again.code == 0, again.err
        assert_same(whole, part)


@pytest.mark.faults
@pytest.mark.parametrize("name", SHELF)
def test_every_algorithm_behind_every_step(resumed: Callable[..., Path], name: str) -> None:
    resumed(list(range(1, STEPS + 1)), *of_shelf(name))


@pytest.mark.faults
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_behind_every_step(resumed: Callable[..., Path], name: str) -> None:
    resumed(list(range(1, STEPS + 1)), *VARIANTS[name])
