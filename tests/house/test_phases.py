"""The settings of phases, alternatives such as epochs for steps, and the layers that a command line does not name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qed.config.changes import list_changes
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import resolve_settings
from qed.config.values import dump_settings
from qed.errors import UsageError

Write = Callable[..., str]
Refused = Callable[..., str]


def pipeline(*arguments: str) -> PipelineSettings:
    settings = resolve_settings("pipeline", arguments).settings
    assert isinstance(settings, PipelineSettings)
    return settings


def single(command: str, *arguments: str) -> Settings:
    settings = resolve_settings(command, arguments).settings
    assert isinstance(settings, Settings)
    return settings


def test_data_without_a_phase_is_of_both_and_with_one_of_it_alone(elsewhere: Path) -> None:
    settings = pipeline("--data.correct_only", "--rl.data.tasks", "gsm8k", "--tasks", "math", "--sft.data.window", "64")
    assert (settings.sft.data.tasks, settings.rl.data.tasks) == (("math",), ("gsm8k",))
    assert settings.sft.data.correct_only is settings.rl.data.correct_only is True
    assert [phase.data.window for phase in settings.phases()] == [64, 0]
    assert pipeline("--prompt", "r1_zero").sft.data.prompt == "r1_zero"


def test_the_data_of_a_phase_is_checked_as_any(error: Refused, write: Write) -> None:
    assert "gsm9k" in error("pipeline", "--sft.data.tasks", "gsm9k")
    assert "There is no file x.jsonl" in error("pipeline", "--rl.data.tasks", "x.jsonl")
    assert "needs --allow-user-code" in error("pipeline", write("sft: {data: {reward: my.py}}"))


def test_the_reward_of_dapo_is_of_both_phases(elsewhere: Path) -> None:
    settings = pipeline("--rl.method", "dapo")
    assert settings.sft.data.reward == settings.rl.data.reward == ("auto", "overlong")


BOTH = """
data: {tasks: math, prompt: boxed}
learner: {weight_decay: 0.25}
sft: {data: {tasks: gsm8k}, learner: {lr: 3e-3}}
rl: {method: dr-grpo, learner: {steps: 7, weight_decay: 0.5}}
skip_rl: true
"""


def test_a_configuration_of_two_phases_is_read_by_commands_of_one(error: Refused, write: Write) -> None:
    file = write(BOTH)
    sft, rl = single("sft", file), single("dr_grpo", file)
    assert (sft.data.tasks, sft.data.prompt, sft.learner.lr, sft.learner.weight_decay) == (
        ("gsm8k",), "boxed", 3e-3, 0.25
    )  # fmt: skip
    assert (rl.data.tasks, rl.data.prompt, rl.learner.steps, rl.learner.weight_decay) == (("math",), "boxed", 7, 0.5)
    assert error("grpo", file) == "x.yaml:5: this is a configuration for dr_grpo. Use `qed dr_grpo` instead."
    assert single("dr_grpo", file, "--learner.weight_decay", "1").learner.weight_decay == 1
    assert "x.yaml:1: rl.learner.stepz is not a setting" in error("grpo", write("rl: {learner: {stepz: 3}}"))


@pytest.mark.parametrize("command", ["sft", "grpo", "pipeline"])
def test_the_shipped_configuration_of_two_phases_works_with_each_command(command: str, elsewhere: Path) -> None:
    settings = resolve_settings(command, ["qwen3-4b"]).settings
    phases = settings.phases() if isinstance(settings, PipelineSettings) else [settings]
    assert {phase.data.prompt for phase in phases} == {"working_out"}
    assert (settings.evaluation.every, phases[0].data.validation_split, settings.sampling.group_size) == (20, 0.1, 2)
    if command != "sft":
        assert phases[-1].learner.steps == 100
    if command != "grpo":
        assert phases[0].learner.schedule == "linear"


def test_the_control_of_luffy_is_trained_and_measured_as_luffy_is() -> None:
    """What is compared differs in the method: not in the problems, the lengths or how answers are sampled."""
    own = single("luffy", "luffy-openr1")
    control = pipeline("luffy-sft-rl")
    assert control.rl.data == own.data
    assert control.rl.learner == own.learner
    assert control.sampling == own.sampling
    assert replace(control.evaluation, at_start=False) == own.evaluation


@pytest.mark.parametrize(
    ("given", "steps", "epochs"),
    [
        (["--learner.epochs", "2"], 0, 2),
        (["x.yaml"], 0, 3),
        (["x.yaml", "--steps", "5"], 5, 0),
        (["x.yaml", "--steps", "0"], 0, 0),
        (["y.yaml", "--learner.epochs", "0.5"], 0, 0.5),
        (["y.yaml"], 9, 0),
    ],
)
def test_the_later_of_steps_and_epochs_counts(write: Write, given: list[str], steps: int, epochs: float) -> None:
    write("learner.epochs: 3", "x.yaml")
    write("learner.steps: 9", "y.yaml")
    learner = single("sft", *given).learner
    assert (learner.steps, learner.epochs) == (steps, epochs)


def test_a_share_to_warm_up_replaces_the_steps_of_a_configuration(write: Write) -> None:
    learner = single("sft", write("learner: {warmup_steps: 9, steps: 30}"), "--learner.warmup_ratio", "0.11").learner
    assert (learner.warmup_steps, learner.count_warmup_steps()) == (0, 4)
    # SFT of a new model warms up over 20 steps unless a length is given.
    assert single("sft", "--learner.warmup_ratio", "0.05", "--steps", "100").learner.count_warmup_steps() == 5
    assert single("sft").learner.count_warmup_steps() == 20


@pytest.mark.parametrize("pair", [("steps", "epochs"), ("warmup_steps", "warmup_ratio")])
def test_both_of_two_alternatives_at_once_are_refused(error: Refused, pair: tuple[str, str]) -> None:
    message = error("grpo", f"--learner.{pair[0]}", "1", f"--learner.{pair[1]}", "1")
    assert f"learner.{pair[0]} and learner.{pair[1]} exclude each other" in message


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--data.truncation", "left"], "data.truncation needs data.max_prompt_tokens"),
        (["--evaluation.temperature", "0"], "evaluation.temperature must be above 0"),
        (["--evaluation.top_p", "2"], r"evaluation.top_p must lie in (0, 1]"),
        (["--model.attention", "flash"], "must be one of auto, sdpa, flash_attention_2, eager"),
        (["--run.save_dtype", "bf16"], "must be one of float32, bfloat16, float16"),
        (["--learner.epochs", "-1"], "learner.epochs must be a finite number"),
    ],
)
def test_values_out_of_range_are_refused(error: Refused, arguments: list[str], what: str) -> None:
    assert what in error("sft", *arguments)


@pytest.mark.parametrize("name", ["--method", "--algorithm", "--algo"])
def test_a_setting_that_names_the_algorithm_leads_to_the_commands(error: Refused, name: str) -> None:
    assert "The command names the algorithm, as in qed rloo." in error("grpo", name, "dapo")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("num_train_epochs", "learner.epochs"),
        ("trainer.total_epochs", "learner.epochs"),
        ("lr_warmup_steps_ratio", "learner.warmup_ratio"),
        ("max_prompt_length", "data.max_prompt_tokens"),
        ("truncation_side", "data.truncation"),
        ("eval_on_start", "evaluation.at_start"),
        ("trainer.val_before_train", "evaluation.at_start"),
        ("attn_implementation", "model.attention"),
        ("default_system", "data.system_prompt"),
        ("rollout.val_kwargs.temperature", "evaluation.temperature"),
        ("system_prompt", "data.system_prompt"),
        ("warmup_ratio", "learner.warmup_ratio"),
    ],
)
def test_words_of_other_libraries_lead_to_the_setting(error: Refused, write: Write, word: str, meant: str) -> None:
    assert f"Did you mean '{meant}'?" in error("grpo", write(f"{word}: 1"))


def test_a_file_may_extend_a_configuration_that_comes_with_qed(error: Refused, write: Write) -> None:
    extended = single("sft", write("extends: arithmetic-sft\nlearner: {batch_size: 5}"))
    assert (extended.learner.steps, extended.learner.batch_size) == (500, 5)
    write("learner: {steps: 3}", "arithmetic-sft.yaml")  # the own one of the folder is meant first
    assert single("sft", "x.yaml").learner.steps == 3
    assert "Did you mean 'arithmetic-rl'?" in error("sft", write("extends: arithmetic-rll"))


@pytest.mark.parametrize("given", [["--config-name", "arithmetic-sft"], ["--config_name=arithmetic-sft"]])
def test_a_configuration_may_be_given_by_the_option_of_hydra(elsewhere: Path, given: list[str]) -> None:
    assert single("sft", *given) == single("sft", "arithmetic-sft")


def save(folder: Path, settings: Any) -> str:
    folder.mkdir()
    (folder / "settings.yaml").write_text(dump_settings(settings), encoding="utf-8")
    return str(folder)


def test_a_run_is_resumed_with_its_own_settings(elsewhere: Path) -> None:
    out = save(elsewhere / "run", single("sft", "arithmetic-sft", "--lr", "1e-4"))
    resumed = single("sft", "--resume", "--out", out)
    assert (resumed.learner.lr, resumed.learner.steps, resumed.run.out) == (1e-4, 500, out)
    assert single("sft", "--resume", "--out", out, "--steps", "900").learner.steps == 900
    # With a configuration the command line is taken as it stands, and compared with the run's settings.
    assert single("sft", "arithmetic-sft", "--resume", "--out", out).learner.lr == 2e-3
    assert single("sft", "--out", out).learner.steps == 200


def test_the_run_to_resume_must_be_of_the_command(error: Refused, elsewhere: Path) -> None:
    assert "Use `qed sft` instead" in error("grpo", "--resume", "--out", save(elsewhere / "one", single("sft")))
    both = save(elsewhere / "both", pipeline())
    assert "resume it with `qed pipeline --resume --out DIR`" in error("grpo", "--resume", "--out", both)
    assert pipeline("--resume", "--out", both).run.out == both


def test_code_that_the_command_line_names_again_needs_no_flag_to_resume(error: Refused, write: Write) -> None:
    write("def reward(completions, **_): return [0.0] * len(completions)", "my.py")
    out = save(Path("run"), single("grpo", "--reward", "my.py"))
    assert "needs --allow-user-code" in error("grpo", "--resume", "--out", out)
    assert single("grpo", "--resume", "--out", out, "--reward", "my.py").data.reward == ("my.py",)
    assert single("grpo", "--resume", "--out", out, "--allow-user-code").data.reward == ("my.py",)


def test_a_run_whose_phases_shared_their_data_can_be_resumed(write: Write) -> None:
    saved = dump_settings(pipeline("--steps", "4")).replace("  data:\n", "  unused:\n")
    shared = saved + "data:\n  tasks: [gsm8k]\n"
    Path(write(shared))
    settings = pipeline("--steps", "4", "--tasks", "gsm8k")
    refused = [change for change in list_changes(Path("x.yaml"), settings)[1] if "data.tasks" in change]
    assert refused == []
    changed = list_changes(Path("x.yaml"), pipeline("--steps", "4", "--rl.data.tasks", "math", "--tasks", "gsm8k"))[1]
    assert "rl.data.tasks: ['gsm8k'] -> ['math']" in changed


def test_epochs_of_the_last_phase_may_change(write: Write) -> None:
    write(dump_settings(pipeline("--learner.epochs", "2")))
    more = ["--sft.learner.epochs", "2", "--rl.learner.epochs", "3"]
    assert list_changes(Path("x.yaml"), pipeline(*more))[1] == []
    with pytest.raises(UsageError):
        pipeline("--rl.learner.epochs", "nan")
    (refused,) = list_changes(Path("x.yaml"), pipeline("--sft.learner.epochs", "3", "--rl.learner.epochs", "2"))[1]
    assert refused.startswith("sft.learner.epochs")
