"""What settings of verl become, and how shell scripts are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from importing import import_files

from qed.config.imports.read import read_options
from qed.errors import UsageError

ACTOR = "actor_rollout_ref.actor."
FILTER = "algorithm.filter_groups."
# Written as in verl's scripts for DAPO.
SCRIPT = r"""
max_prompt_length=$((1024 * 2))
max_response_length=$((1024 * 20))
train_prompt_bsz=512
gen_prompt_bsz=$((train_prompt_bsz * (2 + 1)))
ROOT=$(cd -- "$(dirname "$0")" && pwd)
MODEL_PATH=${MODEL_PATH:-"${ROOT:-/data}/models/Qwen2.5-32B"}
WHERE=${WHERE:-$MODEL_PATH}
python3 -m verl.trainer.main_ppo \
    data.max_prompt_length=${max_prompt_length} data.max_response_length=${max_response_length} \
    data.gen_batch_size=${gen_prompt_bsz} data.train_batch_size=${train_prompt_bsz} \
    actor_rollout_ref.model.path="$WHERE" actor_rollout_ref.rollout.n=16 algorithm.adv_estimator=grpo \
    trainer.default_local_dir="${CHECKPOINTS}/run"
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("algorithm.gamma=0.9", {"algorithm.discount": 0.9}),
        ("algorithm.adv_estimator=reinforce_plus_plus algorithm.gamma=0.9", {"algorithm.discount": 0.9}),
        (
            "critic.ppo_epochs=2 critic.ppo_mini_batch_size=64",
            {"algorithm.critic.passes": 2, "algorithm.critic.batch_size": 256, "learner.batch_size": 1024},
        ),
        ("critic.ppo_mini_batch_size=64 data.train_batch_size=32", {"algorithm.critic.batch_size": 128}),
        # verl trains the policy from the step of that number on, counted from 1.
        ("trainer.critic_warmup=10", {"algorithm.critic.warmup_steps": 9}),
        ("trainer.test_freq=-1", {"evaluation.at_end": False}),
        ("trainer.test_freq=5", {"evaluation.every": 5}),
        ("trainer.test_freq=0", {"evaluation.at_end": False}),
        ("trainer.critic_warmup=0", {"algorithm.critic.warmup_steps": 0}),
        (
            f"{ACTOR}policy_loss.loss_mode=gspo",
            {"algorithm.surrogate": "gspo_token", "algorithm.average": "sequence", "algorithm.clip_dual": 0.0},
        ),
        (f"{ACTOR}policy_loss.loss_mode=geo_mean", {"algorithm.surrogate": "gmpo", "algorithm.average": "sequence"}),
        (
            f"{ACTOR}policy_loss.loss_mode=sapo {ACTOR}tau_neg=1.2",
            {"algorithm.average": "sequence", "algorithm.sapo_temperatures": (1.0, 1.2)},
        ),
        (f"{ACTOR}policy_loss.loss_mode=cispo", {"algorithm.average": "token", "algorithm.clip_dual": 0.0}),
        (
            f"{ACTOR}loss_agg_mode=seq-mean-token-sum-norm {ACTOR}loss_scale_factor=2048",
            {"algorithm.average": "constant", "algorithm.average_length": 2048},
        ),
        ("data.prompt_key=question", {"data.prompt": "chat"}),
        ("data.reward_impl_version=4", {"data.prompt": "luffy", "data.reward": ("luffy_think",)}),
        (f"{ACTOR}use_off_policy_loss=True algorithm.adv_estimator=grpo", {"data.prompt": "luffy"}),
        ("data.truncation=left", {"data.truncation": "left", "data.max_prompt_tokens": 512}),
        ("data.truncation=left data.filter_overlong_prompts=True", {"data.truncation": "drop"}),
        ("actor_rollout_ref.rollout.val_kwargs.temperature=0", {"evaluation.temperature": None}),
        ("actor_rollout_ref.rollout.val_kwargs.temperature=0.6", {"evaluation.temperature": 0.6}),
        (f"{FILTER}enable=True {FILTER}metric=acc", {"algorithm.dynamic_sampling": True, "algorithm.max_rounds": 10}),
        ("trainer.logger=['console','swanlab','wandb']", {"run.trackers": ("wandb",)}),
        (
            f"{ACTOR}use_kl_loss=True algorithm.use_kl_in_reward=True algorithm.kl_ctrl.type=adaptive",
            {"algorithm.kl_place": "loss", "algorithm.kl_target": 0.0},
        ),
    ],
)
def test_a_setting_of_verl_keeps_its_meaning(tmp_path: Path, arguments: str, expected: dict[str, Any]) -> None:
    result = import_files(tmp_path, "verl", [], "actor_rollout_ref.rollout.n=4", *arguments.split())
    assert {key: result.values[key] for key in expected} == expected


def test_sft_of_verl_is_evaluated_at_its_end_however_often_it_is_tested(tmp_path: Path) -> None:
    result = import_files(tmp_path, "verl", [], "method=sft_trainer", "trainer.test_freq=-1")
    assert (result.imported.command, result.values["evaluation.at_end"]) == ("sft", True)


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "gpg", "remax", "gdpo", "reinforce_plus_plus_baseline"])
def test_a_discount_that_no_estimator_reads_is_left_out(tmp_path: Path, estimator: str) -> None:
    given = (f"algorithm.adv_estimator={estimator}", "actor_rollout_ref.rollout.n=4", "algorithm.gamma=0.9")
    assert import_files(tmp_path, "verl", [], *given).notes["algorithm.gamma"] == "this estimator uses no discount"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (f"{FILTER}enable=True {FILTER}metric=seq_final_reward", {f"{FILTER}metric": "as with acc"}),
        (
            f"{FILTER}enable=True {FILTER}max_num_gen_batches=0",
            {f"{FILTER}max_num_gen_batches": "0 sets no limit; algorithm.max_rounds sets one"},
        ),
        (f"{FILTER}max_num_gen_batches=4", {f"{FILTER}max_num_gen_batches": "filter_groups is off"}),
        (f"{ACTOR}policy_loss.loss_mode=gspo {ACTOR}clip_ratio_c=3", {f"{ACTOR}clip_ratio_c": "no dual clip"}),
        (f"{ACTOR}policy_loss.loss_mode=sapo {ACTOR}clip_ratio=0.3", {f"{ACTOR}clip_ratio": "no clip"}),
        (f"{ACTOR}policy_loss.loss_mode=kl_cov", {f"{ACTOR}policy_loss.loss_mode": "qed has vanilla"}),
        (
            f"{ACTOR}use_kl_loss=True algorithm.use_kl_in_reward=True algorithm.kl_penalty=kl",
            {"algorithm.use_kl_in_reward": "one KL at a time", "algorithm.kl_penalty": "one KL at a time"},
        ),
        (
            "algorithm.adv_estimator=gdpo algorithm.use_kl_in_reward=True",
            {"algorithm.use_kl_in_reward": "gdpo adds up the parts of the reward"},
        ),
        ("algorithm.adv_estimator=grpo critic.ppo_epochs=2", {"critic.ppo_epochs": "this estimator has no critic"}),
        ("trainer.total_training_steps=9 trainer.total_epochs=2", {"trainer.total_epochs": "takes precedence"}),
        ("data.truncation=middle", {"data.truncation": "middle has no equivalent; qed knows the values left"}),
    ],
)
def test_a_setting_of_verl_without_an_equivalent_is_named(
    tmp_path: Path, arguments: str, expected: dict[str, str]
) -> None:
    notes = import_files(tmp_path, "verl", [], "actor_rollout_ref.rollout.n=4", *arguments.split()).notes
    assert all(words in notes[name] for name, words in expected.items()), notes


def test_a_script_of_verl_is_computed(tmp_path: Path) -> None:
    """Arithmetic, defaults that name variables, and variables that only the shell knows, which are said."""
    script = tmp_path / "run.sh"
    script.write_text(SCRIPT)
    result = import_files(tmp_path, "verl", [script])
    expected = {"data.max_prompt_tokens": 2048, "sampling.max_tokens": 20480, "sampling.problems_per_step": 512}
    assert {key: result.values[key] for key in expected} == expected
    rows = {row.theirs: row for row in result.imported.rows}
    assert rows["data.gen_batch_size"].value == 1536
    assert rows["actor_rollout_ref.model.path"].result == "/data/models/Qwen2.5-32B"
    assert "does not set this variable" in result.notes["trainer.default_local_dir"]


def test_demonstrations_of_verl_are_not_cut(tmp_path: Path) -> None:
    given = ("verl.trainer.sft_trainer", "model.partial_pretrain=a/b", "data.max_length=512", "data.truncation=right")
    result = import_files(tmp_path, "verl", [], *given)
    assert result.imported.command == "sft"
    assert {"data.max_length", "data.truncation"} <= set(result.notes)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("train.py", "GRPOConfig(beta=0.1)\n", "is Python code, which is not run"),
        ("train.ipynb", "{}", "is Python code, which is not run"),
        ("run.sh", "echo hello\n", "has no settings"),
        ("run.sh", f"x algorithm.adv_estimator=grpo {ACTOR}use_kl_loss=$KL\n", "it must be true or false"),
        ("run.sh", "x algorithm.adv_estimator=grpo data.train_batch_size=$((4 ** 9))\n", "it must be a number"),
        ("run.sh", "x algorithm.adv_estimator=grpo data.train_batch_size=$((N / 0))\n", "it must be a number"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, text: str, words: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        import_files(tmp_path, "verl", [file])
    assert words in str(refused.value)


def test_a_file_of_json_is_read(tmp_path: Path) -> None:
    file = tmp_path / "sft.json"
    file.write_text('{"stage": "sft", "learning_rate": 1e-5}')
    assert read_options([file], ()) == {"stage": "sft", "learning_rate": 1e-5}
