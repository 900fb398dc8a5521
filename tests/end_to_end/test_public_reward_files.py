"""Reward files with the shapes of those that TRL, open-r1, verl, OpenRLHF, ms-swift and notebooks publish."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.data.tools.load import load_data
from qed.errors import UsageError
from qed.rewards.base import load_reward
from qed.rewards.forms.calling import wait_for
from qed.rewards.grader import Pool, make_grader
from qed.rewards.handed import explain_functions
from qed.types import Problem, Rollout


def group(*texts: str, answer: str = "12", solution: str = "", **meta: Any) -> list[Rollout]:
    problem = Problem("p", "5+7=", answer, solution, meta)
    return [Rollout(problem, (), (5,) * len(text), (), text, "stop", prompt_text="Q: 5+7=<think>") for text in texts]


def written(path: Path, code: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code)
    return str(path)


def rewards(*names: str, options: tuple[str, ...] = (), given: list[Rollout] | None = None) -> list[float]:
    graded = load_reward(names, options, 100).grade(given or group("<think>12", "13"))
    return [grade.reward for grade in graded]


PAY = "def {name}(completions, **columns):\n    return [float('12' in text) for text in completions]\n"


def test_a_file_in_a_package_with_relative_imports(tmp_path: Path) -> None:
    """The packages' own files are not run: those of large libraries import what one file does not need."""
    written(tmp_path / "pkg" / "__init__.py", "import a_package_that_is_missing\n")
    written(tmp_path / "pkg" / "checks.py", "def is_there():\n    return True\n")
    written(tmp_path / "pkg" / "utils" / "__init__.py", "LIMIT = 1\n")
    written(tmp_path / "pkg" / "utils" / "text.py", "def has(text):\n    return '12' in text\n")
    written(tmp_path / "pkg" / "rewards" / "__init__.py", "import a_package_that_is_missing\n")
    code = "from ..checks import is_there\nfrom ..utils import LIMIT\nfrom pkg.utils.text import has\n"
    code += "def pay(completions, **columns):\n    return [float(has(text) and is_there()) for text in completions]\n"
    assert rewards(written(tmp_path / "pkg" / "rewards" / "accuracy.py", code)) == [1.0, 0.0]


def test_two_packages_of_one_name(tmp_path: Path) -> None:
    for folder, value in (("one", 1.0), ("two", 2.0)):
        written(tmp_path / folder / "same" / "__init__.py", "")
        written(tmp_path / folder / "same" / "value.py", f"VALUE = {value}\n")
        code = "from .value import VALUE\ndef pay(completions, **columns):\n    return [VALUE for _ in completions]\n"
        assert rewards(written(tmp_path / folder / "same" / "mine.py", code)) == [value, value]


def test_a_file_imports_its_neighbour(tmp_path: Path) -> None:
    written(tmp_path / "neighbour_of_a_reward.py", "def has(text):\n    return '12' in text\n")
    code = "from neighbour_of_a_reward import has\n"
    code += "def pay(completions, **columns):\n    return [float(has(text)) for text in completions]\n"
    assert rewards(written(tmp_path / "mine.py", code)) == [1.0, 0.0]


def test_a_re_export_counts_where_a_file_has_no_reward_of_its_own(tmp_path: Path) -> None:
    written(tmp_path / "library_of_rewards.py", PAY.format(name="accuracy_reward"))
    alone = written(tmp_path / "alone.py", "from library_of_rewards import accuracy_reward\n")
    assert [part.name for part in load_reward([alone]).parts] == ["accuracy_reward"]
    used = "from library_of_rewards import accuracy_reward\n"
    used += "def mine(completions, **columns):\n    return [2 * one for one in accuracy_reward(completions)]\n"
    assert [part.name for part in load_reward([written(tmp_path / "used.py", used)]).parts] == ["mine"]


FACTORY = """
def get_overlong(max_len: int, cache=2):
    def overlong_reward(completion_ids, **columns):
        return [-float(len(ids) > max_len - cache) for ids in completion_ids]
    return overlong_reward

short = get_overlong(4)
long = get_overlong(100)
"""


def test_closures_have_the_names_that_the_file_gives_them(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", FACTORY)
    assert [part.name for part in load_reward([path]).parts] == ["short", "long"]
    assert rewards(f"{path}:short", given=group("<think>12", "1")) == [-1.0, 0.0]


def test_a_factory_is_called_with_its_options(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", FACTORY)
    assert rewards(f"{path}:get_overlong", options=("get_overlong.max_len=6",)) == [-1.0, 0.0]
    with pytest.raises(UsageError, match=r"give its arguments: --data\.reward_options get_overlong\.max_len=VALUE"):
        load_reward([f"{path}:get_overlong"])


def test_a_function_takes_options_for_its_parameters(tmp_path: Path) -> None:
    code = "def compute_score(solution_str, ground_truth, score=1.0, strict=True):\n"
    path = written(tmp_path / "mine.py", code + "    return score if ground_truth in solution_str else 0.0\n")
    assert rewards(f"{path}:compute_score", options=("compute_score.score=3",)) == [3.0, 0.0]
    with pytest.raises(UsageError, match="has no setting 'scoer'"):
        load_reward([f"{path}:compute_score"], ["compute_score.scoer=3"])


OBJECTS = """
import functools

def _scaled(completions, scale, **columns):
    return [scale for _ in completions]

doubled = functools.partial(_scaled, scale=2.0)

class Base:
    def __call__(self, **columns):
        raise NotImplementedError

class Format(Base):
    def __init__(self, args=None, **more):
        self.value = 3.0

    def __call__(self, completions, solution, **columns):
        return [self.value for _ in completions]

class Named:
    def __call__(self, completions, **columns):
        return [4.0 for _ in completions]

named = Named()
"""


def test_partials_objects_and_classes(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", OBJECTS)
    assert {part.name for part in load_reward([path]).parts} == {"doubled", "Format", "Named", "named"}
    assert rewards(f"{path}:doubled", f"{path}:Format", f"{path}:named") == [9.0, 9.0]


ASYNC = """
import asyncio

running = 0
most = 0

async def _wait():
    global running, most
    running += 1
    most = max(most, running)
    await asyncio.sleep(0.02)
    running -= 1

async def first(completions, **columns):
    await _wait()
    return [float(most) for _ in completions]

async def second(prompts, completions, answer, **columns):
    await _wait()
    return [float(most) if gold in text else None for text, gold in zip(completions, answer)]
"""


def test_async_functions_are_awaited_together(tmp_path: Path) -> None:
    assert rewards(written(tmp_path / "mine.py", ASYNC)) == [4.0, 2.0]
    code = (
        "import asyncio\nrunning = 0\nasync def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
    )
    code += "    global running\n    running += 1\n    await asyncio.sleep(0.02)\n    return running\n"
    path = written(tmp_path / "verl.py", code)
    assert load_reward([path]).batched
    assert rewards(path) == [2.0, 2.0]


def test_async_functions_run_inside_an_event_loop_too() -> None:
    async def later() -> int:
        return 1

    async def outer() -> list[int]:
        return wait_for([later(), 2])

    assert asyncio.run(outer()) == [1, 2]


@pytest.mark.parametrize(
    ("head", "body"),
    [
        ("compute_score(model_output, ground_truth, timeout_score=0)", "float(ground_truth in model_output)"),
        ("compute_score(predict_str, ground_truth, format_score=0.1)", "float(ground_truth in predict_str)"),
        ("compute_score(prompt, predict_str, ground_truth)", "float(ground_truth in predict_str and len(prompt) > 0)"),
        ("compute_score(solution_str, ground_truth)", "(ground_truth in solution_str, 'more')"),
        (
            "compute_score(solution_str, ground_truth)",
            "{'score': float(ground_truth in solution_str), 'of_steps': __import__('numpy').ones(3)}",
        ),
        ("compute_score(reward_input)", "{'overall': float(reward_input['ground_truth'] in reward_input['response'])}"),
        (
            "compute_score(data_sources, solution_strs, ground_truths, extra_infos, **more)",
            "[{'score': float(gold in text)} for text, gold in zip(solution_strs, ground_truths)]",
        ),
        (
            "compute_score(predicts, ground_truths, format_weight=0.1)",
            "[{'overall': float(gold in text), 'format': 1.0} for text, gold in zip(predicts, ground_truths)]",
        ),
        ("compute_score(reward_inputs)", "[{'overall': float('12' in one['response'])} for one in reward_inputs]"),
    ],
)  # fmt: skip
def test_verl_and_its_relatives(tmp_path: Path, head: str, body: str) -> None:
    path = written(tmp_path / "mine.py", f"def {head}:\n    return {body}\n")
    assert rewards(path) == [1.0, 0.0]


def test_a_gold_that_is_a_dict(tmp_path: Path) -> None:
    row = '{"data_source": "countdown", "prompt": [{"role": "user", "content": "Make 24."}], "reward_model": '
    row += '{"style": "rule", "ground_truth": {"target": 24, "numbers": [4, 6]}}}\n'
    (problem,) = load_data(written(tmp_path / "train.jsonl", row), {}).problems
    assert problem.answer == "24"
    code = "def compute_score(solution_str, ground_truth):\n    return float(ground_truth['numbers'] == [4, 6])\n"
    rollout = Rollout(problem, (), (), (), "4*6", "stop")
    assert rewards(written(tmp_path / "mine.py", code), given=[rollout]) == [1.0]


@pytest.mark.parametrize(
    ("logged", "parts"),
    [
        ("torch.ones(2)", {"length": 1.0}),
        ("torch.tensor(1.0)", {"length": 1.0}),
        ("1", {"length": 1.0}),
        ("[1.0]", {}),
        ("torch.ones(3)", {}),
        ("torch.ones(2, 3)", {}),
        ("'ab'", {}),
    ],
)
def test_openrlhf(tmp_path: Path, logged: str, parts: dict[str, float]) -> None:
    """What a function logs is a number per answer, or one for all; anything else is left out and spoils no reward."""
    code = "import torch\ndef reward_func(queries, prompts, labels, **more):\n"
    code += "    scores = [float(query == prompt + '<think></think>12') for query, prompt in zip(queries, prompts)]\n"
    code += "    logs = {'length': " + logged + "}\n"
    code += "    return {'rewards': torch.tensor(scores), 'scores': scores, 'extra_logs': logs}\n"
    right, wrong = load_reward([written(tmp_path / "mine.py", code)]).grade(group("<think></think>12", "13"))
    assert (right.reward, wrong.reward, right.correct, right.parts) == (1.0, 0.0, True, parts)


@pytest.mark.parametrize("name", ["target", "gold", "answers", "ground_truths", "label", "reference_answer"])
def test_a_trl_function_gets_the_answer_under_the_name_it_asks_for(tmp_path: Path, name: str) -> None:
    code = f"def pay(completions, {name}):\n"
    code += f"    return [float(gold in text) for text, gold in zip(completions, {name})]\n"
    path = written(tmp_path / "mine.py", code)
    assert rewards(path) == [1.0, 0.0]
    assert rewards(path, given=group("<think>12", "13", **{name: "13"})) == [0.0, 1.0]


SOLUTION = (
    "{}\ndef pay(completions, solution, **columns):\n    print(solution[0])\n    return [0.0 for _ in completions]\n"
)


@pytest.mark.parametrize(
    ("code", "worked", "handed"),
    [
        ("", "We add 5 and 7.", "12"),
        ("", "We add 5 and 7 and get \\boxed{12}.", "We add 5 and 7 and get \\boxed{12}."),
        ("", "", "12"),
        ("from math_verify import parse", "We add 5 and 7.", "\\boxed{12}"),
        ("from math_verify import parse", "5+7=12, so 12", "\\boxed{12}"),
        ("from math_verify import parse", "It is $\\boxed{12}$.", "It is $\\boxed{12}$."),
    ],
)
def test_a_worked_solution_without_a_readable_answer_is_replaced_by_the_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, worked: str, handed: str
) -> None:
    """From `We add 5 and 7.` TRL's accuracy_reward would read 7 as the gold."""
    rewards(written(tmp_path / "mine.py", SOLUTION.format(code)), given=group("12", solution=worked))
    assert capsys.readouterr().out.strip() == handed


def test_completions_that_are_messages_are_told(tmp_path: Path) -> None:
    path = written(tmp_path / "mine.py", PAY.format(name="first"))
    grader = make_grader([path], conversational=True, pool=Pool(1))
    try:
        (line,) = explain_functions(grader.functions, [group("12")[0].problem])
        assert line.startswith("The reward first (TRL) gets each completion as a list of messages")
    finally:
        grader.close()


def test_which_rewards_and_golds_are_told(tmp_path: Path) -> None:
    code = PAY.format(name="first") + "def second(completions, solution, level):\n    return level\n"
    path = written(tmp_path / "mine.py", code)
    grader = make_grader([path], pool=Pool(1))
    try:
        (rollout,) = group("12", level=3)
        lines = explain_functions(grader.functions, [rollout.problem])
        assert lines == [
            f"{path} has 2 rewards, and all are summed: first, second. To use only one, write {path}:first.",
            "The reward second (TRL) receives as the correct answer of the first problem: solution = 12",
        ]
        (other,) = group("12", levle=3)
        with pytest.raises(UsageError, match=r"second needs 'level', which the data does not have\. Did you mean 'lev"):
            explain_functions(grader.functions, [other.problem])
    finally:
        grader.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import json.other\n", "the package json has no module other"),
        ("import qed.reward\n", "the package qed has no module reward"),
        ("import sklearn_that_is_missing\n", "needs the package sklearn_that_is_missing, which is not installed: pip"),
        ("from .sibling import x\n", "cannot be imported: ImportError: attempted relative import"),
        ("def pay(completions:\n", "mine.py, line 1:"),
        ("def get_reward(ngram):\n    return None\n", "If one of its functions returns a reward, choose it: FILE:get_"),
        ("def b(x, y):\n    return 1.0\ndef a(x, y):\n    return 0.0\n", "choose it: FILE:b or FILE:a."),
    ],
)
def test_what_a_file_lacks_is_said(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_reward([written(tmp_path / "mine.py", code)])
    assert words in str(refused.value)


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves one of its name in the working directory."""
    (tmp_path / "wandb_that_is_missing").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="needs the package wandb_that_is_missing, which is not installed"):
        load_reward([written(tmp_path / "mine.py", "import wandb_that_is_missing.sdk\n")])


def test_a_module_and_its_function_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    written(tmp_path / "package_of_rewards" / "__init__.py", "")
    written(tmp_path / "package_of_rewards" / "math.py", PAY.format(name="accuracy"))
    assert rewards("package_of_rewards.math:accuracy") == [1.0, 0.0]
    with pytest.raises(UsageError, match=r"write package_of_rewards\.math:accuracy"):
        load_reward(["package_of_rewards.math.accuracy"])


def test_a_run_tells_which_gold_a_function_gets(qed: Callable[..., Any], tmp_path: Path) -> None:
    code = "def check_answer(prompts, completions, answer, **kwargs):\n    return [0.0 for _ in completions]\n"
    mine = written(tmp_path / "mine.py", code)
    done = qed("grpo", "--reward", mine, "--dry-run")
    assert "The reward check_answer (TRL) receives as the correct answer of the first problem: answer = " in done.out
