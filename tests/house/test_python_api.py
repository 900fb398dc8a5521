"""The Python API: its names and signatures against a snapshot, and its keywords against the command line.

`python tests/house/test_python_api.py` writes the snapshot anew; the difference belongs into CHANGELOG.md.
"""

from __future__ import annotations

import importlib
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas
import pytest

import qed
from qed.config.resolve import resolve_settings
from qed.errors import QedError, UsageError

SNAPSHOT = Path(__file__).with_name("python_api.json")
# What examples/own_loop.py builds a loop from.
BLOCKS = {
    "qed.algorithms.base": ("StepContext",),
    "qed.data.splits": ("load_problems",),
    "qed.models.load": ("pick_device",),
    "qed.models.threads": ("set_threads",),
    "qed.rewards": ("trl", "verl"),
    "qed.rollout.collector": ("RolloutCollector", "RolloutCollector.collect"),
    "qed.rollout.grader": ("load_grader",),
    "qed.rollout.policy": ("load_policy",),
    "qed.rollout.stages": ("Stream", "assign_advantages"),
    "qed.training.learner": ("Learner", "Learner.score", "Learner.update"),
}


def describe_api() -> dict[str, Any]:
    """Describe the public names, with signatures, attributes of classes and exit codes of errors."""
    names = {f"qed.{name}": getattr(qed, name) for name in qed.__all__ if not inspect.ismodule(getattr(qed, name))}
    for module, found in BLOCKS.items():
        for name in found:
            thing: Any = importlib.import_module(module)
            for part in name.split("."):
                thing = getattr(thing, part)
            names[f"{module}.{name}"] = thing
    return {
        "names": {name: describe(thing) for name, thing in names.items()},
        "errors": sorted(name for name, kind in vars(qed.errors).items() if is_error(kind)),
    }


def describe(thing: Any) -> Any:
    """Describe a function by its signature, and a class of `qed` also by its public attributes."""
    signature = str(inspect.signature(thing))
    if not inspect.isclass(thing) or not thing.__module__.startswith("qed.api"):
        return signature
    members = {name: value for name, value in vars(thing).items() if not name.startswith("_")}
    return {"": signature} | {
        name: str(inspect.signature(value)) if inspect.isfunction(value) else "attribute"
        for name, value in members.items()
    }


def is_error(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, QedError)


def test_the_public_names_are_as_they_were() -> None:
    found = describe_api()
    for part, value in json.loads(SNAPSHOT.read_text(encoding="utf-8")).items():
        assert found[part] == value, f"{part} changed: if it is meant, run this file and write it into CHANGELOG.md"


def test_every_public_name_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    for name in qed.__all__:
        assert getattr(qed, name).__doc__
        assert f"qed.{name}" in page, name
        assert name in dir(qed)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        qed.trian  # noqa: B018


def test_names_that_moved_are_where_the_table_says() -> None:
    moved = json.loads((Path(__file__).parents[2] / "docs" / "moved.json").read_text(encoding="utf-8"))
    assert [target for target in moved.values() if target is not None and not exists(target)] == []


def exists(name: str) -> bool:
    """Whether `name` is a module, or an attribute of one."""
    with suppress(ImportError):
        importlib.import_module(name)
        return True
    module, _, attribute = name.rpartition(".")
    owner = sys.modules.get(module)
    if owner is None and "." in module:
        owner = getattr(sys.modules.get(module.rpartition(".")[0]), module.rpartition(".")[2], None)
    return hasattr(owner, attribute)


def test_importing_qed_imports_nothing_heavy() -> None:
    code = "import qed, sys, threading; print(sorted(sys.modules), threading.active_count())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for heavy in ("torch", "transformers", "datasets", "rich", "numpy", "yaml", "pandas", "IPython", "asyncio"):
        assert f"'{heavy}'" not in done.stdout
    assert done.stdout.split()[-1] == "1"


SAME = [
    ({"lr": 1e-3, "steps": 3, "seed": 7}, ["--lr", "1e-3", "--steps", "3", "--seed", "7"]),
    ({"learner": {"betas": (0.8, 0.9), "packing": False}}, ["--learner.betas", "0.8,0.9", "--no-learner.packing"]),
    ({"reward": ["accuracy", "0.5*length"], "prompt": None}, ["--reward", "accuracy,0.5*length"]),
    ({"data.prompt_options": ["boxed.x=a,b"]}, ['--data.prompt_options=["boxed.x=a,b"]']),
    ({"reward": (0.5, "accuracy")}, ["--reward", "0.5*accuracy"]),
    ({"tasks": Path("x.yaml")}, ["--tasks", "x.yaml"]),
]


def test_only_the_data_have_a_list_of_rewards() -> None:
    """An algorithm's setting of the same name is a number."""
    found = qed.load_settings(method="opd", **{"algorithm.distillation.reward": 0.5, "data": {"reward": ["accuracy"]}})
    assert (found.algorithm.distillation.reward, found.data.reward) == (0.5, ("accuracy",))


@pytest.mark.parametrize(("keywords", "arguments"), SAME)
def test_keywords_mean_what_the_command_line_means(
    elsewhere: Path, write: Callable[..., str], keywords: dict[str, Any], arguments: list[str]
) -> None:
    write("run.seed: 3\n")
    expected = resolve_settings("grpo", ["x.yaml", *arguments]).settings
    assert qed.load_settings(Path("x.yaml"), method="grpo", **keywords) == expected


@pytest.mark.parametrize(
    ("keywords", "arguments"),
    [
        ({"stepz": 3}, ["--stepz=3"]),
        ({"lr": "fast"}, ["--lr=fast"]),
        ({"learner.steps": 1.5}, ["--learner.steps=1.5"]),
        ({"reward": ["accuracy", "acuracy"]}, ["--reward", "accuracy,acuracy"]),
        ({"tasks": "gone.jsonl"}, ["--tasks", "gone.jsonl"]),
        ({"model": {"name": "new:tiny", "lora_rank": -1}}, ["--model.name=new:tiny", "--model.lora_rank=-1"]),
    ],
)
def test_a_mistake_has_the_message_of_the_command_line(
    error: Callable[..., str], keywords: dict[str, Any], arguments: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        qed.train("grpo", **keywords)
    assert str(caught.value) == error("grpo", *arguments)


@pytest.mark.parametrize(
    ("keywords", "said"),
    [
        ({"dry_run": True}, "dry_run is an option of the command line"),
        ({"lr": object()}, "lr cannot be a object"),
        ({"tasks": 3}, "Data in Python must be a list of dicts"),
        ({"tasks": []}, "memory:train has no rows"),
        ({"reward": "<callable>"}, "a function of the Python program that began this run"),
        ({"reward": [len, "./mine.py"]}, "Import the file's function"),
    ],
)
def test_what_python_alone_can_get_wrong_is_said(
    elsewhere: Path, write: Callable[..., str], keywords: dict[str, Any], said: str
) -> None:
    write("def reward(rollout): ...\n", "mine.py")
    with pytest.raises(QedError, match=said):
        qed.train("grpo", **keywords)


def test_functions_and_data_are_named_in_the_settings(elsewhere: Path) -> None:
    def length(rollout: qed.Rollout) -> float:
        return len(rollout.text)

    for reward, names in [
        (length, ("<callable>",)),
        ((0.5, length), ("0.5*<callable>",)),
        (["auto", length, (2, len)], ("auto", "<callable>", "2*<callable 2>")),
    ]:
        assert qed.load_settings(method="grpo", reward=reward).data.reward == names  # type: ignore[union-attr]
    rows = [{"question": "1+1?", "answer": 2}]
    settings: Any = qed.load_settings(method="grpo", tasks=["arithmetic", rows], evaluation={"tasks": tuple(rows)})
    assert settings.data.tasks == ("arithmetic", "memory:train-2")
    assert settings.evaluation.tasks == ("memory:test",)


def test_a_method_is_found_as_a_command_is(elsewhere: Path, recipes: Any) -> None:
    recipes.answer = lambda settings: {"run": "runs/x"}
    Path("runs/x").mkdir(parents=True)
    Path("runs/x/settings.yaml").write_text("method: dr_grpo\n")
    run = qed.train("dr-grpo", resume=True, fast=False, out="runs/x", allow_change=["lr", "seed"])
    [(name, settings, launch)] = recipes.calls
    assert (name, settings.method, str(run.path)) == ("train", "dr_grpo", "runs/x")
    assert (launch.resume, launch.fast, launch.allow_change) == (True, False, ("learner.lr", "run.seed"))
    with pytest.raises(UsageError, match=r"There is no command 'grop'\. Did you mean 'grpo'"):
        qed.train("grop")
    assert qed.load_settings("small").rl.method == "grpo"  # type: ignore[union-attr]


def test_grade_compares_mathematically() -> None:
    assert qed.grade("1/2", r"so it is \boxed{0.5}.") == qed.Verdict(True, "0.5", "the same value")
    assert qed.grade(72, "#### 72").correct
    assert qed.grade("text\n#### 1,000", 1000).extracted == "1000"
    wrong = qed.grade("5", "4")
    assert (bool(wrong), wrong.extracted, wrong.reason) == (False, "4", "another value")
    assert qed.grade("5", "I do not know") == qed.Verdict(False, None, "no answer found")
    for nothing in (None, float("nan"), "", pandas.NA, pandas.NaT, b""):
        assert qed.grade("None", nothing) == qed.grade("nan", nothing) == qed.Verdict(False, None, "no answer found")
    assert not qed.grade(pandas.NA, "1")  # type: ignore[arg-type]
    assert qed.grade("7", b"so 7") == qed.Verdict(True, "7", "the same string")  # type: ignore[arg-type]
    assert qed.grade("7", b"\xff").extracted is None  # type: ignore[arg-type]
    assert qed.grade("x^2", "x^{2}") == qed.Verdict(True, "x^{2}", "the same after normalisation")
    with pytest.raises(UsageError, match="Did you mean 'strict'"):
        qed.grade("1", "1", "strikt")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not 'None'"):
        qed.grade("1", "1", None)  # type: ignore[arg-type]


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(describe_api(), indent=1) + "\n", encoding="utf-8")
