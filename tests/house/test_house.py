"""The plan of the house, held by tests: imports go down, foreign libraries have one room each, rooms stay small."""

from __future__ import annotations

import ast
import dataclasses
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import qed
from qed import plugins
from qed.algorithms import find
from qed.rewards import base as rewards
from qed.types import Problem, Rollout

HOME = Path(qed.__file__).parent
FILES = sorted(HOME.rglob("*.py"))

# Law 5: a file imports from its own floor and from those below it.
FLOORS = [
    ["errors", "types"],
    ["settings", "phases", "plugins", "draws", "intervals", "machine"],
    ["grading", "guards", "console", "manifest", "runs", "folders"],
    ["tasks", "prompts", "rewards", "batch", "masked", "quantized", "lora", "room", "checkpoints", "replay"],
    ["algorithms", "evaluation"],
    ["configuration"],
    ["packing", "fused"],
    ["attention"],
    ["model", "logps", "logits", "optim", "kernels"],
    ["learner", "samplers"],
    ["scoring"],
    ["rollouts", "sampler_check"],
    ["gathering"],
    ["report", "reporting", "card"],
    ["recipes"],
    ["doctoring"],
    ["commands"],
    ["cli", "__main__"],
]
# Law 6: who may import a foreign library. Everything else runs without it.
ROOMS = {
    "latex2mathml": ["reporting/formulas.py"],
    "math_verify": ["grading/symbolic.py"],
    "sympy": [],
    "mpmath": ["grading/"],
    "ray": ["cluster/"],
    "vllm": [],
    "wandb": ["trackers.py"],
    "tensorboard": ["trackers.py"],
    "trackio": ["trackers.py"],
    "datasets": ["tasks/"],
    "huggingface_hub": ["tasks/sources/hub.py"],
    "reasoning_gym": ["tasks/reasoning_gym.py"],
    "peft": ["lora.py"],
    "bitsandbytes": ["optim.py", "quantized.py"],
    "yaml": ["configuration/", "reporting/"],
    "transformers": ["attention.py", "model.py", "quantized.py", "samplers/hf.py", "samplers/columns.py"],
    "tokenizers": ["model.py"],
    "safetensors": ["checkpoints.py", "lora.py", "model.py"],
    "zstandard": ["runs.py"],
    "rich": ["console.py"],
}


def name(path: Path) -> str:
    return path.relative_to(HOME).as_posix()


def room(path: Path) -> str:
    return name(path).split("/")[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports when it runs; those for type checkers alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    checked = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in checked:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from qed import draws` imports the module draws, `from qed.types import Problem` the module types.
            yield from (f"qed.{alias.name}" for alias in node.names) if node.module == "qed" else (node.module,)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_go_down(path: Path) -> None:
    floor = {place: number for number, floor in enumerate(FLOORS) for place in floor}
    if path.name == "__init__.py" and path.parent == HOME:
        return
    assert room(path) in floor, f"{name(path)} stands on no floor: give it one in FLOORS"
    for module in imports(path):
        if module.startswith("qed.") and (place := module.split(".")[1]) in floor:
            assert floor[place] <= floor[room(path)], f"{name(path)} imports {module} from above"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_foreign_library_has_one_room(path: Path) -> None:
    for module in imports(path):
        rooms = ROOMS.get(module.split(".")[0])
        if rooms is not None:
            assert any(name(path).startswith(allowed) for allowed in rooms), f"{name(path)} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_rooms_are_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 300, f"{name(path)} has outgrown its room: split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno <= 50, f"{name(path)}: {node.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_file_evaluates_text(path: Path) -> None:
    """Nothing a model wrote can become code, and nothing is pickled."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in {
                "eval",
                "exec",
                "torch.load",
                "pickle.load",
                "pickle.loads",
                "sympify",
                "parse_expr",
            }, f"{name(path)} calls {called}"


def test_help_imports_nothing_heavy() -> None:
    heavy = {"torch", "transformers", "datasets", "math_verify", "sympy", "numpy", "ray", "wandb"}
    for arguments in (["--help"], ["grpo", "--help"], ["grpo", "--lr", "fast"]):
        code = (
            "import sys\nfrom qed.cli import main\n"
            f"try:\n    main({arguments!r})\nexcept SystemExit:\n    pass\n"
            f"print(sorted({heavy!r} & set(sys.modules)))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == "[]", arguments


# Law 1: one stage writes each of these fields, and no other code assigns to it.
WRITERS = {"grade": "rollouts.py", "advantage": "rollouts.py", "old_logps": "learner.py", "ref_logps": "learner.py"}


def test_a_field_is_written_by_one_stage() -> None:
    written = {
        (target.attr, name(path))
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and target.attr in {field.name for field in dataclasses.fields(Rollout)}
        and ast.unparse(target.value) != "self"
    }
    assert written == set(WRITERS.items())


@pytest.mark.parametrize("path", [path for path in FILES if room(path) in {"report", "reporting", "card"}], ids=name)
def test_pages_read_run_folders_only(path: Path) -> None:
    """Law 8: what they say of a run they have from its folder; the arithmetic of its figures is the evaluation's."""
    allowed = {"qed.runs", "qed.evaluation", "qed.intervals", "qed.errors", "qed.report", "qed.reporting", "qed.guards"}
    for module in imports(path):
        assert not module.startswith("qed.") or ".".join(module.split(".")[:2]) in allowed, f"{name(path)}: {module}"


def test_the_learner_names_no_algorithm() -> None:
    text = (HOME / "learner.py").read_text(encoding="utf-8").lower()
    for leaf in plugins.shelf("algorithms"):
        assert leaf not in text.replace("_", " ").split(), leaf
        assert f"algorithms.{leaf}" not in text


def test_the_loop_knows_no_task() -> None:
    """Nothing outside of the shelves names the embedded default, but the settings whose default it is."""
    for path in FILES:
        if room(path) not in {"tasks", "prompts", "rewards", "settings"} and "configuration" not in name(path):
            words = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
            assert not words & {"arithmetic", "think_answer"}, name(path)


@pytest.mark.parametrize("leaf", plugins.shelf("tasks"))
def test_a_task_leaf_keeps_its_contract(leaf: str) -> None:
    module = plugins.load("tasks", leaf)
    assert module.__doc__
    assert module.PROMPT in plugins.shelf("prompts")
    assert callable(module.load)


@pytest.mark.parametrize("leaf", plugins.shelf("prompts"))
def test_a_prompt_leaf_keeps_its_contract(leaf: str) -> None:
    module = plugins.load("prompts", leaf)
    assert module.__doc__
    assert module.REWARD in plugins.shelf("rewards")
    assert isinstance(module.CHAT, bool)
    assert isinstance(module.STOP, tuple)
    assert callable(module.render)
    assert callable(module.demonstration)


def test_every_reward_stands_in_the_table() -> None:
    table = (HOME.parent / "docs" / "rewards.md").read_text(encoding="utf-8")
    for leaf in plugins.shelf("rewards"):
        settings = plugins.load("rewards", leaf).reward
        fields = [field.name for field in dataclasses.fields(settings)] if dataclasses.is_dataclass(settings) else []
        (row,) = (line for line in table.splitlines() if line.startswith(f"| `{leaf}` |"))
        for field in fields:
            assert f"`{field}" in row, f"{leaf}.{field} is missing in docs/rewards.md"


HOSTILE_TEXTS = ("", "<answer>", "</answer><answer>", "\\boxed{", "\ud800", "1" * 5000, "<think>" * 900)
# Its integer part pays for any row of digits, because without tags the whole text counts as the answer.
PAYS_WITHOUT_AN_ANSWER = {("gsm8k_xml", "1" * 5000)}


@pytest.mark.parametrize("leaf", plugins.shelf("rewards"))
def test_a_reward_leaf_keeps_its_contract(leaf: str) -> None:
    """Any text gets a finite grade, empty, broken or hostile; none of these is right, and a judge pays for none."""
    assert plugins.load("rewards", leaf).__doc__
    reward = rewards.load([leaf], max_tokens=100)
    for text in HOSTILE_TEXTS:
        (verdict,) = reward.grade([Rollout(Problem("p", "?", "1"), (), (), (), text, "stop")])
        assert not verdict.correct
        assert math.isfinite(verdict.reward)
        if reward.parts[0].judges and (leaf, text) not in PAYS_WITHOUT_AN_ANSWER:
            assert verdict.reward <= 0, text


@pytest.mark.parametrize("leaf", plugins.shelf("algorithms"))
def test_an_algorithm_leaf_keeps_its_contract(leaf: str) -> None:
    kind = find(leaf)
    assert sys.modules[kind.__module__].__doc__
    assert kind.__dataclass_params__.frozen
    assert len(kind.__mro__) <= 4, "an algorithm is at most two steps from its base"
    kind()
