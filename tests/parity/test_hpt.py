"""HPT on numbers small enough for paper: who is imitated, and what the two losses of a step weigh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_closed_forms import batch, loss_and_gradient

from qed.algorithms.base import StepContext
from qed.algorithms.hpt import Hpt
from qed.errors import UsageError
from qed.types import Grade, Problem, Rollout

PROBLEM = Problem("p", "?", "1")


def rollout(right: bool, source: Any = "policy") -> Rollout:
    sampled = (False, False) if source == "expert" else ()
    made = Rollout(PROBLEM, (5,), (6, 7), (-1.0, -2.0), "", "stop", source=source, sampled_mask=sampled)
    made.grade = Grade(float(right), right, True, None)
    return made


def group(right: int, answers: int = 4, demonstrations: int = 1) -> list[Rollout]:
    return [
        *(rollout(number < right) for number in range(answers)),
        *(rollout(True, "expert") for _ in range(demonstrations)),
    ]


@pytest.mark.parametrize(
    ("gate", "imitated"), [(0.0, [0]), (0.24, [0]), (0.25, [0, 1]), (0.5, [0, 1, 2]), (0.99, [0, 1, 2, 3])]
)
def test_problems_up_to_the_gate_are_imitated(gate: float, imitated: list[int]) -> None:
    """0 to 4 of four answers are right: the rows are the demonstration alone, or the answers alone."""
    for right in range(5):
        members = group(right)
        expected = members[4:] if right in imitated else members[:4]
        assert Hpt(gate=gate).rows([members]) == expected


def test_a_problem_without_a_demonstration_is_reinforced() -> None:
    failed = group(0, demonstrations=0)
    assert Hpt().rows([failed, group(0)])[:4] == failed
    wrong = [*failed, rollout(False, "expert")]
    assert Hpt().rows(Hpt().filter_groups([wrong])) == failed, "a wrong demonstration is none"
    several = group(0, demonstrations=2)
    assert Hpt().rows([several]) == several[4:]


def test_answers_that_nothing_judged_are_not_wrong() -> None:
    failed = Grade(0.0, False, False, None, tier="error")
    members = group(0)
    for answer in members[:3]:
        answer.grade = failed
    assert Hpt().rows([members]) == members[4:], "the one that was judged is wrong"
    members[3].grade = failed
    assert Hpt().rows([members]) == members[:4]


def test_a_greedy_baseline_is_neither_counted_nor_trained() -> None:
    members = [*group(0), rollout(True, "greedy")]
    assert Hpt().rows([members]) == members[4:5]
    members = [*group(1), rollout(True, "greedy")]
    assert Hpt(gate=0.2).rows([members]) == members[:4]


def test_demonstrations_join_beside_the_sampled_answers() -> None:
    context = StepContext(1, 10, 0)
    (request,) = Hpt().plan([PROBLEM], 4, context)
    assert (request.count, request.demonstrations, request.shares) == (4, 1, ())
    assert Hpt().guided
    assert Hpt().needs_correctness
    (request,) = Hpt(trace_share=0.0).plan([PROBLEM], 4, context)
    assert request.demonstrations == 0


def test_the_baseline_is_that_of_the_sampled_answers() -> None:
    assert Hpt().credit([group(1)])[0][:4] == [0.75, -0.25, -0.25, -0.25]


def test_each_loss_has_its_own_average() -> None:
    """A demonstration of three tokens and one of one, sft = 0.5: 0.5/4 a token. Answers of two tokens and of one at
    ratio 1, A = 1 and -1: 1/(2 rows x 4)."""
    rows = batch([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]], [9.0, 9.0, 1.0, -1.0])
    logps = torch.tensor([[-1.0, -2.0, -3.0], [-4.0, 0.0, 0.0], [-0.5, -0.5, 0.0], [-0.5, 0.0, 0.0]]).double()
    given = rows.mask * torch.tensor([[1.0], [1.0], [0.0], [0.0]], dtype=torch.float64)
    rows = replace(rows, expert=given, old_logps=logps * (1 - given))
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        loss, gradient = loss_and_gradient(Hpt(sft=0.5), rows.select(order), logps[order])
        assert loss == pytest.approx(0.5 * (1 + 2 + 3 + 4) / 4 - (1 + 1 - 1) / 8, abs=1e-12)
        expected = torch.tensor([[-1.0] * 3, [-1, 0, 0], [-1, -1, 0], [1, 0, 0]], dtype=torch.float64) / 8
        torch.testing.assert_close(gradient, expected[order], rtol=0, atol=1e-12)
    assert Hpt().compute_metrics(rows)["guidance/imitated"] == 0.5


@pytest.mark.parametrize("settings", [{"gate": 1.0}, {"gate": -0.1}, {"sft": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"algorithm.{next(iter(settings))}"):
        Hpt(**settings)
