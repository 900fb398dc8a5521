"""What single settings of TRL, axolotl and LLaMA-Factory become, and what an import says of those that qed lacks."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from importing import Result, import_files

from qed.config.imports.convert import convert_options, list_rows, load_system
from qed.config.imports.read import read_options
from qed.errors import UsageError

ACTOR = "actor_rollout_ref.actor"


def trl(folder: Path, arguments: str) -> Result:
    return import_files(folder, "trl", [], *arguments.split())


@pytest.mark.parametrize(
    ("arguments", "command", "expected"),
    [
        (
            "trl rloo",
            "rloo",
            {
                **{"algorithm.kl": 0.05, "algorithm.kl_place": "reward", "algorithm.kl_estimator": "k1"},
                **{"sampling.group_size": 2, "sampling.problems_per_step": 4, "sampling.max_tokens": 512},
                **{"algorithm.average": "sequence_sum", "algorithm.surrogate": "plain"},
            },
        ),
        ("trl rloo --beta 0", "rloo", {"algorithm.kl": 0.0, "algorithm.kl_place": "loss"}),
        ("--normalize_advantages true", "rloo", {"algorithm.kl_place": "reward"}),
        (
            "trl online_dpo --loss_type ipo --beta 0.2",
            "online_dpo",
            {
                **{"sampling.problems_per_step": 8, "sampling.group_size": 2, "learner.batch_size": 0},
                **{"sampling.max_tokens": 64, "sampling.temperature": 0.9, "learner.lr": 5e-7},
                **{"algorithm.losses": ("ipo_sum",), "algorithm.beta": 0.2},
            },
        ),
        ("trl sft --loss_type dft", "dft", {"learner.batch_size": 8, "learner.lr": 2e-5}),
        (
            "trl dpo --f_divergence_type js_divergence --ld_alpha 0.4 --use_weighting true",
            "dpo",
            {"algorithm.divergence": "js", "algorithm.length_alpha": 0.4, "algorithm.weighted": True},
        ),
        (
            "trl dpo --f_divergence_type alpha_divergence --f_alpha_divergence_coef 0.3",
            "dpo",
            {"algorithm.divergence": "alpha", "algorithm.divergence_alpha": 0.3},
        ),
        (
            "trl dpo --sync_ref_model true --ref_model_sync_steps 64",
            "dpo",
            {"algorithm.reference_every": 64, "algorithm.reference_mix": 0.6},
        ),
        (
            "trl grpo --sync_ref_model true --ref_model_sync_steps 64 --beta 0.1 --steps_per_generation 4 "
            "--num_iterations 2",
            "grpo",
            {"algorithm.reference_every": 8},
        ),
        (
            "trl grpo --multi_objective_aggregation normalize_then_sum",
            "grpo",
            {"algorithm.estimator": "gdpo", "algorithm.std_epsilon": 1e-4},
        ),
        ("trl grpo --delta 2", "grpo", {"algorithm.clip_dual": 2.0}),
        ("trl grpo --loss_type luspo", "grpo", {"algorithm.surrogate": "clip", "algorithm.average": "sequence_sum"}),
        (
            "trl grpo --gradient_accumulation_steps 4 --steps_per_generation 1",
            "grpo",
            {"sampling.problems_per_step": 4, "learner.batch_size": 0},
        ),
        ("trl grpo --lr_scheduler_type cosine_with_min_lr", "grpo", {"learner.schedule": "cosine"}),
        ("trl sft --warmup_steps 0.1", "sft", {"learner.warmup_ratio": 0.1, "learner.warmup_steps": 0}),
        ("trl sft --use_peft", "sft", {"model.lora_targets": ("q_proj", "v_proj")}),
        ("trl sft --use_peft --lora_target_modules all-linear", "sft", {"model.lora_targets": ()}),
        ("trl sft --dtype float32", "sft", {"model.precision": "bfloat16", "model.dtype": "float32"}),
        (
            "trl sft --use_peft --use_rslora true --lora_r 16 --lora_alpha 64",
            "sft",
            {"model.lora_rank": 16, "model.lora_alpha": 256},
        ),
        ("trl sft --bf16 false", "sft", {"model.precision": "float32", "data.prompt": "chat"}),
        (
            "trl grpo --reward_funcs think_format_reward accuracy --system_prompt Think.",
            "grpo",
            {
                **{"data.reward": ("format_only", "accuracy"), "data.reward_options": ("format_only.format=think",)},
                **{"data.prompt": "chat", "data.system_prompt": "Think."},
            },
        ),
        ("trl grpo --report_to wandb mlflow", "grpo", {"run.trackers": ("wandb",)}),
    ],
)
def test_a_setting_of_trl_keeps_its_meaning(
    tmp_path: Path, arguments: str, command: str, expected: dict[str, Any]
) -> None:
    result = trl(tmp_path, arguments)
    assert result.imported.command == command
    assert {key: result.values[key] for key in expected} == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("trl rloo --epsilon 0.3", {"epsilon": "with one update per round the ratio is 1"}),
        ("trl rloo --num_iterations 2", {"epsilon": "TRL clips the ratio of a whole answer"}),
        ("trl rloo --normalize_advantages true", {"normalize_advantages": "over tokens, not over answers"}),
        ("trl grpo --delta 1.1", {"delta": "not above 1 + epsilon_high"}),
        ("trl grpo --loss_type cispo --delta 4", {"delta": "no clip"}),
        ("trl grpo --loss_type cispo --importance_sampling_level sequence", {"importance_sampling_level": "a token"}),
        ("trl grpo --scale_rewards other", {"scale_rewards": "qed has group"}),
        ("trl grpo --sync_ref_model true", {"sync_ref_model": "without a KL", "ref_model_sync_steps": "without a KL"}),
        ("trl grpo --lr_scheduler_type inverse_sqrt", {"lr_scheduler_type": "the schedule of qed grpo is kept"}),
        ("trl sft --lr_scheduler_type constant --warmup_steps 9", {"warmup_steps": "constant has no warm-up"}),
        ("trl sft --warmup_steps 9 --warmup_ratio 0.1", {"warmup_ratio": "warmup_steps takes precedence"}),
        ("trl sft --loss_type other", {"loss_type": "qed has nll and dft"}),
        ("trl dpo --loss_type a --loss_weights 1", {"loss_type": "qed has no loss a", "loss_weights": "no loss a"}),
        ("trl dpo --ref_model_sync_steps 4", {"ref_model_sync_steps": "sync_ref_model is off"}),
        ("trl grpo --reward_funcs accuracy --reward_weights 1 2", {"reward_weights": "2 for 1 rewards"}),
        ("trl grpo --reward_funcs accuracy --reward_weights x", {"reward_weights": "set one number for each"}),
        ("trl sft --use_peft false --lora_r 8", {"lora_r": "adapters are not switched on"}),
        ("trl grpo --report_to mlflow", {"report_to": "without mlflow: qed has tensorboard"}),
        ("trl sft --optim sgd", {"optim": "sgd has no equivalent"}),
        ("trl sft --save_strategy steps --save_steps 0.2", {"save_steps": "a share of all steps"}),
    ],
)
def test_a_setting_of_trl_without_an_equivalent_is_named(
    tmp_path: Path, arguments: str, expected: dict[str, str]
) -> None:
    notes = trl(tmp_path, arguments).notes
    assert all(words in notes[name] for name, words in expected.items()), notes


def test_an_imported_cispo_has_no_setting_without_effect(tmp_path: Path) -> None:
    result = trl(tmp_path, "trl grpo --loss_type cispo --epsilon 0.1 --epsilon_high 2")
    assert result.values["algorithm.clip_high"] == 2.0
    assert "clip_low" not in str(result.imported.rows)


def test_a_variable_that_only_the_shell_knows_is_no_default(tmp_path: Path) -> None:
    notes = trl(tmp_path, "trl grpo --learning_rate ${LR}").notes
    assert "does not set this variable" in notes["learning_rate"]


CONFIGS = {
    **{name: f"trainer/{name}_config.py" for name in ("grpo", "rloo", "dpo", "sft")},
    "online_dpo": "experimental/online_dpo/online_dpo_config.py",
}


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed (qed[bench])")
@pytest.mark.parametrize("method", CONFIGS)
def test_every_setting_of_trl_is_named(method: str) -> None:
    """Each field of TRL's own classes by itself, as a number other than any default."""
    found = find_spec("trl")
    assert found is not None
    root = Path(str(found.origin)).parent
    trees = [ast.parse((root / file).read_text()) for file in (CONFIGS[method], "trainer/model_config.py")]
    classes = [node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    fields = {ast.unparse(node.target) for one in classes for node in one.body if isinstance(node, ast.AnnAssign)}
    fields |= {"lr_scheduler_type", "warmup_ratio", "weight_decay", "adam_epsilon", "save_steps", "eval_steps"}
    for name in fields - {"_VALID_DICT_FIELDS", "use_peft"}:  # use_peft is said by lora_r
        rows = convert_options(load_system("trl"), {"method": method, name: 3}).rows
        assert name in {own for row in rows for own in row.theirs.split(",")}, name


def test_a_reward_model_of_trl_goes_on_the_command_line(tmp_path: Path) -> None:
    given = "trl grpo --reward_model_name_or_path a/b --reward_funcs accuracy --reward_weights 2 1"
    assert trl(tmp_path, given).imported.arguments == ("--model", "MODEL", "--reward", "2*model:a/b,accuracy")


@pytest.mark.parametrize(
    ("system", "text", "expected"),
    [
        (
            "axolotl",
            "rl: grpo\nmicro_batch_size: 4\ntrl: {beta: 0.1, sync_ref_model: true, num_iterations: 2}\n",
            {"algorithm.reference_every": 32, "algorithm.reference_mix": 0.9},
        ),
        ("axolotl", "rl: gdpo\ntrl: {num_generations: 4}\n", {"algorithm.estimator": "gdpo"}),
        ("axolotl", "rl: dpo\nrl_beta: 0.3\n", {"algorithm.beta": 0.3, "learner.warmup_ratio": 0.03}),
        ("axolotl", "warmup_steps: 0\n", {"learner.warmup_ratio": 0.0, "learner.warmup_steps": 0}),
        ("axolotl", "val_set_size: 0.1\n", {"data.validation_split": 0.1}),
        ("axolotl", "val_set_size: 100\n", {"data.validation_split": 0.0}),
        ("axolotl", "datasets: [{path: tasks.jsonl, type: alpaca}]\n", {"data.prompt": "alpaca"}),
        ("axolotl", "datasets: [{path: tasks.jsonl, type: completion}]\n", {"data.prompt": "question_only"}),
        ("llama-factory", "stage: sft\nlora_rank: 4\nuse_rslora: true\n", {"model.lora_alpha": 16}),
        ("llama-factory", "stage: sft\ntemplate: alpaca\n", {"data.prompt": "alpaca"}),
        ("llama-factory", "stage: sft\ntemplate: qwen\n", {"data.prompt": "chat"}),
        ("llama-factory", "stage: sft\nval_size: 100\n", {"data.validation_split": 0.0}),
        ("llama-factory", "lr_scheduler_type: cosine_with_min_lr\n", {"learner.schedule": "cosine"}),
    ],
)
def test_a_setting_of_a_file_keeps_its_meaning(
    tmp_path: Path, system: str, text: str, expected: dict[str, Any]
) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(text)
    result = import_files(tmp_path, system, [file])
    assert {key: result.values[key] for key in expected} == expected
    assert [row.ours for row in result.imported.rows].count("data.prompt") == 1, "one row says which prompt it is"
    names = {name.removeprefix("trl.") for name in read_options([file], ())}
    renamed = {"micro_batch_size": "per_device_train_batch_size", "rl_beta": "beta", "rl": "beta", "stage": "seed"}
    assert {renamed.get(name, name) for name in names} <= result.told


def test_all_data_sets_of_a_list_are_read(tmp_path: Path) -> None:
    """One prompt serves them all; a name with a slash that ends like a file is a file, not a data set on the Hub."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("{}")
    first, second = (tmp_path / f"{name}.jsonl" for name in "ab")
    datasets = (
        f"datasets: [{{path: {first}, type: alpaca}}, {{path: {second}, type: chat_template}}, "
        "{path: data/c.jsonl, type: alpaca}, {path: me/mine, type: alpaca}]\n"
    )
    (tmp_path / "given.yaml").write_text(datasets)
    result = import_files(tmp_path, "axolotl", [tmp_path / "given.yaml"])
    rows = {row.theirs: row for row in result.imported.rows}
    tasks = next(row for row in rows.values() if row.ours == "data.tasks")
    assert tasks.theirs == ",".join(f"datasets.{number}.path" for number in range(4))
    assert tasks.result == (str(first), str(second), "hub:me/mine")
    assert tasks.note == "without data/c.jsonl: there is no such file or task"
    assert rows["datasets.0.type,datasets.2.type,datasets.3.type"].result == "alpaca"
    assert rows["datasets.1.type"].note == "a run has one prompt: that of alpaca for all data"


def test_rank_stabilised_adapters_of_axolotl_keep_their_scale(tmp_path: Path) -> None:
    given = "adapter=lora lora_r=4 lora_alpha=8 peft_use_rslora=true"
    result = import_files(tmp_path, "axolotl", [], *given.split())
    assert (result.values["model.lora_rank"], result.values["model.lora_alpha"]) == (4, 16)


@pytest.mark.parametrize(
    ("system", "arguments"),
    [
        ("trl", "--per_device_train_batch_size 4 --gradient_accumulation_steps 4 --num_generations 8"),
        ("trl", "--reward_funcs accuracy_reward --reward_weights 0.5"),
        ("llama-factory", "stage=sft lora_rank=8"),
        ("verl", "algorithm.adv_estimator=rloo actor_rollout_ref.rollout.n=4"),
        ("luffy", f"algorithm.adv_estimator=grpo {ACTOR}.clip_ratio=0.3 {ACTOR}.clip_upper_bound=3"),
    ],
)
def test_every_given_setting_has_a_row(system: str, arguments: str) -> None:
    given = read_options([], arguments.split())
    assert set(given) <= {row[0] for row in list_rows(convert_options(load_system(system), given))}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("trl kto", "cannot import TRL's trainer kto"),
        ("trl grpo --per_device_train_batch_size 0", "it must be at least 1"),
        ("trl sft --use_peft $PEFT", "it must be true or false"),
    ],
)
def test_what_trl_has_and_qed_cannot_import(arguments: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        convert_options(load_system("trl"), read_options([], arguments.split()))
    assert words in str(refused.value)
