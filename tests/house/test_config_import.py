"""The configurations of other systems become valid ones of qed, with the same meaning."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from importing import import_files

from qed.cli.main import main
from qed.config.fields import build_table
from qed.config.imports.convert import SYSTEMS, Imported, convert_options, load_system
from qed.config.imports.read import read_options
from qed.errors import UsageError

OPEN_R1 = """
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
torch_dtype: bfloat16
dataset_name: open-r1/OpenR1-Math-220k
num_processes: 7
gradient_accumulation_steps: 16
gradient_checkpointing_kwargs: {use_reentrant: false}
learning_rate: 2.0e-05
lr_scheduler_type: cosine
max_completion_length: 1024
max_steps: -1
num_generations: 7
num_train_epochs: 1
per_device_train_batch_size: 16
push_to_hub: true
reward_funcs: [accuracy, format]
reward_weights: [1.0, 0.5]
warmup_ratio: 0.1
"""
VERL = r"""
set -x
MODEL=${MODEL:-Qwen/Qwen2.5-7B}   # a comment
HYDRA_FULL_ERROR=1 python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=grpo \
    data.train_files="$HOME/data/gsm8k/train.parquet" \
    data.train_batch_size=1024 data.max_response_length=1024 \
    actor_rollout_ref.model.path=$MODEL \
    actor_rollout_ref.actor.optim.lr=1e-6 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.use_kl_loss=True actor_rollout_ref.actor.kl_loss_coef=0.002 \
    actor_rollout_ref.actor.kl_loss_type=low_var_kl \
    actor_rollout_ref.actor.clip_ratio_high=0.28 \
    actor_rollout_ref.rollout.n=5 \
    +trainer.val_before_train=False trainer.total_training_steps=100 \
    trainer.n_gpus_per_node=8 custom_reward_function.path=./my_reward.py $@
"""
LUFFY = r"""
export MODEL_PATH=Elliott/Qwen2.5-Math-7B-16k-think
python3 -m verl.mix_src.main_mix_ppo algorithm.adv_estimator=grpo \
    data.train_batch_size=128 data.max_response_length=8192 data.reward_impl_version=3 \
    actor_rollout_ref.model.path=$MODEL_PATH actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.use_off_policy_loss=True actor_rollout_ref.actor.loss_remove_clip=True \
    actor_rollout_ref.actor.loss_remove_token_mean=True algorithm.grpo_use_std=False \
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.n_prefix=1 \
    actor_rollout_ref.rollout.min_prefix_ratio=1.0 actor_rollout_ref.rollout.max_prefix_ratio=1.0 \
    actor_rollout_ref.rollout.prefix_strategy=random trainer.logger=['console','wandb'] "${@:1}"
"""
LLAMA_FACTORY = """
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
stage: dpo
finetuning_type: lora
lora_rank: 8
lora_target: all
pref_beta: 0.2
dataset: dpo_en_demo
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 5.0e-6
num_train_epochs: 3.0
resume_from_checkpoint: null
"""
AXOLOTL = """
base_model: Qwen/Qwen2.5-0.5B
rl: grpo
trl: {beta: 0.001, num_generations: 4, max_completion_length: 256, reward_funcs: [rewards.rand_reward_func]}
datasets:
  - {path: openai/gsm8k, name: main}
adapter: lora
lora_r: 32
lora_alpha: 64
lora_target_linear: true
gradient_accumulation_steps: 4
micro_batch_size: 4
max_steps: 100
lr_scheduler: cosine
warmup_steps: 10
bf16: auto
"""
FILES = {
    "open-r1": ("recipe.yaml", OPEN_R1),
    "verl": ("run.sh", VERL),
    "luffy": ("train.sh", LUFFY),
    "llama-factory": ("dpo.yaml", LLAMA_FACTORY),
    "axolotl": ("grpo.yaml", AXOLOTL),
}


def converted(
    tmp_path: Path, system: str, text: str = "", name: str = "", *more: str
) -> tuple[Imported, dict[str, Any]]:
    """The import, and the values of all settings of the configuration that it gives."""
    file = tmp_path / (name or FILES[system][0])
    file.write_text(text or FILES[system][1])
    result = import_files(tmp_path, system, [file], *more)
    return result.imported, result.values


def trl(tmp_path: Path, *arguments: str) -> tuple[Imported, dict[str, Any]]:
    return converted(tmp_path, "trl", "num_generations: 8\n", "grpo.yaml", *arguments)


EXPECTED: dict[str, tuple[str, dict[str, Any]]] = {
    "open-r1": (
        "grpo",
        {
            "sampling.problems_per_step": 256,  # 16 x 16 x 7 / 7
            "sampling.group_size": 7,
            "learner.batch_size": 0,
            "algorithm.average": "token",
            "algorithm.std_epsilon": 1e-4,
            "data.tasks": ("openr1",),
            "data.reward": ("accuracy", "0.5*format_only"),
            "learner.schedule": "cosine",
            "model.precision": "bfloat16",
        },
    ),
    "verl": (
        "grpo",
        {
            "model.name": "Qwen/Qwen2.5-7B",
            "sampling.problems_per_step": 1024,
            "learner.batch_size": 1280,
            "algorithm.kl": 0.002,
            "algorithm.kl_estimator": "k3",
            "algorithm.clip_low": 0.2,
            "algorithm.clip_high": 0.28,
            "algorithm.clip_dual": 3.0,
            "algorithm.average": "token",
            "learner.steps": 100,
            "learner.weight_decay": 0.01,
        },
    ),
    "luffy": (
        "luffy",
        {
            "model.name": "Elliott/Qwen2.5-Math-7B-16k-think",
            "learner.batch_size": 512,
            "algorithm.average": "constant",
            "algorithm.normalize_std": False,
            "algorithm.guidance.traces": 1,
            "data.reward": ("luffy_think",),
        },
    ),
    "llama-factory": (
        "dpo",
        {"learner.batch_size": 16, "algorithm.beta": 0.2, "model.lora_rank": 8, "model.lora_targets": ()},
    ),
    "axolotl": (
        "grpo",
        {
            "sampling.problems_per_step": 4,
            "learner.schedule": "cosine",
            "learner.steps": 100,
            "learner.warmup_steps": 10,
            "model.lora_alpha": 64,
            "algorithm.kl_importance": True,
            "data.tasks": ("gsm8k",),
        },
    ),
}


@pytest.mark.parametrize("system", FILES)
def test_a_configuration_keeps_its_meaning(tmp_path: Path, system: str) -> None:
    imported, values = converted(tmp_path, system)
    command, expected = EXPECTED[system]
    assert imported.command == command
    assert {key: values[key] for key in expected} == expected


@pytest.mark.parametrize("system", FILES)
def test_every_setting_stands_in_the_table(tmp_path: Path, system: str) -> None:
    imported, _ = converted(tmp_path, system)
    told = {name for row in imported.rows for name in row.theirs.split(",")}
    given = read_options([tmp_path / FILES[system][0]], [])
    silent = {
        "num_processes",
        "rl",
        "adapter",
        "stage",
        "finetuning_type",
        "lora_target",
        "lora_target_linear",
        "method",
    }
    silent |= {"algorithm.adv_estimator", "resume_from_checkpoint"}
    for name in set(given) - silent:
        assert {name.removeprefix("trl."), name} & told or name in ("micro_batch_size", "lr_scheduler"), name
    assert all(row.note or row.ours for row in imported.rows)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--loss_type grpo", {"average": "sequence", "surrogate": "clip"}),
        ("--loss_type dr_grpo --scale_rewards none", {"average": "constant", "normalize_std": False}),
        ("--loss_type=cispo --epsilon_high=5", {"surrogate": "cispo", "cispo_clip": "trl", "clip_high": 5.0}),
        ("--loss_type sapo", {"surrogate": "sapo", "sapo_temperatures": (1.0, 1.05)}),
        ("--importance_sampling_level sequence --loss_type grpo", {"surrogate": "gspo", "average": "sequence"}),
        ("--scale_rewards batch", {"std_over": "batch", "normalize_std": True}),
        ("--beta 0.04", {"kl": 0.04, "kl_importance": True}),
        ("--steps_per_generation 4", {"sampling.problems_per_step": 4, "learner.batch_size": 8}),
        ("--max_steps 400 --num_iterations 2", {"learner.steps": 200, "learner.passes": 2}),
        ("--max_steps 100 --warmup_ratio 0.1", {"learner.warmup_ratio": 0.1}),
        ("--adam_beta1 0.8 --adam_beta2 0.99", {"learner.betas": (0.8, 0.99)}),
        ("--use_peft --lora_target_modules q_proj v_proj", {"model.lora_targets": ("q_proj", "v_proj")}),
        ("--reward_funcs get_soft_overlong_punishment", {"data.reward": ("overlong",)}),
    ],
)
def test_what_arguments_of_trl_become(tmp_path: Path, arguments: str, expected: dict[str, Any]) -> None:
    _, values = trl(tmp_path, *arguments.split())
    keys = {key: key if "." in key else f"algorithm.{key}" for key in expected}
    assert {key: values[keys[key]] for key in expected} == expected


def test_code_goes_on_the_command_line(tmp_path: Path) -> None:
    imported, values = trl(
        tmp_path, "--reward_funcs", "accuracy_reward", "my_lib.rewards.custom", "--reward_weights", "1", "2"
    )
    assert imported.arguments == ("--model", "MODEL", "--reward", "accuracy,2*my_lib.rewards:custom")
    assert values["data.reward"] == ("auto",)


def test_the_keys_of_the_tables_exist() -> None:
    """A misspelt key would be listed as missing in every import."""
    known = {key for name in ("grpo", "dpo", "sft", "luffy") for key in build_table(name, {"": name}).settings}
    for system in SYSTEMS:
        for rule in load_system(system).RULES:
            assert set(rule.ours) <= known, rule
            assert rule.ours or rule.why, rule


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("off_policy_reshape=p_div_p_0.3", {"kind": "regularized", "gamma": 0.3, "own_kind": "none"}),
        ("off_policy_reshape=no_reshape", {"kind": "none"}),
        (
            "off_policy_reshape=pow actor_rollout_ref.actor.off_policy_reshape_pow_exp=0.7",
            {"kind": "power", "exponent": 0.7},
        ),
        (
            "on_policy_reshape=p_logp actor_rollout_ref.actor.off_policy_max_clip=-1",
            {"own_kind": "p_logp", "most": 0.0},
        ),
    ],
)
def test_luffys_weights_of_tokens_are_taken_over(tmp_path: Path, given: str, expected: dict[str, Any]) -> None:
    text = LUFFY.replace('"${@:1}"', f"actor_rollout_ref.actor.{given}")
    _, values = converted(tmp_path, "luffy", text, "train.sh")
    assert {key: values[f"algorithm.shaping.{key}"] for key in expected} == expected


@pytest.mark.parametrize(
    ("changes", "average", "clips"),
    [
        ("", "token", (0.2, 0.2)),
        ("actor.loss_remove_token_mean=False actor.loss_remove_clip=False", "token", (0.2, 0.2)),
        ("actor.clip_ratio=0.1", "token", (0.1, 0.1)),
        ("actor.loss_remove_clip=True actor.clip_upper_bound=3.0", "token", (1.0, math.inf)),
        ("actor.loss_remove_token_mean=True", "constant", (0.2, 0.2)),
    ],
)
@pytest.mark.parametrize("loss", ["use_off_policy_loss", "use_sft_multitask_loss"])
def test_luffy_averages_and_clips_unless_told(
    tmp_path: Path, loss: str, changes: str, average: str, clips: tuple[float, float]
) -> None:
    text = f"algorithm.adv_estimator=grpo actor.{loss}=True rollout.n=8 {changes}"
    text = re.sub(r"\b(actor|rollout)\.", r"actor_rollout_ref.\1.", text)
    _, values = converted(tmp_path, "luffy", f"python3 -m verl.mix_src.main_mix_ppo {text}", "train.sh")
    assert values["algorithm.average"] == average
    assert (values["algorithm.clip_low"], values["algorithm.clip_high"]) == clips


@pytest.mark.parametrize(
    ("changes", "method", "clips"),
    [
        ("use_off_policy_loss=True", "luffy", (0.1, 2.0)),
        ("use_sft_multitask_loss=True", "rl_sft", (0.1, 0.1)),  # its loss of sampled tokens has no upper bound
        ("use_off_policy_loss=True rollout.n_prefix=0", "grpo", (0.1, 0.1)),
        ("use_off_policy_loss=True rollout.n_prefix=0 actor.loss_remove_clip=True", "grpo", (1.0, math.inf)),
    ],
)
def test_luffys_upper_bound_is_of_its_own_loss(
    tmp_path: Path, changes: str, method: str, clips: tuple[float, float]
) -> None:
    text = f"algorithm.adv_estimator=grpo rollout.n=8 actor.clip_ratio=0.1 actor.clip_upper_bound=3.0 actor.{changes}"
    text = re.sub(r"\b(actor|rollout)\.", r"actor_rollout_ref.\1.", text)
    result, values = converted(tmp_path, "luffy", f"python3 -m verl.mix_src.main_mix_ppo {text}", "train.sh")
    assert result.command == method
    assert (values["algorithm.clip_low"], values["algorithm.clip_high"]) == clips


def test_luffys_advantages_are_taken_over(tmp_path: Path) -> None:
    """The weights of given and sampled tokens, a fixed advantage of given ones, and statistics of sampled answers."""
    given = {
        "rollout.prefix_reward_weight_alpha": 0.5,
        "rollout.prefix_reward_weight_beta": 2.0,
        "actor.use_sft_prefix_reward": True,
        "actor.sft_prefix_reward_weight": 0.7,
    }
    changes = " ".join(f"actor_rollout_ref.{name}={value}" for name, value in given.items())
    other = "algorithm.adv_estimator=grpo_split data.disable_truncation_advantage=True data.sample_target_ratio=0.25"
    _, values = converted(tmp_path, "luffy", LUFFY.replace('"${@:1}"', f"{changes} {other}"), "train.sh")
    expected = {"given_weight": 0.5, "own_weight": 2.0, "given_advantage": 0.7, "statistics": "split"}
    expected |= {"zero_truncated": True}
    assert {key: values[f"algorithm.mixture.{key}"] for key in expected} == expected
    assert values["algorithm.guidance.trace_share"] == 0.25


@pytest.mark.parametrize(
    ("system", "text", "words"),
    [
        ("verl", "algorithm:\n  adv_estimator: other\n", "which qed does not know"),
        ("llama-factory", "stage: kto\n", "stage is kto, which cannot be imported. sft, dpo can."),
        ("llama-factory", "stage: rm\n", "sft, dpo can; train a reward model with qed reward-model."),
        ("trl", "a: [b\n", "is not valid YAML"),
        ("trl", "[" * 9_000, "is not valid YAML: it is nested too deeply"),
        ("trl", "- a\n", "is not a configuration"),
        ("open-r1", "num_generations: ${N}x\nper_device_train_batch_size: big\n", "it must be a number"),
    ],
)
def test_what_cannot_be_imported(tmp_path: Path, system: str, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        converted(tmp_path, system, text, "broken.yaml")
    assert words in str(refused.value)


def test_a_system_that_qed_does_not_know() -> None:
    with pytest.raises(UsageError, match=r"cannot import from 'ver'\. Did you mean 'verl'"):
        load_system("ver")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "run.sh", tmp_path / "mine.yaml"
    file.write_text(VERL)
    with pytest.raises(SystemExit) as done:
        main(["config", "import", "verl", str(file), "--out", str(out), "--", "trainer.total_training_steps=7"])
    shown = capsys.readouterr()
    assert (done.value.code, shown.out) == (0, "")
    assert "actor_rollout_ref.actor.kl_loss_type" in shown.err
    assert f"Run it with: qed grpo {out} --tasks" in shown.err
    assert "--reward ./my_reward.py:compute_score" in shown.err
    with pytest.raises(SystemExit) as done:
        main(["config", "validate", "grpo", str(out)])
    assert done.value.code == 0
    assert "steps: 7" in out.read_text()


def test_references_of_hydra_are_resolved(tmp_path: Path) -> None:
    text = "data: {train_batch_size: 8}\nalgorithm: {adv_estimator: rloo}\n"
    text += "actor_rollout_ref: {actor: {ppo_mini_batch_size: '${data.train_batch_size}'}, rollout: {n: 2}}\n"
    imported, values = converted(tmp_path, "verl", text, "run.yaml")
    assert (imported.command, values["learner.batch_size"], values["algorithm.surrogate"]) == ("rloo", 16, "clip")


def test_the_notes_of_an_import_are_true(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        load_system("openrlhf")
    assert "Did you mean" not in str(refused.value)
    script = tmp_path / "train.sh"
    script.write_text("accelerate launch src/open_r1/grpo.py --config recipes/absent.yaml --num_generations 8\n")
    notes = {row.theirs: row.note for row in convert_options(load_system("open-r1"), read_options([script], ())).rows}
    assert "pass it as a separate FILE" in notes["config"]
    given = {"base_model": "m", "load_in_8bit": True, "resume_from_checkpoint": "a", "saves_per_epoch": 1}
    notes = {row.theirs: row.note for row in convert_options(load_system("axolotl"), given).rows}
    assert notes["load_in_8bit"] == "the quantization is nf4"
    assert notes["saves_per_epoch"] == "run.save_every counts steps"
    assert notes["resume_from_checkpoint"] == "qed resumes with --resume --out RUN"
