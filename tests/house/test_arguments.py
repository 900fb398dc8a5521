"""The command line: how settings are spelled, and what is said of names that are none."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable

import pytest

from qed.cli.commands import debug_generations
from qed.config import fields, plugins
from qed.config.arguments import Flags
from qed.config.foreign_names import WORDS
from qed.config.resolve import read_sources, resolve_settings

ALGORITHMS = sorted(plugins.list_leaves("algorithms"))
Write = Callable[..., str]
Refused = Callable[..., str]

pytestmark = pytest.mark.usefixtures("elsewhere")


# The command line


@pytest.mark.parametrize(
    "arguments",
    [
        ["--learner.warmup-steps", "4"],
        ["--learner.warmup_steps=4"],
        ["learner.warmup-steps=4"],
        ["learner.warmup_steps=4"],
        ["--learner.warmup-steps", "3", "learner.warmup_steps=4"],
    ],
)
def test_settings_are_spelled_in_several_ways_and_the_last_wins(arguments: list[str]) -> None:
    assert resolve_settings("grpo", arguments).settings.learner.warmup_steps == 4  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--run.save-rollouts"], True),
        (["--no-run.save-rollouts"], False),
        (["--run.save-rollouts", "off"], False),
        (["--run.save-rollouts=no"], False),
        (["run.save_rollouts=false"], False),
        (["--no-run.save-rollouts", "--run.save_rollouts"], True),
        (["--run.save-rollouts", "--seed", "1"], True),
    ],
)
def test_booleans_stand_alone_or_with_a_value(arguments: list[str], meant: bool) -> None:
    assert resolve_settings("grpo", arguments).settings.run.save_rollouts is meant


def test_a_configuration_may_follow_a_boolean(write: Write) -> None:
    assert resolve_settings("grpo", ["--no-run.save-rollouts", write("run.seed: 4")]).settings.run.seed == 4
    assert resolve_settings("grpo", ["--run.save-rollouts", "x.yaml"]).settings.run.seed == 4


@pytest.mark.parametrize("arguments", [["--learner.betas", "0.5,0.6"], ["--learner.betas=[0.5, 0.6]"]])
def test_lists_on_the_command_line(arguments: list[str]) -> None:
    assert resolve_settings("grpo", arguments).settings.learner.betas == (0.5, 0.6)  # type: ignore[union-attr]


def test_texts_in_lists_may_hold_anything_as_json(error: Refused) -> None:
    assert resolve_settings("grpo", ['--data.map=["a=b,c", "d=\\u00e9"]']).settings.data.map == ("a=b,c", "d=é")
    assert resolve_settings("grpo", ["--data.map="]).settings.data.map == ()
    assert resolve_settings("grpo", ["--data.map", "question=problem"]).settings.data.map == ("question=problem",)
    assert "is not a list" in error("grpo", '--data.map=["a"')


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tasks", "gsm8k", "--tasks=math"], "--tasks is given twice. Separate several with a comma: --tasks A,B."),
        (["--tasks", "gsm8k", "--data.tasks", "math"], "--tasks and --data.tasks are two names of one list."),
        (
            ["data.tasks=gsm8k", "data.tasks=gsm8k"],
            "data.tasks is given twice. Separate several with a comma: data.tasks=A",
        ),
        (["--data.map", "answer=x", "--data.map", "question=y"], "with a comma: --data.map A=X,B=Y."),
        (["--reward=boxed", "--steps=1", "--reward=length"], "--reward A,B."),
    ],
)
def test_a_list_is_given_once(error: Refused, arguments: list[str], message: str) -> None:
    assert message in error("grpo", *arguments)
    assert message in error("pipeline", *arguments)


def test_what_is_no_list_may_be_given_again(write: Write) -> None:
    settings = resolve_settings(
        "grpo", ["--lr=1", "--lr=2", "--learner.betas=0.1,0.2", "--learner.betas=0.3,0.4"]
    ).settings
    assert (settings.learner.lr, settings.learner.betas) == (2, (0.3, 0.4))  # type: ignore[union-attr]
    config = write("data: {tasks: gsm8k}")
    assert resolve_settings("grpo", [config, "--tasks", "math"]).settings.data.tasks == ("math",)
    # The tasks of one phase are another setting than those of both.
    resolve_settings("pipeline", ["--tasks", "gsm8k", "--rl.data.tasks", "math"])


@pytest.mark.parametrize("number", ["-1", "-.5", "-1e-3", "-inf"])
def test_negative_numbers_are_values(error: Refused, number: str) -> None:
    assert "learner.weight_decay must be a finite number, 0 or more" in error("grpo", "--learner.weight-decay", number)
    assert resolve_settings("grpo", ["--algorithm.entropy", "-1e-3"]).settings.algorithm.regularizer.entropy == -1e-3  # type: ignore[union-attr]


@pytest.mark.parametrize("arguments", [["--lr"], ["--lr", "--seed", "1"], ["--lr", "-h"], ["--sweep"]])
def test_a_missing_value_is_refused(error: Refused, arguments: list[str]) -> None:
    assert "needs a value after it" in error("grpo", *arguments)


@pytest.mark.parametrize(("short", "key"), fields.SHORTCUTS.items())
def test_shortcuts_mean_their_settings(error: Refused, write: Write, short: str, key: str) -> None:
    value = {"tasks": "arithmetic", "prompt": "r1_zero", "reward": "boxed", "steps": "3", "lr": "3", "seed": "3"}
    value |= {"profile": "steps=1:2", "environment": "retry"}
    resolved = resolve_settings("grpo", [f"--{short}", value.get(short, "cpu")])
    assert [name for name, origin in resolved.origins.items() if origin == "command line"] == [key]
    assert f"x.yaml:1: {short} is not a setting" in error("grpo", write(f"{short}: 3"))


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("+learner.lr=1", "write learner.lr=1 without the plus"),
        ("-lr", "Did you mean '--lr'?"),
        ("-modle", "Did you mean '--model'?"),
        ("--resume=1", "--resume takes no value"),
        ("--config=x.yaml", "A configuration needs no option name"),
    ],
)
def test_other_habits_are_corrected(error: Refused, argument: str, hint: str) -> None:
    assert hint in error("grpo", argument)


def test_flags_are_no_settings(error: Refused) -> None:
    arguments = [
        "--dry-run",
        "--json",
        "--debug",
        "--allow-user-code",
        "--overwrite",
        "--sweep",
        "lr=1,2",
        "--sweep=seed=3",
    ]
    flags = resolve_settings("grpo", arguments).flags
    assert (flags.dry_run, flags.json, flags.debug, flags.allow_user_code, flags.overwrite) == (True,) * 5
    assert flags.sweep == ("lr=1,2", "seed=3")
    assert not flags.resume
    assert "Use only one of them" in error("grpo", "--resume", "--overwrite")


# Names that are no settings


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("lr", "'learner.lr'"),
        ("learner.lrr", "'learner.lr'"),
        ("lernaer.lr", "'learner.lr'"),
        ("optimizer.lr", "'learner.lr'"),
        ("temperature", "'sampling.temperature'"),
        ("sampling.temprature", "'sampling.temperature'"),
        ("output_dir", "'run.out'"),
        ("max_steps", "'learner.steps'"),
        ("model.learning_rate", "'learner.lr'"),
        ("num_generations", "'sampling.group_size'"),
        ("trainer.total_training_steps", "'learner.steps'"),
        ("actor_rollout_ref.rollout.n", "'sampling.group_size'"),
        ("tasks", "'data.tasks' or 'evaluation.tasks'"),
        ("learner", "It is a section"),
        ("algorithm.frobnicate", "The settings of that section are algorithm.average"),
    ],
)
def test_an_unknown_key_in_a_file_names_its_line_and_the_nearest(
    error: Refused, write: Write, key: str, meant: str
) -> None:
    message = error("grpo", write(f"run: {{seed: 1}}\n\n{key}: 5\n"))
    assert message.startswith(f"x.yaml:3: {key} is not a setting of qed grpo.")
    assert meant in message


@pytest.mark.parametrize(
    ("argument", "meant"),
    [
        ("--output-dir", "'--run.out'"),
        ("--output_dir", "'--run.out'"),
        ("--max-steps", "'--learner.steps'"),
        ("--learning-rate", "'--learner.lr'"),
        ("--per-device-train-batch-size", "learner.batch_size"),
        ("--num-generations", "'--sampling.group-size'"),
        ("--model-name-or-path", "'--model.name'"),
        ("--dataset-name", "'--data.tasks'"),
        ("--max-completion-length", "'--sampling.max-tokens'"),
        ("--num-train-epochs", "'--learner.epochs'"),
        ("--modle", "'--model'"),
        ("--group-size", "'--sampling.group-size'"),
        ("--overwrit", "'--overwrite'"),
        ("--kl", "'--algorithm.kl'"),
    ],
)
def test_an_unknown_option_is_refused_with_a_proposal(error: Refused, argument: str, meant: str) -> None:
    for arguments in ([argument, "5"], [f"{argument}=5"], [argument]):
        message = error("grpo", *arguments)
        assert message.startswith(f"command line: {argument} is not a setting of qed grpo.")
        assert meant in message


def test_a_proposal_is_always_a_setting() -> None:
    """Where a command has a setting of another library's name, such as DPO's beta, nothing else is proposed for it."""
    tables = [set(read_sources(method, []).table.settings) for method in ALGORITHMS]
    known = set.union(*tables)
    # The first that a command has is meant: the last of each word exists.
    assert {setting for settings in WORDS.values() for setting in settings} <= known
    for settings in tables:
        for word in set(WORDS) & {key.rpartition(".")[2] for key in settings}:
            assert WORDS[word][0] not in settings or WORDS[word][0].endswith(f".{word}")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--reward_weights", "Write a weight before its reward: --reward 0.5*NAME,OTHER."),
        ("--kl_loss_type", "Did you mean '--algorithm.kl-estimator'?"),
        ("--gradient_accumulation_steps", "learner.tokens_per_microbatch to fit memory"),
        ("--loss_type", "A loss is algorithm.surrogate with algorithm.average."),
        ("--use_vllm", "TRL has this setting, but qed does not: see sampling.sampler: native or vllm"),
        ("--deepspeed", "is not a setting of qed grpo."),
        ("--gpu_memory_utilization", "verl has this setting, but qed does not: it affects speed and memory"),
        ("--trainer.n_gpus_per_node", "qed does not: qed distributes a run by --ranks and parallel.shard."),
        ("--actor_rollout_ref.actor.optim.lr", "Did you mean '--learner.lr'?"),
        ("--val_size", "Did you mean '--data.validation-split'?"),
        ("--cutoff_len", "LLaMA-Factory has this setting, but qed does not: demonstrations that do not fit"),
        ("--num_train_epochs", "Did you mean '--learner."),
        ("--template", "LLaMA-Factory has this setting, but qed does not"),
        ("--algorithm.adv_estimator", "The command chooses it, such as qed rloo"),
        ("--advantage_estimator", "The command chooses it, such as qed rloo"),
        ("--finetuning_type", "model.lora_rank"),
        ("--n_rollouts", "is not a setting of qed grpo."),
    ],
)
def test_the_words_of_other_systems_do_not_mislead(error: Refused, argument: str, words: str) -> None:
    message = error("grpo", argument, "5")
    assert words in message
    assert "reward-workers" not in message
    assert "save-rollouts" not in message


def test_sections_of_a_pipeline_are_named_once_with_the_command_that_has_them(error: Refused, write: Write) -> None:
    text = "sft:\n  learner:\n    lr: 1\n    steps: 2\nskip_rl: true\n"
    assert error("grpo", write(text)).splitlines() == [
        "x.yaml:3: sft belongs to runs with two phases. Use `qed pipeline`.",
        "x.yaml:5: skip_rl belongs to runs with two phases. Use `qed pipeline`.",
    ]
    assert "--skip-sft belongs" in error("grpo", "--skip-sft")


def test_all_mistakes_are_told_at_once(error: Refused, write: Write) -> None:
    message = error("grpo", write("lr: 1\nrun: {seed: x}\n"), "--reward", "boxd")
    assert [line.split(" ")[0] for line in message.splitlines()] == ["x.yaml:1:", "x.yaml:2:", "command"]


def test_method_in_a_file_must_be_the_command(error: Refused, write: Write) -> None:
    assert resolve_settings("dr_grpo", [write("method: dr-grpo")]).settings == resolve_settings("dr_grpo", []).settings
    assert error("grpo", write("\nmethod: dr_grpo")) == (
        "x.yaml:2: this is a configuration for dr_grpo. Use `qed dr_grpo` instead."
    )
    assert "Use `qed sft`" in error("pipeline", write("method: sft"))


def test_every_flag_has_a_help_text_of_its_own() -> None:
    texts = re.findall(r'"""(.*?)"""', inspect.getsource(Flags))[1:]
    assert len(set(texts)) == len(texts) == len(dataclasses.fields(Flags))


@pytest.mark.parametrize("form", ["--answers {} --problems {}", "--answers={} --problems={}"])
@pytest.mark.parametrize("answers", [1, 3])
def test_debug_generations_takes_its_counts_in_both_forms(
    monkeypatch: pytest.MonkeyPatch, form: str, answers: int
) -> None:
    asked = []
    monkeypatch.setattr(
        "qed.evaluation.debug_generations.debug_generations",
        lambda settings, count, whole, as_json: asked.append((count, settings.sampling.problems_per_step)),
    )
    assert debug_generations.run(["new:tiny", *form.format(answers, 2).split()]) == 0
    assert asked == [(answers, 2)]
