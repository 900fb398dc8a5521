"""The plan of the house, held by tests: imports go down, foreign libraries have one room each, rooms stay small."""

from __future__ import annotations

import ast
import dataclasses
import math
import re
import subprocess
import sys
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import qed
from qed.config import plugins
from qed.config.plugins import load_algorithm
from qed.rewards import base as rewards
from qed.types import Problem, Rollout

HOME = Path(qed.__file__).parent
FILES = sorted(HOME.rglob("*.py"))
MODULES = {".".join(["qed", *path.relative_to(HOME).with_suffix("").parts]).removesuffix(".__init__") for path in FILES}

# Law 5: a package imports from itself and from those before it.
ORDER = [
    "types",
    "errors",
    "randomness",
    "host",
    "net",
    "guards",
    "kernels",
    "config",
    "runs",
    "console",
    "models",
    "grading",
    "rewards",
    "algorithms",
    "environments",
    "data",
    "sampling",
    "training",
    "rollout",
    "evaluation",
    "report",
    "trackers",
    "viewer",
    "serving",
    "loops",
    "cluster",
    "doctor",
    "cli",
    "api",
]
ROOT_MODULES = {"__init__", "__main__", "types", "errors", "randomness", "host"}
# Law 6: who may import a foreign library. Everything else runs without it.
ROOMS = {
    "latex2mathml": ["report/formulas.py"],
    "math_verify": ["grading/symbolic.py"],
    "sympy": [],
    "mpmath": ["grading/"],
    "regex": ["grading/extraction/patterns.py"],
    "vllm": [],
    "triton": ["kernels/cuda/"],
    "ray": ["cluster/"],
    "wandb": ["trackers/wandb.py"],
    "tensorboard": ["trackers/tensorboard.py"],
    "trackio": ["trackers/trackio.py"],
    "datasets": ["data/"],
    "huggingface_hub": ["data/sources/hub.py", "models/push.py"],
    "reasoning_gym": ["data/tasks/reasoning_gym.py"],
    "peft": ["models/lora.py", "models/adapters.py", "models/adapted_layer.py"],
    "bitsandbytes": ["training/optim.py", "models/qlora.py"],
    "yaml": ["config/", "report/", "trackers/follow.py"],
    "transformers": ["training/attention.py", "models/", "sampling/"],
    "tokenizers": ["models/"],
    "safetensors": ["training/export.py", "training/slices.py", "models/"],
    "zstandard": ["runs/", "data/sources/texts.py"],
    "rich": ["console/"],
    "IPython": ["console/"],
    "pandas": ["api/"],
    "starlette": ["net/", "viewer/", "serving/"],
    "uvicorn": ["net/", "viewer/", "serving/"],
}

# The packages of which `qed ... --help` imports nothing.
WORK = ("models", "rewards", "sampling", "training", "rollout", "report", "viewer", "loops", "doctor", "api")


def name(path: Path) -> str:
    return path.relative_to(HOME).as_posix()


def room(path: Path) -> str:
    return name(path).split("/")[0].removesuffix(".py")


def dotted(path: Path) -> str:
    return ".".join(["qed", *path.relative_to(HOME).with_suffix("").parts]).removesuffix(".__init__")


@cache
def imports(path: Path) -> AbstractSet[str]:
    """The modules that a file imports when it runs; those for type checkers alone do not count."""
    return frozenset(_find_imports(path))


def _find_imports(path: Path) -> Iterator[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    checked = {
        inner
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in nodes:
        if node in checked:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from qed.data import tasks` imports the module qed.data.tasks, `from qed.types import Problem` qed.types.
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else node.module


def test_the_root_holds_words_alone() -> None:
    assert {path.stem for path in HOME.glob("*.py")} <= ROOT_MODULES
    assert {path.name for path in HOME.iterdir() if path.is_dir() and any(path.glob("*.py"))} <= set(ORDER)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_go_down(path: Path) -> None:
    if room(path) in {"__init__", "__main__"}:
        return
    before = ORDER[: ORDER.index(room(path)) + 1]
    for module in imports(path):
        if module.startswith("qed."):
            assert module.split(".")[1] in before, f"{name(path)} imports {module}, which comes later"


def test_modules_form_no_circle() -> None:
    graph = {dotted(path): {module for module in imports(path) if module.startswith("qed.")} for path in FILES}
    graph = {module: {known for known in found if known in graph} for module, found in graph.items()}
    assert tuple(TopologicalSorter(graph).static_order())


def test_algorithms_import_each_other_in_one_direction() -> None:
    """Those for type checkers count too: a helper takes its own settings, and not those of the whole algorithm."""
    files = {f"qed.{name(path).removesuffix('.py').replace('/', '.')}": path for path in FILES}
    known = {
        module: {
            inner
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module
            for inner in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names))
            if inner in files and inner.startswith("qed.algorithms.")
        }
        for module, path in files.items()
        if module.startswith("qed.algorithms.")
    }
    while free := {module for module, needs in known.items() if not needs & set(known)}:
        known = {module: needs for module, needs in known.items() if module not in free}
    assert not known, f"these import each other in a circle, or what does: {sorted(known)}"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_a_foreign_library_has_one_room(path: Path) -> None:
    for module in imports(path):
        rooms = ROOMS.get(module.split(".")[0])
        if rooms is not None:
            assert any(name(path).startswith(allowed) for allowed in rooms), f"{name(path)} imports {module}"


def test_several_ranks_have_one_room() -> None:
    """Loops, algorithms and samplers do not know torch.distributed."""
    found = {name(path) for path in FILES if any(module.startswith("torch.distributed") for module in imports(path))}
    assert found == {"training/joining.py", "training/parallel.py", "training/slices.py"}


@pytest.mark.parametrize("path", FILES, ids=name)
def test_rooms_are_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= 350, f"{name(path)} has outgrown its room: split it"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno <= 50, f"{name(path)}: {node.name} is too long"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_no_file_evaluates_text(path: Path) -> None:
    """Nothing a model wrote can become code, but in the sealed child of the Python tool, and nothing is pickled."""
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
            assert called != "FunctionType" or name(path) == "environments/python_child.py"


def test_help_imports_nothing_heavy() -> None:
    """What takes long to import is imported once a command is known to be valid: help and mistakes appear at once."""
    ours = {f"qed.{room}" for room in WORK}
    heavy = {*ROOMS, "torch", "numpy", "pyarrow", "scipy", "accelerate", "jinja2", "httpx", "asyncio"} - {"yaml"}
    commands = [name.replace("_", "-") for name in (*plugins.list_leaves("commands"), "grpo", "pipeline")]
    calls = [["--help"], ["grpo", "--lr", "fast"], *([command, "--help"] for command in commands)]
    code = (
        "import sys\nfrom contextlib import redirect_stdout, suppress\nfrom io import StringIO\n"
        "from qed.cli.main import main\n"
        f"for call in {calls!r}:\n    with suppress(SystemExit), redirect_stdout(StringIO()):\n        main(call)\n"
        "    loaded = {'.'.join(name.split('.')[:n]) for name in sys.modules for n in (1, 2)}\n"
        f"    print(call, sorted({heavy | ours!r} & loaded))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{call} []" for call in calls]


def test_the_doctor_tells_of_versions_and_disk_where_torch_is_broken() -> None:
    reached, ahead = set(), {"qed.doctor.surroundings"}
    while ahead:
        module = ahead.pop()
        reached.add(module)
        ahead |= {inner for path in FILES if dotted(path) == module for inner in imports(path)} - reached
    assert "qed.host" in reached
    assert "torch" not in {module.split(".")[0] for module in reached}


# Law 1: one stage writes each of these fields, and no other code assigns to it.
WRITERS = {
    "grade": "rollout/stages.py",
    "advantage": "rollout/stages.py",
    "old_logps": "training/learner.py",
    "ref_logps": "training/learner.py",
    "values": "training/critic.py",
    "returns": "rollout/stages.py",
}


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


@pytest.mark.parametrize("path", [path for path in FILES if room(path) == "report"], ids=name)
def test_pages_read_run_folders_only(path: Path) -> None:
    """Law 8: what they say of a run they have from its folder; the arithmetic of its figures is the evaluation's."""
    allowed = {"runs", "evaluation", "errors", "report", "guards"}
    for module in imports(path):
        assert not module.startswith("qed.") or module.split(".")[1] in allowed, f"{name(path)}: {module}"


def test_the_learner_names_no_algorithm() -> None:
    text = (HOME / "training" / "learner.py").read_text(encoding="utf-8").lower()
    for leaf in plugins.list_leaves("algorithms"):
        assert not re.search(rf"\b{leaf}\b", text), leaf


def test_the_loop_knows_no_task() -> None:
    """Nothing outside of the shelves names the built-in default, but the settings whose default it is."""
    for path in FILES:
        if room(path) not in {"data", "rewards", "config"}:
            words = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
            assert not words & {"arithmetic", "think_answer"}, name(path)


@pytest.mark.parametrize("leaf", plugins.list_leaves("tasks"))
def test_a_task_leaf_keeps_its_contract(leaf: str) -> None:
    module = plugins.load_leaf("tasks", leaf)
    assert module.__doc__
    assert module.PROMPT in plugins.list_leaves("prompts")
    assert callable(module.load)


@pytest.mark.parametrize("leaf", plugins.list_leaves("prompts"))
def test_a_prompt_leaf_keeps_its_contract(leaf: str) -> None:
    module = plugins.load_leaf("prompts", leaf)
    assert module.__doc__
    assert module.REWARD in plugins.list_leaves("rewards")
    assert isinstance(module.CHAT, bool)
    assert isinstance(module.STOP, tuple)
    assert callable(module.render)
    assert callable(module.demonstration)


def test_every_reward_stands_in_the_table() -> None:
    table = (HOME.parent / "docs" / "rewards.md").read_text(encoding="utf-8")
    for leaf in plugins.list_leaves("rewards"):
        settings = plugins.load_leaf("rewards", leaf).reward
        fields = [field.name for field in dataclasses.fields(settings)] if dataclasses.is_dataclass(settings) else []
        (row,) = (line for line in table.splitlines() if line.startswith(f"| `{leaf}` |"))
        for field in fields:
            assert f"`{field}" in row, f"{leaf}.{field} is missing in docs/rewards.md"


LOCAL_REWARDS = sorted(set(plugins.list_leaves("rewards")) - {"http", "model"})  # which need a server, and a model
HOSTILE_TEXTS = ("", "<answer>", "</answer><answer>", "\\boxed{", "\ud800", "1" * 5000, "<think>" * 900)
# Its integer part pays for any row of digits, because without tags the whole text counts as the answer.
PAYS_WITHOUT_AN_ANSWER = {("gsm8k_xml", "1" * 5000)}


@pytest.mark.parametrize("leaf", LOCAL_REWARDS)
def test_a_reward_leaf_keeps_its_contract(leaf: str) -> None:
    """Any text gets a finite grade, empty, broken or hostile; none of these is right, and a judge pays for none."""
    assert plugins.load_leaf("rewards", leaf).__doc__
    reward = rewards.load_reward([leaf], max_tokens=100)
    for text in HOSTILE_TEXTS:
        (verdict,) = reward.grade([Rollout(Problem("p", "?", "1"), (), (), (), text, "stop")])
        assert not verdict.correct
        assert math.isfinite(verdict.reward)
        if reward.parts[0].judges and (leaf, text) not in PAYS_WITHOUT_AN_ANSWER:
            assert verdict.reward <= 0, text


@pytest.mark.parametrize("leaf", plugins.list_leaves("algorithms"))
def test_an_algorithm_leaf_keeps_its_contract(leaf: str) -> None:
    kind = load_algorithm(leaf)
    assert sys.modules[kind.__module__].__doc__
    assert kind.__dataclass_params__.frozen
    assert len(kind.__mro__) <= 4, "an algorithm is at most two steps from its base"
    kind()
