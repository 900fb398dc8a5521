"""A mistake in a prompt, a task or an algorithm of one's own is told by name, before anything is read or sampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from qed.config.plugins import load_algorithm
from qed.data.prompts.base import load_leaf, render_prompt
from qed.data.prompts.demonstrations import find_demonstration
from qed.data.tasks import load_task, suggest_prompt
from qed.errors import UsageError
from qed.types import Problem

PROMPT = """
STOP = ("</final>",)
REWARD = "accuracy"
CHAT = False
OPENS = ("<reason>",)
TAGS = ("<reason>", "</reason>", "<final>", "</final>")
def render(problem, tokenizer):
    return f"Q: {problem.question} A: <reason>"
def demonstration(problem):
    return f"<reason>{problem.solution}</reason><final>{problem.answer}</final>"
"""
TASK = """
from qed.types import Problem
SPLITS = ("train",)
PROMPT = "r1_zero"
def load(split):
    return [Problem(str(number), f"What is {number} + 1?", str(number + 1)) for number in range(9)]
"""
Write = Callable[[str, str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file in which one text stands for another one, and returns its path."""

    def write_file(text: str, old: str, new: str) -> str:
        assert old in text
        (tmp_path / "mine.py").write_text(text.replace(old, new), encoding="utf-8")
        return str(tmp_path / "mine.py")

    return write_file


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('("</final>",)', '"</final>"', r"STOP of the prompt .* must be a tuple of strings"),
        ('("<reason>",)', '"<reason>"', r"OPENS of the prompt .* must be a tuple of strings"),
        ('"<final>", "</final>")', '"<final>")', r"TAGS of the prompt .* not 3"),
        ('STOP = ("</final>",)', "", r"has no STOP\. It needs STOP, a tuple"),
        ("def demonstration", "def demo", r"has no demonstration\. It needs def demonstration\(problem\)"),
        ("problem, tokenizer", "problem", r"render\(problem\) is called with the arguments \(problem, tokenizer\)"),
    ],
)
def test_a_prompt_that_would_be_misread_is_refused(write: Write, old: str, new: str, words: str) -> None:
    load_leaf(write(PROMPT, "Q:", "Q:"))
    with pytest.raises(UsageError, match=words):
        load_leaf(write(PROMPT, old, new))


def test_a_prompt_writes_texts(write: Write) -> None:
    leaf = load_leaf(write(PROMPT, "return f", "f"))
    with pytest.raises(UsageError, match="render returned NoneType; it must return a string"):
        render_prompt(leaf, Problem("1", "1+1?", "2", "one and one"), None)
    assert find_demonstration(leaf, Problem("1", "1+1?", "2", "one and one")) is None
    leaf.demonstration = lambda problem: 3
    with pytest.raises(UsageError, match="demonstration returned int; it must return a string"):
        find_demonstration(leaf, Problem("1", "1+1?", "2", "one and one"))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("str(number + 1)", "number + 1", r"the answer of problem 0 must be a string, not 1"),
        ("Problem(str(number)", 'Problem("same"', r"two questions have the id 'same'"),
        ("return [Problem", "return [{}] or [Problem", r"problem 0 has the type dict; load must return problems"),
        ("return [", "[", r"must return a list of problems, not NoneType"),
        ("load(split)", "load()", r"load\(\) is called with the arguments \(split\)"),
        ("def load", "def read_it", r"load must be a function \(split\), not None"),
    ],
)
def test_a_task_returns_problems(write: Write, old: str, new: str, words: str) -> None:
    assert len(load_task(write(TASK, "return [", "return ["), "train", {})) == 9
    with pytest.raises(UsageError, match=words):
        load_task(write(TASK, old, new), "train", {})


def test_a_task_may_yield_its_problems_and_names_a_prompt(write: Write) -> None:
    path = write(TASK, "range(9)]", "range(9))")
    path = write(Path(path).read_text(encoding="utf-8"), "return [", "return (")
    assert len(load_task(path, "train", {})) == 9
    with pytest.raises(UsageError, match=r"defines no prompt\. Add PROMPT = "):
        suggest_prompt(write(TASK, "PROMPT = ", "OTHER = "))


def test_a_method_takes_what_it_is_called_with(write: Write) -> None:
    head = "from dataclasses import dataclass\nfrom qed.algorithms.grpo import Grpo\n@dataclass(frozen=True)\n"
    body = "class Mine(Grpo):\n    def advantages(self, rewards):\n        return rewards\n"
    load_algorithm(write(head + body, "Mine", "Mine"))
    words = r"Mine\.advantages\(self, rewards, more\) is called with the arguments \(self, rewards\): missing"
    with pytest.raises(UsageError, match=words):
        load_algorithm(write(head + body, "rewards):", "rewards, more):"))
