"""What a resumed run may change: how far it goes, freely; what it is, only where that is said; and what is verified."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from cutting import OFFLINE, ONLINE, SHARED, SMALL, STEPS, assert_same, by_chance, cut, write_data
from safetensors.torch import load_file, save_file

from qed.algorithms.grpo import Grpo
from qed.config.field_names import find_short_names, flatten_fields
from qed.runs import manifest
from qed.runs.run import read_json, read_lines

CHANGES = {
    "learner.lr": ("--lr", 0.05),
    "learner.batch_size": ("--learner.batch_size", 10),
    "learner.schedule": ("--learner.schedule", "cosine"),
    "learner.weight_decay": ("--learner.weight_decay", 0.1),
    "sampling.group_size": ("--sampling.group_size", 6),
    "sampling.temperature": ("--sampling.temperature", 0.7),
    "sampling.max_tokens": ("--sampling.max_tokens", 7),
    "sampling.problems_per_step": ("--sampling.problems_per_step", 4),
    "algorithm.kl": ("--algorithm.kl", 0.1),
    "model.name": ("--model", "new:small"),
    "model.lora_rank": ("--model.lora_rank", 2),
    "model.precision": ("--model.precision", "bfloat16"),
    "data.tasks": ("--tasks", "arithmetic"),
    "data.prompt": ("--prompt", "question_only"),
    "data.reward": ("--reward", "format_only"),
    "data.validation_split": ("--data.validation_split", 0.2),
    "run.seed": ("--seed", 1),
}
SHORT = (("steps", STEPS), ("lr", 1e-3))
PIPELINE = ("pipeline", *ONLINE, "--rl.algorithm.kl", 0.1, "--rl.learner.batch_size", 10, "--sft.learner.batch_size", 5)


@pytest.fixture(autouse=True)
def _chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)


@pytest.fixture
def made(qed: Callable[..., Any], tmp_path: Path) -> tuple[list[Any], Path]:
    """A command line, and the run that it made."""
    problems, _ = write_data(tmp_path)
    warm_up = ("--learner.warmup_ratio", 0.25)
    arguments = ["grpo", "--tasks", problems, *SMALL, *ONLINE, *warm_up, "--out", tmp_path / "run"]
    assert qed(*arguments).code == 0
    return arguments, tmp_path / "run"


def change_line(arguments: list[Any], change: tuple[Any, ...]) -> list[Any]:
    """The command line with a change; other tasks stand in place of its own, as a list is given once."""
    return [arguments[0], *arguments[3:], *change] if change[0] == "--tasks" else [*arguments, *change]


def test_what_would_make_another_run_is_refused_by_name(qed: Callable[..., Any], made: tuple[list[Any], Path]) -> None:
    arguments, run = made
    before = (run / "metrics.jsonl").read_bytes()
    for key, change in CHANGES.items():
        done = qed(*change_line(arguments, change), "--resume")
        assert done.code == 2, key
        assert f"{key}: " in done.err
        # Another rank can never be resumed, so no way to allow it is proposed.
        assert ("--allow-change" in done.err) == (key != "model.lora_rank")
        assert qed(*change_line(arguments, change), "--resume", "--dry-run").err == done.err
    assert (run / "metrics.jsonl").read_bytes() == before
    assert qed(*arguments, "--allow-change", "lr").code == 2, "nothing is resumed"
    unknown = qed(*arguments, "--resume", "--allow-change", "learner.lrr")
    assert (unknown.code, "learner.lr" in unknown.err) == (2, True)


def test_a_dry_run_looks_at_the_folder(qed: Callable[..., Any], made: tuple[list[Any], Path], tmp_path: Path) -> None:
    arguments, run = made
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert "Continue it with --resume" in qed(*arguments, "--dry-run").err
    for flags in (("--overwrite",), ("--resume",), ("--resume", "--steps", 9), ("--out", tmp_path / "new")):
        assert qed(*arguments, *flags, "--dry-run").code == 0, flags
    assert f"resumes     after step {STEPS}," in qed(*arguments, "--resume", "--dry-run").out
    assert qed(*arguments, "--resume", "--out", tmp_path / "new", "--dry-run").code == 2
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert not (tmp_path / "new").exists()


def test_a_resumed_run_keeps_the_command_that_began_it(qed: Callable[..., Any], made: tuple[list[Any], Path]) -> None:
    _, run = made
    first = (run / "command.txt").read_text()
    for _ in range(2):
        assert qed("grpo", "--resume", "--out", run, "--steps", 5).code == 0
    assert (run / "command.txt").read_text() == f"{first}qed grpo --resume --out {run} --steps 5\n"
    assert f"    {first}    qed grpo --resume" in (run / "README.md").read_text(), "both are one block of code"


def test_a_change_that_is_meant_is_shown_and_kept(qed: Callable[..., Any], made: tuple[list[Any], Path]) -> None:
    arguments, run = made
    more = (*arguments, "--lr", 5e-3, "--sampling.group_size", 3, "--steps", 5)
    done = qed(*more, "--resume", "--allow-change", "lr,sampling.group_size")
    assert done.code == 0, done.err
    for change in ("learner.lr: 0.001 -> 0.005", "sampling.group_size: 4 -> 3", "learner.steps: 4 -> 5"):
        assert f"Changed since the run began: {change}." in done.out
    assert "The learning rate continues as if the run had had its new length from the start." in done.out
    assert [row["optim/lr"] for row in read_lines(run / "metrics.jsonl") if "optim/lr" in row] == [1e-3] * 4 + [5e-3]
    again = qed(*more, "--resume")
    assert again.code == 0, "from then on it is what the run is"
    assert "Changed since" not in again.out
    assert "new length" not in again.out


def test_other_problems_behind_the_same_name_are_refused(qed: Callable[..., Any], made: tuple[list[Any], Path]) -> None:
    arguments, run = made
    file = Path(arguments[2])
    rows = read_lines(file)
    rows[3]["answer"] = "999"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    before = (run / "metrics.jsonl").read_bytes()
    done = qed(*arguments, "--steps", 5, "--resume")
    assert done.code == 2
    assert "--allow-change data.tasks" in done.err
    assert (run / "metrics.jsonl").read_bytes() == before
    assert qed(*arguments, "--steps", 5, "--resume", "--allow-change", "data.tasks").code == 0


def test_a_mistake_in_a_resumed_run_does_not_become_its_setting(
    qed: Callable[..., Any], made: tuple[list[Any], Path], tmp_path: Path
) -> None:
    """The run goes on without the mistake, as if it had not been made."""
    arguments, run = made
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question": "x"\n', encoding="utf-8")
    records = ("settings.yaml", "settings.origin.json", "command.txt")
    before = [(run / name).read_bytes() for name in records]
    for mistake in (
        ("--evaluation.tasks", broken),
        ("--tasks", broken, "--allow-change", "data.tasks"),
        # The checkpoint's adapters, if it has any, are of another size or scale.
        ("--model.lora_rank", 2, "--allow-change", "model.lora_rank"),
    ):
        done = qed(*change_line(arguments, mistake), "--steps", 5, "--resume")
        assert done.code in (2, 3), mistake
        assert ("this one cannot change" in done.err) == ("model.lora_rank" in mistake)
        assert [(run / name).read_bytes() for name in records] == before, mistake
    assert qed(*arguments, "--steps", 5, "--resume").code == 0
    assert yaml.safe_load((run / "settings.yaml").read_text())["learner"]["steps"] == 5


def test_other_held_out_problems_are_said(qed: Callable[..., Any], tmp_path: Path) -> None:
    """What is evaluated may change, but figures of different problems are not one series."""
    problems, _ = write_data(tmp_path)
    run = tmp_path / "run"
    held_out = tmp_path / "held.jsonl"
    rows = [{"question": f"What is {number} + 1?", "answer": str(number + 1)} for number in range(4)]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    common = ("grpo", "--tasks", problems, *SMALL, *ONLINE, "--out", run)
    arguments = (*common, "--evaluation.tasks", held_out)
    assert qed(*arguments).code == 0
    more = (*arguments, "--resume", "--steps")
    same = qed(*more, 6)
    assert (same.code, "held-out problems of" in same.out) == (0, False), same.err
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows[:2]), encoding="utf-8")
    third = qed(*more, 7)
    assert third.code == 0
    assert f"the held-out problems of held are not those that {run} was evaluated on before" in third.out
    other = held_out.with_name("other.jsonl")
    other.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert qed(*common, "--evaluation.tasks", other, "--resume", "--steps", 8).code == 0
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows[:3]), encoding="utf-8")
    assert "the held-out problems of held are not those" in qed(*more, 9).out, "it was evaluated two attempts before"
    told = [row["tasks"] for row in read_lines(run / "events.jsonl") if row["event"] == "held_out_problems_changed"]
    assert told == [["held"], ["held"]]


def test_another_reward_in_the_same_file_is_refused(qed: Callable[..., Any], tmp_path: Path) -> None:
    problems, _ = write_data(tmp_path)
    reward = tmp_path / "mine.py"
    reward.write_text("def reward(completions, answer, **more): return [1.0 for _ in completions]\n")
    arguments = ["grpo", "--tasks", problems, *SMALL, *ONLINE, "--reward", reward, "--out", tmp_path / "run"]
    assert qed(*arguments).code == 0
    assert qed(*arguments, "--steps", STEPS + 1, "--resume").code == 0
    reward.write_text("def reward(completions, answer, **more): return [9.0 for _ in completions]\n")
    done = qed(*arguments, "--steps", STEPS + 2, "--resume")
    assert (done.code, "mine.py has changed since" in done.err) == (2, True)
    assert qed(*arguments, "--steps", STEPS + 2, "--resume", "--allow-change", "data.reward").code == 0
    assert qed(*arguments, "--steps", STEPS + 3, "--resume").code == 0  # as it is by now


def test_another_algorithm_in_the_same_file_and_what_it_imports_are_refused(
    qed: Callable[..., Any], tmp_path: Path
) -> None:
    problems, _ = write_data(tmp_path)
    method, beside = tmp_path / "doubled.py", tmp_path / "doubled_factor.py"
    text = (
        "from dataclasses import dataclass\nfrom qed.algorithms.grpo import Grpo\nfrom doubled_factor import FACTOR\n"
    )
    text += "@dataclass(frozen=True)\nclass Doubled(Grpo):\n"
    text += "    def advantages(self, rewards): return FACTOR * super().advantages(rewards)\n"
    method.write_text(text, encoding="utf-8")
    beside.write_text("FACTOR = 2\n", encoding="utf-8")
    arguments = [method, "--tasks", problems, *SMALL, *ONLINE, "--out", tmp_path / "run"]
    assert qed(*arguments).code == 0
    for file, changed in ((method, text.replace("FACTOR *", "-FACTOR *")), (beside, "FACTOR = 3\n")):
        before = file.read_text(encoding="utf-8")
        file.write_text(changed, encoding="utf-8")
        done = qed(*arguments, "--steps", STEPS + 1, "--resume")
        assert (done.code, f"{file} has changed since" in done.err) == (2, True), done.err
        file.write_text(before, encoding="utf-8")
    assert qed(*arguments, "--steps", STEPS + 1, "--resume").code == 0


def test_a_mistake_in_ones_own_algorithm_names_its_line(qed: Callable[..., Any], tmp_path: Path) -> None:
    problems, _ = write_data(tmp_path)
    method = tmp_path / "mistaken.py"
    text = "from dataclasses import dataclass\nfrom qed.algorithms.grpo import Grpo\n"
    text += "@dataclass(frozen=True)\nclass Mistaken(Grpo):\n    def advantages(self, rewards): return rewards.men()\n"
    method.write_text(text, encoding="utf-8")
    done = qed(method, "--tasks", problems, *SMALL, *ONLINE, "--out", tmp_path / "run")
    assert done.code == 1
    assert f"(line 5 of {method}; " in done.err
    assert "a bug in qed" not in done.err


def test_trackers_whose_files_have_one_name_are_refused(qed: Callable[..., Any], tmp_path: Path) -> None:
    problems, _ = write_data(tmp_path)
    files = [tmp_path / name / "mine.py" for name in ("one", "two")]
    for file in files:
        file.parent.mkdir()
        file.touch()
    trackers = f"run: {{trackers: [{files[0]}, {files[1]}]}}"
    config = tmp_path / "config.yaml"
    config.write_text(trackers, encoding="utf-8")
    done = qed("grpo", config, "--allow-user-code", "--tasks", problems, *SMALL, "--out", tmp_path / "run")
    assert (done.code, "two files of one name" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("setting", "method", "others"),
    [
        ("model.name", "grpo", ("--model.lora_rank", 2)),
        ("algorithm.teacher", "opd", ("--model", "{run}/checkpoints/step_000004/hf")),
    ],
)
def test_other_weights_behind_the_same_name_are_refused(
    qed: Callable[..., Any],
    made: tuple[list[Any], Path],
    tmp_path: Path,
    setting: str,
    method: str,
    others: tuple[Any, ...],
) -> None:
    """Those that a checkpoint does not have: of the model under adapters, and of a model that only scores."""
    arguments, run = made
    base = tmp_path / "base"
    shutil.copytree(run / "final" / "hf", base)
    arguments[0], arguments[-1] = method, tmp_path / "second"
    arguments += [f"--{setting}", base, *[str(one).format(run=run) for one in others]]
    done = qed(*arguments)
    assert done.code == 0, done.err
    assert qed(*arguments, "--steps", STEPS + 1, "--resume").code == 0
    weights = load_file(base / "model.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in weights.items()}, base / "model.safetensors", {"format": "pt"})
    before = (tmp_path / "second" / "metrics.jsonl").read_bytes()
    done = qed(*arguments, "--steps", STEPS + 2, "--resume")
    assert (done.code, f"{setting} {base} has other weights than when" in done.err) == (2, True)
    assert (tmp_path / "second" / "metrics.jsonl").read_bytes() == before
    assert qed(*arguments, "--steps", STEPS + 2, "--resume", "--allow-change", setting).code == 0
    assert qed(*arguments, "--steps", STEPS + 3, "--resume").code == 0  # as it is by now


def test_sizes_alone_are_compared_when_that_is_asked_for(qed: Callable[..., Any], made: tuple[list[Any], Path]) -> None:
    arguments, run = made
    weights = run / "checkpoints" / "step_000004" / "hf" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert qed("checkpoint", "verify", run).code == 3
    assert qed("checkpoint", "verify", run, "--fast").code == 0
    assert "is damaged and skipped" not in qed(*arguments, "--resume", "--fast").out
    weights.write_bytes(whole[:-1])
    done = qed(*arguments, "--resume", "--fast")
    assert done.code == 0, done.err
    assert "model.safetensors is damaged" in done.out
    assert weights.read_bytes() == whole


def test_a_run_may_go_on_again_and_again(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Cut twice, resumed thrice, the last time when it was done; and asked for two steps first, then for four."""
    problems, _ = write_data(tmp_path)
    arguments = ["grpo", "--tasks", problems, *SMALL, *ONLINE, "--learner.batch_size", 10]
    whole = tmp_path / "whole"
    assert qed(*arguments, "--out", whole).code == 0
    first = cut(whole, 1, tmp_path / "first")
    assert qed(*arguments, "--out", first, "--resume").code == 0
    second = cut(first, 3, tmp_path / "second")
    for _ in range(2):
        assert qed(*arguments, "--out", second, "--resume").code == 0
        assert_same(whole, second)
    longer = tmp_path / "longer"
    for steps in (2, 4):
        go_on = ["--resume"] if steps == 4 else []
        assert qed(*arguments, "--steps", steps, "--out", longer, *go_on).code == 0
    ends = [read_json(run / "checkpoints/step_000004/MANIFEST.json", {})["files"] for run in (whole, longer)]
    assert ends[0] == ends[1]


ADAPTED = ("kl", 0.1), ("kl_target", 1e-4), ("kl_horizon", 1000), ("entropy", 0.01), ("entropy_target", 0.5)


def test_a_run_whose_settings_stood_side_by_side_goes_on(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Before an algorithm had parts, settings.yaml and the coefficients in a checkpoint had short names alone."""
    problems, _ = write_data(tmp_path)
    options = [f"--algorithm.{name}={value}" for name, value in (*ADAPTED, ("rejection", "token_k1"))]
    arguments = ["grpo", "--tasks", problems, *SMALL, *ONLINE, "--learner.batch_size", 10, *options]
    whole = tmp_path / "whole"
    assert qed(*arguments, "--out", whole).code == 0
    steps = [row for row in read_lines(whole / "metrics.jsonl") if "train/loss" in row]
    assert steps[0]["kl/weight"] == 0.1
    assert len({row["kl/weight"] for row in steps}) == len(steps), "it moves in each step, and is told"
    assert all("policy/entropy_weight" in row for row in steps)
    former = cut(whole, 2, tmp_path / "former")
    short = {path: name for name, path in find_short_names(flatten_fields(Grpo())).items()}
    saved = yaml.safe_load((former / "settings.yaml").read_text(encoding="utf-8"))
    saved["algorithm"] = {
        short.get(path, path): value[0] if path.startswith("correction.rejection") else value
        for path, value in flatten_tree(saved["algorithm"]).items()
    }
    assert (saved["algorithm"]["surrogate"], saved["algorithm"]["rejection"]) == ("clip", "token_k1")
    (former / "settings.yaml").write_text(yaml.safe_dump(saved), encoding="utf-8")
    checkpoint = former / "checkpoints" / "step_000002"
    state = read_json(checkpoint / "state.json", {})
    state["algorithm"] = {short[path]: value for path, value in state["algorithm"].items()}
    assert set(state["algorithm"]) == {"kl", "entropy", "entropy_on"}
    (checkpoint / "state.json").write_text(json.dumps(state), encoding="utf-8")
    manifest.write_manifest(checkpoint, 2, former / "settings.yaml")
    done = qed(*arguments, "--out", former, "--resume")
    assert done.code == 0, done.err
    assert "Changed since" not in done.out
    assert_same(whole, former)
    done = qed(*arguments, "--algorithm.surrogate.clip_high", 0.9, "--steps", 5, "--out", former, "--resume")
    assert (done.code, "algorithm.clip_high: 0.2 -> 0.9" in done.err) == (2, True)


def flatten_tree(tree: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in tree.items():
        inner = flatten_tree(value) if isinstance(value, dict) else None
        found |= {name: value} if inner is None else {f"{name}.{path}": one for path, one in inner.items()}
    return found


@pytest.mark.faults
@pytest.mark.parametrize("more", [(), ("--model.lora_rank", 4)], ids=["weights", "lora"])
def test_a_pipeline_cut_in_either_phase(qed: Callable[..., Any], tmp_path: Path, more: tuple[object, ...]) -> None:
    problems, _ = write_data(tmp_path)
    short = [f"--{phase}.learner.{key}={value}" for phase in ("sft", "rl") for key, value in SHORT]
    arguments = [*PIPELINE, "--tasks", problems, *SHARED, "--evaluation.every", 2, *short, *more]
    assert qed(*arguments, "--out", tmp_path / "whole").code == 0
    for at in range(1, 9):
        part = cut(tmp_path / "whole", at, tmp_path / f"cut-{at}")
        assert qed(*arguments, "--out", part, "--resume").code == 0
        assert_same(tmp_path / "whole", part)


@pytest.mark.faults
def test_adapters_are_resumed_on_what_they_adapt(qed: Callable[..., Any], tmp_path: Path) -> None:
    """Twice, so that what is loaded has been loaded before."""
    problems, _ = write_data(tmp_path)
    arguments = ["sft", "--tasks", problems, *SMALL, *OFFLINE, "--model.lora_rank", 2]
    assert qed(*arguments, "--out", tmp_path / "whole").code == 0
    first = cut(tmp_path / "whole", 1, tmp_path / "first")
    assert qed(*arguments, "--out", first, "--resume").code == 0
    second = cut(first, 2, tmp_path / "second")
    assert qed(*arguments, "--out", second, "--resume").code == 0
    assert_same(tmp_path / "whole", second)


def test_a_run_whose_model_has_moved_says_how_to_name_it(
    qed: Callable[..., Any], made: tuple[list[Any], Path], tmp_path: Path
) -> None:
    shutil.copytree(made[1] / "final" / "hf", tmp_path / "model")
    arguments = [*made[0][:-1], tmp_path / "second", "--model", tmp_path / "model"]
    assert qed(*arguments).code == 0
    (tmp_path / "model").rename(tmp_path / "moved")
    again = ("--resume", "--steps", 5)
    refused = qed(*arguments, *again)
    assert (refused.code, "--model NEW and add --allow-change model.name" in refused.err) == (3, True), refused.err
    done = qed(*arguments[:-1], tmp_path / "moved", *again, "--allow-change", "model.name")
    assert done.code == 0, done.err
