"""The named policies: what each accepts, what none does, and where it is recorded."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from qed.cli.commands import compare, evaluate, grade
from qed.errors import UsageError
from qed.evaluation.stored import Scoring, score_responses
from qed.grading.equal import equal
from qed.grading.policy import MATH, NAMES, STRICT, Policy, find_policy
from qed.rewards.base import load_reward
from qed.rewards.policies import add_policy
from qed.types import Problem, Rollout


@pytest.mark.parametrize(
    ("gold", "answer", "math", "qwen", "strict"),
    [
        ("0.25", "25", False, True, False),
        ("25", "0.25", False, True, False),
        ("25", "2500", False, True, False),
        ("-3", "-300", False, True, False),
        (r"20\%", "2000", False, True, False),
        (r"20\%", "0.2", True, True, True),
        ("20", "20%", True, True, False),
        (r"\pi", "3.1416", False, True, False),
        (r"\pi", "3.14", False, False, False),
        (r"\frac13", "0.3333", False, True, False),
        (r"\frac13", "0.333", False, False, False),
        (r"\frac13", "33.33", False, False, False),
        (r"\frac12", "50", False, False, False),
        (r"\sqrt2", "1.4142", False, True, False),
        ("5", "5.0005", False, True, False),
        ("5", "5.001", False, False, False),
        ("0", "0.00001", False, False, False),
        ("10", "1", False, False, False),
        ("1", "1000", False, False, False),
        ("-1", "100", False, False, False),
        ("(1,2)", "(1,2.0001)", False, True, False),
        ("1, 2", "1, 2", True, True, True),
        ("1, 2", "2, 1", True, True, False),
        (r"3\text{ hours}", r"180\text{ minutes}", True, True, False),
        ("x+1", "x+1.00001", False, False, False),
        ("3i", "3.00001i", False, False, False),
        ("6", "six", True, True, False),
        ("52_8", "52", True, True, False),
        ("(2,4)", "2, 4", True, True, False),
        ("(2,4)", "2<x<4", True, True, False),
        ("7:45", "7:45 a.m.", True, True, False),
        ("55", r"\sum_{k=1}^{10} k", True, True, False),
        (r"\frac12", "0.5", True, True, True),
        ("5", "x = 5", True, True, True),
    ],
)
def test_a_policy_accepts(gold: str, answer: str, math: bool, qwen: bool, strict: bool) -> None:
    assert [equal(gold, answer, find_policy(name)).correct for name in NAMES] == [math, qwen, strict]


def test_strict_has_no_optional_convention() -> None:
    optional = {field.name for field in fields(Policy)} - {"ordered_lists"}
    assert STRICT.ordered_lists
    assert not any(getattr(STRICT, name) for name in optional)
    assert equal("25", "2500", find_policy("qwen")).reason == "another value, which the policy accepts"


def test_a_rounded_gold_needs_decimals() -> None:
    rounded = Policy(rounded_gold=True)
    assert equal("33.3", "33.33", rounded)
    assert not equal("33.3", "33.36", rounded)
    assert not equal("5", "5.0004", rounded)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="Did you mean 'qwen'"):
        find_policy("qwem")


@pytest.mark.parametrize("name", ["accuracy", "boxed", "question_only", "r1_zero", "think_answer", "luffy_think"])
def test_rewards_take_a_policy(name: str) -> None:
    text = r"<think>so</think> <answer>\boxed{25}</answer>"
    text = r"<think>so</think>\boxed{25}" if name == "luffy_think" else text
    rollout = Rollout(Problem("p", "?", "0.25"), (), (), (), text, "stop")
    assert not load_reward([name]).grade([rollout])[0].correct
    assert load_reward([name], add_policy([name], [], "qwen")).grade([rollout])[0].correct


def test_a_policy_goes_to_the_parts_that_compare() -> None:
    assert add_policy(["boxed", "0.5*length"], ["length.cache=1"], "qwen") == ("length.cache=1", "boxed.policy=qwen")
    assert add_policy(["boxed"], ["boxed.policy=strict"], "qwen") == ("boxed.policy=strict",)
    assert add_policy(["working_out"], [], "math") == ()
    with pytest.raises(UsageError, match="has its own rules"):
        add_policy(["working_out"], [], "qwen")


@pytest.fixture
def answers(tmp_path: Path) -> Path:
    rows = [
        {"id": 1, "gold": "0.25", "text": r"\boxed{25}"},
        {"id": 2, "gold": "20", "text": r"\boxed{20\%}"},
        {"id": 3, "gold": "7", "text": r"\boxed{7}"},
        {"id": 4, "gold": "8", "text": r"\boxed{9}"},
    ]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def test_commands_take_a_policy(answers: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for policy, right in (("math", 2), ("qwen", 3), ("strict", 1)):
        assert grade.run([str(answers), "--policy", policy, "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["correct"] == right
        assert grade.run([str(answers), "--policy", policy, "--reward", "boxed", "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["correct"] == right
        assert evaluate.run(["--responses", str(answers), "--policy", policy, "--json"]) == 0
        figures = json.loads(capsys.readouterr().out.splitlines()[-1])["tasks"]["answers"]
        assert figures["accuracy"] == right / 4
        assert figures["accuracy_by"]["flexible"]["value"] == right / 4
    assert grade.run(["--explain", "0.25", "25", "--policy", "qwen"]) == 0
    assert "another value, which the policy accepts" in capsys.readouterr().out
    assert compare.run([str(answers), str(answers), "--policy", "qwen", "--json"]) == 0
    assert "75" in capsys.readouterr().out
    with pytest.raises(UsageError, match="files of answers"):
        compare.run([str(tmp_path), str(answers), "--policy", "qwen"])
    with pytest.raises(UsageError, match="invalid choice"):
        grade.run([str(answers), "--policy", "lax"])


def test_a_policy_is_recorded(answers: Path) -> None:
    rows = score_responses(answers, Scoring(policy="qwen"))["answers"]
    assert [row["correct"] for row in rows] == [True, True, True, False]
    assert [row["flexible"] for row in rows] == [True, True, True, False]
    assert find_policy("math") is MATH
