"""Rewards on lines with their reasons: what each reward pays."""

from __future__ import annotations

import pytest

from qed.config import plugins
from qed.types import Problem, Rollout


def graded(reward: str, text: str, gold: str = "12") -> tuple[float, bool, bool]:
    """What a reward says of a text: reward, correct, format."""
    verdict = plugins.load_leaf("rewards", reward).reward(Rollout(Problem("p", "?", gold), (), (), (), text, "stop"))
    return verdict.reward, verdict.correct, verdict.format_ok


@pytest.mark.parametrize(
    ("text", "pay"),
    [
        ("<think>5+7=12</think><answer>12</answer>", (1.1, True, True)),
        ("<think>5+7=12</think> <answer>12</answer>\n", (1.1, True, True)),
        ("<think></think><answer>12</answer>", (1.1, True, True)),  # an empty thought keeps the format
        ("<think>5+7=13</think><answer>13</answer>", (0.1, False, True)),
        ("<answer>12</answer>", (0.0, False, False)),  # right, but without the thought
        ("12", (0.0, False, False)),
        ("<think>a</think><answer>12</answer> or 13", (0.0, False, False)),
        ("<think>a</think><answer>13</answer><answer>12</answer>", (0.0, False, False)),  # two answers are none
        ("<answer>12</answer><think>a</think>", (0.0, False, False)),
        ("<think>a<answer>12</answer></think>", (0.0, False, False)),
        ("<think><answer></think>12</answer>", (0.0, False, False)),
    ],
)
def test_think_answer(text: str, pay: tuple[float, bool, bool]) -> None:
    assert graded("think_answer", text) == pytest.approx(pay)


@pytest.mark.parametrize(
    ("text", "pay"),
    [
        (" 5+7 </think> <answer> 12 </answer>", (1.0, True, True)),
        (" 5+7 </think> <answer> \\boxed{12} </answer>", (1.0, True, True)),
        (" 5+7 </think> <answer> 13 </answer>", (0.0, False, True)),
        (" 5+7 </think><answer> 12 </answer>", (0.0, False, False)),  # one space, exactly
        (" 5+7 </think>\n<answer> 12 </answer>", (0.0, False, False)),
        (" 5+7 </think> <answer> 12", (0.0, False, False)),
        (" 5+7 </think> <answer> \\boxed{12 </answer>", (0.0, False, True)),  # a box that never closes
    ],
)
def test_r1_zero(text: str, pay: tuple[float, bool, bool]) -> None:
    assert graded("r1_zero", text) == pay
