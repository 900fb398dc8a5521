"""A mistake in an environment of one's own ends the run with its name, the file and line, and what is expected."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from qed.data.prompts.in_environment import PromptInEnvironment
from qed.environments.base import Environment, Reply, State, load_environment
from qed.environments.calls import ask_replies
from qed.errors import UsageError
from qed.rollout.turns import TurnGrader
from qed.types import Grade, Problem, Rollout

PROBLEM = Problem("p", "How many?", "1")
GRADE = Grade(1.0, True, True, None)
HEAD = """import json
from dataclasses import dataclass, replace
from qed.environments.base import Environment, Reply


@dataclass(frozen=True)
class Own(Environment):
    max_turns: int = 2

    def step(self, state):
        return Reply("again", message=True)

"""
LINE = HEAD.count("\n") + 1  # of the method that follows


def load(folder: Path, method: str) -> Environment:
    file = folder / "own.py"
    file.write_text(f"{HEAD}{method}\n\nenvironment = Own()\n", encoding="utf-8")
    return load_environment(str(file))


def start(environment: Environment) -> str:
    leaf = SimpleNamespace(render=lambda problem, _: problem.question)
    return PromptInEnvironment(leaf, environment).render(PROBLEM, None)


def step(environment: Environment) -> list[Reply | None]:
    return ask_replies(environment, [State(PROBLEM, ("one",)), State(PROBLEM, ("two",))])


def finish(environment: Environment) -> Grade:
    grader: Any = lambda groups: [[GRADE] for _ in groups]  # noqa: E731
    ((grade,),) = TurnGrader(grader, environment)([[Rollout(PROBLEM, (), (), (), "", "stop", turn_rewards=(0.5,))]])
    return grade


FAULTS: dict[str, tuple[Callable[[Environment], Any], str, int, str]] = {
    # what is asked, the method, how far behind its first line the fault is, and what the message says
    "start fails": (
        start,
        "def start(self, problem):\n        raise KeyError('topic')",
        1,
        "failed with KeyError: 'topic'",
    ),
    "a generator fails": (start, "def start(self, problem):\n        yield 1 / 0", 1, "failed with ZeroDivisionError"),
    "a text": (start, "def start(self, problem):\n        return 'Hello'", 0, "start must return a list of.* not str"),
    "nothing": (start, "def start(self, problem):\n        pass", 0, "start must return a list of .* not None"),
    "texts": (start, "def start(self, problem):\n        return ['Hello']", 0, "start must return .* a list with str"),
    "no content": (start, "def start(self, problem):\n        return [{'role': 'user'}]", 0, "a list with dict"),
    "in a library": (step, "def step(self, state):\n        return json.loads('{')", 1, "failed with JSONDecodeError"),
    "a number": (step, "def step(self, state):\n        return Reply(42)", 1, "text of a Reply must be a str, not 42"),
    "a text as reward": (
        step,
        "def step(self, state):\n        return Reply('no',\n            reward='0.5')",
        1,
        "TypeError: the reward of a Reply must be a number, not '0.5'",
    ),
    "NaN": (
        step,
        "def step(self, state):\n        return Reply('a', reward=float('nan'))",
        1,
        "must be finite, not nan",
    ),
    "no reward": (step, "def step(self, state):\n        return Reply('a', reward=None)", 1, "a number, not None"),
    "several": (
        step,
        "def step(self, state):\n        import torch\n        return Reply('a', reward=torch.ones(2))",
        2,
        "failed with",
    ),
    "no reply": (
        step,
        "def step(self, state):\n        return 'again'",
        0,
        "step must return a Reply or None .*not str",
    ),
    "an empty reply": (step, "def step(self, state):\n        return Reply('')", 0, "a Reply without text; None ends"),
    "too few": (step, "def reply(self, states):\n        return [None]", 0, "there are 2 answers, and it returned 1"),
    "no list": (step, "def reply(self, states):\n        pass", 0, "reply must return a Reply .* not None"),
    "finish fails": (
        finish,
        "def finish(self, grade, rewards):\n        return 1 / 0",
        1,
        "failed with ZeroDivisionError",
    ),
    "no return": (
        finish,
        "def finish(self, grade, rewards):\n        grade.reward",
        0,
        "finish must return a Grade.*not None",
    ),
    "a reward": (
        finish,
        "def finish(self, grade, rewards):\n        return grade.reward",
        0,
        "must return a Grade.*not float",
    ),
    "a wrong grade": (
        finish,
        "def finish(self, grade, rewards):\n        return replace(grade, reward='1')",
        0,
        "finish is wrong: it returned a Grade with reward='1'; reward and all parts must be numbers",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_by_the_users_line(name: str, tmp_path: Path) -> None:
    ask, method, behind, message = FAULTS[name]
    environment = load(tmp_path, f"    {method}")
    place = rf"\(line {LINE + behind} of {re.escape(str(tmp_path / 'own.py'))}\)\.$"
    with pytest.raises(UsageError, match=rf"^The environment Own\b.*{message}.*{place}"):
        ask(environment)


@pytest.mark.parametrize("reward", [1, True, np.float32(0.5), np.int64(2), torch.tensor(0.25), torch.tensor([3])])
def test_any_number_is_a_reward(reward: Any) -> None:
    found = Reply("again", reward=reward).reward
    assert type(found) is float
    assert found == float(reward)


def test_a_grades_number_of_numpy_is_one(tmp_path: Path) -> None:
    body = "import numpy\n        return replace(grade, reward=numpy.float32(2))"
    reward = finish(load(tmp_path, f"    def finish(self, grade, rewards):\n        {body}")).reward
    assert type(reward) is float
    assert reward == 2.0


def test_half_a_letter_is_replaced(tmp_path: Path) -> None:
    """No tokenizer takes one."""
    environment = load(tmp_path, "    def start(self, problem):\n        return [{'content': 'a\\ud800b'}]")
    assert start(environment) == Reply("a\ud800b").text == "a?b"


def test_what_is_right_stays_as_it_is(tmp_path: Path) -> None:
    environment = load(tmp_path, "    def start(self, problem):\n        yield {'content': problem.question * 2}")
    assert start(environment) == PROBLEM.question * 2
    assert step(environment) == [Reply("again", message=True)] * 2
    assert finish(environment).reward == 1.5


@pytest.mark.parametrize(
    "line",
    [
        'stop = "</a>"',
        'stop = ("",)',
        "stop = (1,)",
        'reply_tags = "ab"',
        'reply_tags = ("<a>",)',
        "reply_tags = ()",
        "stop = None",
    ],
)
def test_texts_of_a_class_are_whole(tmp_path: Path, line: str) -> None:
    """A text in place of a tuple would end a turn at each of its letters."""
    with pytest.raises(UsageError, match=f"{line.split()[0]} must be a tuple of texts, as "):
        load(tmp_path, f"    {line}")
    load(tmp_path, '    stop = ["</a>"]\n    reply_tags = "<b>", "</b>"')
