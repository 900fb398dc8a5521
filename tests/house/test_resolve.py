"""Layers, origins, types and shelves: how settings come about and how they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.config import layers, plugins
from qed.config.fields import build_table
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import read_sources, resolve_settings
from qed.errors import UsageError

ALGORITHMS = sorted(plugins.list_leaves("algorithms"))
Write = Callable[..., str]
Refused = Callable[..., str]

pytestmark = pytest.mark.usefixtures("elsewhere")


# Layers and origins


def test_layers_override_each_other_and_keep_their_origins(write: Write) -> None:
    first = write("learner:\n  steps: 1\n  lr: 1e-3\n  batch_size: 4\n", "a.yaml")
    second = write("\nlearner:\n  lr: 2e-3\n  batch_size: 8\n", "b.yaml")
    resolved = resolve_settings("sft", [first, second, "--learner.batch-size", "16"])
    assert isinstance(resolved.settings, Settings)
    learner = resolved.settings.learner
    assert (learner.steps, learner.lr, learner.batch_size, learner.schedule) == (1, 2e-3, 16, "linear")
    assert resolved.origins["learner.steps"] == "a.yaml:2"
    assert resolved.origins["learner.lr"] == "b.yaml:3"
    assert resolved.origins["learner.batch_size"] == "command line"
    assert resolved.origins["learner.schedule"] == "default of sft"
    assert resolved.origins["learner.clip_norm"] == "default"


@pytest.mark.parametrize("method", ALGORITHMS)
def test_every_setting_has_an_origin(method: str) -> None:
    resolved = resolve_settings(method, [])
    assert set(resolved.origins) == set(read_sources(method, []).table.settings)
    assert resolved.settings.method == method  # type: ignore[union-attr]


def test_an_extended_file_lies_below_the_one_that_extends_it(write: Write) -> None:
    write("learner: {lr: 1, steps: 2}\nrun: {seed: 5}", "base/low.yaml")
    write("extends: low\nlearner: {steps: 3}", "base/middle.yaml")
    write("sampling: {group_size: 2}\nrun: {seed: 6}", "other.yml")
    resolved = resolve_settings("grpo", [write("extends: [base/middle.yaml, other]\nlearner: {warmup_steps: 4}")])
    learner = resolved.settings.learner  # type: ignore[union-attr]
    assert (learner.lr, learner.steps, learner.warmup_steps) == (1, 3, 4)
    assert resolved.settings.run.seed == 6
    assert resolved.origins["learner.lr"] == "base/low.yaml:1"


def test_files_that_extend_each_other_are_refused_with_the_chain(error: Refused, write: Write) -> None:
    write("extends: b.yaml", "a.yaml")
    write("extends: sub/../a.yaml", "b.yaml")
    write("", "sub/empty.yaml")
    assert "a.yaml extends b.yaml extends a.yaml" in error("grpo", "a.yaml")


def test_a_file_may_be_extended_along_two_ways(write: Write) -> None:
    write("run: {seed: 3}", "base.yaml")
    write("extends: base", "left.yaml")
    write("extends: base", "right.yaml")
    assert resolve_settings("grpo", [write("extends: [left, right]")]).settings.run.seed == 3


def test_a_missing_base_is_named_with_the_line(error: Refused, write: Write) -> None:
    assert error("grpo", write("run: {seed: 1}\nextends: gone.yaml")).startswith("x.yaml:2: extends names 'gone.yaml'")


# Types, ranges, choices, shelves


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("learner.lr", "fast", "learner.lr must be a number, not 'fast'."),
        ("learner.steps", "[1]", "learner.steps must be a whole number, not "),
        ("model.lora_rank", "9" * 23, f"model.lora_rank must be a whole number of at most 64 bits, not {'9' * 23}."),
        ("run.save_rollouts", "maybe", "run.save_rollouts must be true or false, not 'maybe'."),
        ("learner.betas", "[0.9]", "learner.betas must be 2 numbers, not 1."),
        ("learner.schedule", "cosin", "must be one of constant, linear, cosine, not 'cosin'. Did you mean 'cosine'?"),
        ("learner.steps", "-1", "learner.steps must not be negative."),
        ("learner.lr", ".nan", "learner.lr must be a number, not "),
        ("evaluation.temperature", ".nan", "evaluation.temperature must be a number or null, not "),
        ("algorithm.kl", ".inf", "algorithm.kl must be a finite number, 0 or more."),
        ("algorithm.entropy", "-.inf", "algorithm.entropy must be a finite number."),
        ("algorithm.entropy_target", ".inf", "algorithm.entropy_target must be a finite number, 0 or more."),
        ("algorithm.average_length", "9" * 12, "algorithm.average_length must be 0 or more, and below 2^31."),
        ("data.reward_memory_gb", ".inf", "data.reward_memory_gb must be above 0, and at most 1048576."),
        ("data.reward_seconds", ".inf", "data.reward_seconds must be a finite number above 0."),
        ("sampling.temperature", ".inf", "sampling.temperature must be a finite number above 0"),
        ("sampling.temperature", "1e-60", "sampling.temperature must be a finite number above 0, at least 1e-6"),
        ("sampling.mix", "[a=1, b=1, a=2]", "sampling.mix names a source twice."),
        ("evaluation.temperature", "1e-60", "evaluation.temperature must be above 0, at least 1e-6"),
        ("run.threads", "9" * 12, "run.threads must lie between 0 and 4096."),
        ("algorithm.clip_low", "2", "algorithm.clip_low must lie in [0, 1]."),
        ("data.reward", "boxd", "data.reward: There is no 'boxd' among the rewards. Did you mean 'boxed'?"),
        ("data.tasks", "arithmetc", "Did you mean 'arithmetic'?"),
        ("data.tasks", "no/such.jsonl", "There is no file no/such.jsonl."),
        ("evaluation.tasks", "[arithmetic, no.csv.gz]", "There is no file no.csv.gz."),
        ("data.tasks", "files:train@gone", "There is no file gone."),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_origin(
    error: Refused, write: Write, key: str, value: str, reason: str
) -> None:
    in_file = error("grpo", write(f"\n{key}: {value}"))
    assert in_file.startswith("x.yaml:2: ")
    assert reason in in_file
    text = value.replace(".nan", "nan").replace(".inf", "inf")
    on_line = error("grpo", f"--{key}={text}")
    assert on_line.startswith("command line: ")
    assert reason in on_line


BOUNDLESS = {
    *("clip_high", "clip_dual", "ratio_clamp", "correction_high", "rejection_low", "rejection_high", "offpolicy_limit"),
    *("clip_norm", "skip_norm", "distillation.divergence_clip", "critic.clip", "shaping.most"),  # limits: inf sets none
    *("mixed_above", "gae.length_alpha"),  # never mixed; a lambda of 1
}


def test_only_limits_may_be_infinite_and_nothing_is_nan() -> None:
    tables = {method: build_table(method, {"": method}).settings.values() for method in ALGORITHMS}
    found = {(each.owner, each.name): (method, each) for method, settings in tables.items() for each in settings}
    for method, setting in (pair for pair in found.values() if "float" in f"{pair[1].kind}"):
        given = len(setting.default) if isinstance(setting.default, tuple) and setting.default else 1
        bound = setting.key.removeprefix("algorithm.").removeprefix("learner.") in BOUNDLESS
        for value in ("nan",) if bound else ("nan", "inf", "-inf"):
            with pytest.raises(UsageError, match=setting.name):
                resolve_settings(method, [f"--{setting.key}={','.join([value] * given)}"])


def test_a_range_error_in_a_pipeline_names_the_phase(error: Refused, write: Write) -> None:
    text = "rl:\n  learner:\n    steps: -1\n  algorithm: {kl: -1}"
    assert error("pipeline", write(text)) == "x.yaml:4: rl.algorithm.kl must be a finite number, 0 or more."
    assert error("pipeline", write(text), "rl.algorithm.kl=0") == "x.yaml:3: rl.learner.steps must not be negative."


def test_tasks_are_leaves_and_files(write: Write) -> None:
    data = write("{}", "some/data.jsonl")
    entries = ("arithmetic", "arithmetic:test", data, f"files@{data}")
    assert resolve_settings("grpo", ["--tasks", ",".join(entries)]).settings.data.tasks == entries


def test_names_of_leaves_take_the_spelling_of_their_files() -> None:
    assert resolve_settings("grpo", ["--reward", "r1-zero"]).settings.data.reward == ("r1-zero",)
    assert resolve_settings("grpo", ["--prompt", "r1-zero"]).settings.data.prompt == "r1_zero"
    assert resolve_settings("grpo", ["--reward", "auto"]).settings.data.reward == ("auto",)


def test_a_reward_may_be_a_weighted_sum(error: Refused) -> None:
    assert resolve_settings("grpo", ["--reward", "boxed, 0.5*overlong,0*length"]).settings.data.reward == (
        "boxed",
        "0.5*overlong",
        "0*length",
    )
    assert error("grpo", "--reward", "half*boxed").endswith("'half' is not a finite number.")
    assert "Write the weight first: 0.5*boxed." in error("grpo", "--reward", "boxed*0.5")
    assert "Did you mean 'overlong'" in error("grpo", "--reward", "boxed,0.5*overlng")


@pytest.mark.parametrize(
    ("key", "text", "written"),
    [
        ("tasks", "a.jsonl,b.jsonl", "[a.jsonl, b.jsonl]"),
        ("tasks", "gsm8k, math", "[gsm8k, math]"),
        ("reward", "think_answer,0.5*overlong", "[think_answer, 0.5*overlong]"),
        ("reward", "boxed,length", "[boxed, length]"),
    ],
)
def test_several_names_in_one_quoted_text_are_told_to_be_a_list(
    error: Refused, write: Write, key: str, text: str, written: str
) -> None:
    assert error("grpo", write(f'data: {{{key}: "{text}"}}')).endswith(f" In YAML, write several as a list: {written}.")
    assert "in YAML" not in error("grpo", write(f"data: {{{key}: gone.jsonl}}"))


# The user's own code


def test_a_users_own_code_is_taken_from_the_command_line_and_not_from_a_file(error: Refused, write: Write) -> None:
    reward = write("def reward(rollout): ...", "mine.py")
    assert resolve_settings("grpo", ["--reward", reward]).settings.data.reward == (reward,)
    assert resolve_settings("grpo", ["--reward", "package.module"]).settings.data.reward == ("package.module",)
    for key, value in (("data.reward", reward), ("data.prompt", "package.module"), ("data.tasks", "[./mine.py:test]")):
        config = write(f"{key}: {value}")
        message = error("grpo", config)
        assert message.startswith(f"x.yaml:1: {key} names code outside of qed")
        assert "--allow-user-code" in message
        resolve_settings("grpo", [config, "--allow-user-code"])
    assert "There is no file gone.py" in error("grpo", "--reward", "gone.py")


ALGORITHM = """
from dataclasses import dataclass
from typing import ClassVar, Optional
from qed.algorithms.base import Algorithm
open("ran", "w").close()

@dataclass(frozen=True)
class Mine(Algorithm):
    \"\"\"Mine.\"\"\"
    bound: Optional[float] = None
    label: Optional[str] = "x"
    size: Optional[int] = 3
    names: list[str] = ()
    must: int = DEFAULT
    defaults: ClassVar = {"learner.lr": 0.5, "sampling.group_size": 3, "algorithm.size": 4}
"""


def test_a_users_own_algorithm_is_a_command_and_never_runs_from_a_file(error: Refused, write: Write) -> None:
    mine = write(ALGORITHM.replace("DEFAULT", "1"), "mine.py")
    config = write(f"rl: {{method: ./{mine}}}")
    assert "x.yaml:1: rl.method names code outside of qed" in error("pipeline", config)
    assert not Path("ran").exists()
    resolved = resolve_settings("pipeline", [config, "--allow-user-code", "--rl.algorithm.size", "9"])
    assert isinstance(resolved.settings, PipelineSettings)
    assert resolved.settings.rl.algorithm.size == 9
    assert resolved.settings.rl.learner.lr == 0.5
    assert resolved.settings.sampling.group_size == 3
    assert resolved.origins["sampling.group_size"] == "default of ./mine.py"
    assert resolve_settings("mine.py", []).settings.algorithm.size == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("word", ["null", "none", "~", "None"])
def test_optional_settings_can_be_nothing(error: Refused, write: Write, word: str) -> None:
    mine = write(ALGORITHM.replace("DEFAULT", "1"), "mine.py")
    arguments = ([f"algorithm.{key}={word}" for key in ("bound", "label", "size")], [])
    in_file = write(f"algorithm: {{bound: {word}, label: {word}, size: {word}}}")
    for settings_of in (resolve_settings(mine, arguments[0]).settings, resolve_settings(mine, [in_file]).settings):
        algorithm: Any = settings_of.algorithm  # type: ignore[union-attr]
        assert (algorithm.bound, algorithm.label, algorithm.size) == (None, None, None)
    kept: Any = resolve_settings(mine, [write('algorithm: {label: "null", bound: 2, names: a}')]).settings
    assert (kept.algorithm.label, kept.algorithm.bound, kept.algorithm.names) == ("null", 2.0, ["a"])
    assert "algorithm.bound must be a number or null, not 'x'" in error(mine, "--algorithm.bound=x")


def test_defaults_of_an_algorithm_must_be_settings(error: Refused, write: Write) -> None:
    mine = write(ALGORITHM.replace("DEFAULT", "1").replace("learner.lr", "learner.lrr"), "mine.py")
    assert error(mine) == "The defaults of mine.py name learner.lrr, which is not a setting. Did you mean 'learner.lr'?"


def test_types_that_cannot_be_read_are_named(error: Refused, write: Write) -> None:
    mine = write(ALGORITHM.replace("DEFAULT", "1").replace("Optional[int]", "Optional['Gone']"), "mine.py")
    assert "The types of the fields of Mine cannot be read" in error(mine)


def test_a_setting_without_a_default_must_be_given(error: Refused, write: Write) -> None:
    text = ALGORITHM.replace(" = DEFAULT", "").replace("frozen=True", "frozen=True, kw_only=True")
    mine = write(text, "mine.py")
    assert error(mine) == "algorithm.must is required: it has no default."
    assert resolve_settings(mine, ["--algorithm.must", "4"]).settings.algorithm.must == 4  # type: ignore[union-attr]


# Configurations by name


def test_a_configuration_is_found_by_path_and_by_name(
    error: Refused, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("run.seed: 1", "configs/mine.yaml")
    write("run.seed: 2", "shipped/mine.yaml")
    write("run.seed: 3", "shipped/theirs.yml")
    write("run.seed: 4", "elsewhere/mine.yaml")
    monkeypatch.setattr(layers, "find_shipped_configs", lambda: Path("shipped"))
    found = {
        name: resolve_settings("grpo", [name]).settings.run.seed
        for name in ("mine", "mine.yaml", "theirs", "elsewhere/mine.yaml", "elsewhere/mine", "./configs/mine.yaml")
    }
    assert list(found.values()) == [1, 1, 3, 4, 4, 1]
    message = error("grpo", "thiers")
    assert "Did you mean 'theirs'?" in message
    assert "There are: mine, theirs." in message
    assert "There is no configuration elsewhere/gone.yaml" in error("grpo", "elsewhere/gone.yaml")


def test_a_folder_is_no_configuration_but_its_settings_are(error: Refused, write: Write) -> None:
    write("method: grpo", "runs/x/settings.yaml")
    assert "Did you mean runs/x/settings.yaml?" in error("grpo", "runs/x")


def test_a_path_with_an_equals_sign_is_a_configuration(write: Write) -> None:
    assert resolve_settings("grpo", [write("run.seed: 8", "lr=1,seed=0/settings.yaml")]).settings.run.seed == 8


def test_quickstart_begins_with_the_shipped_configuration(write: Write) -> None:
    write("run.seed: 99", "configs/quickstart.yaml")
    resolved = resolve_settings("quickstart", [])
    assert isinstance(resolved.settings, PipelineSettings)
    assert resolved.settings.run.seed != 99
    assert any(
        origin.startswith(str(layers.find_shipped_configs() / "quickstart.yaml"))
        for origin in resolved.origins.values()
    )
    assert resolve_settings("quickstart", [write("run.seed: 7")]).settings.run.seed == 7


# Pipelines


def test_a_pipeline_takes_defaults_from_the_algorithms_of_its_phases() -> None:
    resolved = resolve_settings("pipeline", ["--rl.method", "expert-iteration", "--rl.algorithm.keep", "2"])
    assert isinstance(resolved.settings, PipelineSettings)
    assert (resolved.settings.rl.method, resolved.settings.rl.algorithm.keep) == ("expert_iteration", 2)
    assert resolved.origins["rl.learner.lr"] == "default of expert_iteration for new models"
    assert resolved.origins["sft.learner.schedule"] == "default of sft"
    assert resolved.settings.phase("sft").method == "sft"


def test_a_file_may_name_the_algorithm_of_a_phase(error: Refused, write: Write) -> None:
    config = write("rl: {method: expert_iteration, algorithm: {keep: 2}}")
    assert resolve_settings("pipeline", [config]).settings.rl.algorithm.keep == 2  # type: ignore[union-attr]
    assert "rl.algorithm.keep is not a setting" in error("pipeline", config, "rl.method=grpo")
    assert "x.yaml:1: rl.method: There is no 'grop'" in error("pipeline", write("rl: {method: grop}"))


def test_what_is_said_of_both_phases_gives_way_to_what_is_said_of_one(write: Write) -> None:
    for arguments in (
        ["--steps", "3", "--rl.learner.steps", "4"],
        ["--rl.learner.steps", "4", "--steps", "3"],
        [write("rl.learner.steps: 4\nlearner: {steps: 3}")],
    ):
        resolved: Any = resolve_settings("pipeline", arguments).settings
        assert (resolved.sft.learner.steps, resolved.rl.learner.steps) == (3, 4)
    assert resolve_settings("pipeline", ["--skip-sft", "--no-skip-rl"]).settings.skip_sft is True  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["lr", "learner.lr"])
def test_one_learning_rate_for_two_phases_is_refused(error: Refused, key: str) -> None:
    assert "'--sft.learner.lr' or '--rl.learner.lr'" in error("pipeline", f"--{key}", "1")


def test_a_command_line_that_keeps_changing_its_mind_ends(error: Refused) -> None:
    # The next argument is the value of `keep` only where the algorithm has `keep`, and then names no algorithm.
    message = error("pipeline", "--rl.algorithm.keep", "rl.method=expert_iteration")
    assert "rl.algorithm.keep" in message


def test_what_a_later_layer_replaces_is_not_looked_for(write: Write, error: Refused) -> None:
    """A file's tasks and code matter only where the command line names no others; wrong types always do."""
    write("", "here.jsonl")
    config = write("data: {tasks: [gone.jsonl], reward: [./own.py]}")
    named = ["--data.tasks", "here.jsonl", "--data.reward", "boxed"]
    assert resolve_settings("grpo", [config, *named]).settings.data.tasks == ("here.jsonl",)
    missing = error("grpo", config, *named[2:])
    assert "There is no file gone.jsonl. A relative path is relative to the folder in which qed is started" in missing
    assert f"{Path.cwd()}. For the data of a run, start qed where the run was started." in missing
    assert "--allow-user-code" in error("grpo", config, *named[:2])
    wrong = write("data: {tasks: {a: 1}}", "wrong.yaml")
    assert "data.tasks" in error("grpo", wrong, *named[:2])


def test_the_data_of_a_run_need_not_be_there_to_use_its_model(write: Write) -> None:
    config = write("data: {tasks: [gone.jsonl]}")
    assert resolve_settings("grpo", [config], reads_data=False).settings.data.tasks == ("gone.jsonl",)
    with pytest.raises(UsageError, match=r"command line: evaluation\.tasks: There is no file no\.jsonl"):
        resolve_settings("grpo", [config, "--evaluation.tasks", "no.jsonl"], reads_data=False)


def test_a_path_may_begin_at_home(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "own.jsonl").touch()
    config = write("run: {out: ~/runs/a}\ndata: {tasks: [~/own.jsonl]}\nmodel: {name: ~/model}")
    settings = resolve_settings("sft", [config, "--evaluation.tasks=~/own.jsonl"]).settings
    assert (settings.run.out, settings.model.name) == (f"{tmp_path}/runs/a", f"{tmp_path}/model")
    assert settings.data.tasks == settings.evaluation.tasks == (f"{tmp_path}/own.jsonl",)
