"""UFT on numbers small enough for paper: what the hint and the continuation weigh, and how long hints are."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch
from test_closed_forms import batch, loss_and_gradient

from qed.algorithms.base import StepContext
from qed.algorithms.grpo import Grpo
from qed.algorithms.uft import Uft
from qed.errors import UsageError
from qed.training.batch import Batch
from qed.types import Problem

LOGPS = torch.tensor([[-1.0, -2.0, -0.5, -0.4], [-3.0, -0.7, -0.6, 0.0], [-0.3, -0.2, 0.0, 0.0]], dtype=torch.float64)
GIVEN = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
RATIOS = torch.tensor([[9, 9, 1.1, 1.5], [9, 0.9, 0.5, 9], [1.0, 1.0, 9, 9]], dtype=torch.float64)


def make_rows(advantages: list[float]) -> Batch:
    """Rows with two hint tokens and two sampled ones, one and two, none and two; three hint tokens in all."""
    rows = batch([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]], advantages)
    return replace(rows, expert=GIVEN, old_logps=(LOGPS - RATIOS.log()) * (1 - GIVEN))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_the_loss_and_its_gradient(order: list[int]) -> None:
    """Each of the three rows has two sampled tokens, 1/6 each; a hint token weighs 0.3/3. A = 2, -1, 1: the ratio 1.5
    of the first row is clipped to 1.2, and 0.5 of the second to 0.8; neither has a gradient."""
    loss, gradient = loss_and_gradient(Uft(hint=0.3), make_rows([2.0, -1.0, 1.0]).select(order), LOGPS[order])
    sampled = -2 * (1.1 + 1.2) + (0.9 + 0.8) - (1 + 1)
    assert loss == pytest.approx(sampled / 6 + 0.1 * (1 + 2 + 3), abs=1e-12)
    expected = torch.tensor(
        [[-0.1, -0.1, -2 * 1.1 / 6, 0], [-0.1, 0.9 / 6, 0, 0], [-1 / 6, -1 / 6, 0, 0]], dtype=torch.float64
    )
    torch.testing.assert_close(gradient, expected[order], rtol=0, atol=1e-12)


def test_a_hint_without_weight_is_a_longer_prompt() -> None:
    """The loss of the continuations alone, as rows of their own."""
    rows, bare = make_rows([2.0, -1.0, 1.0]), batch([[1, 1], [1, 1], [1, 1]], [2.0, -1.0, 1.0])
    places = torch.tensor([[2, 3], [1, 2], [0, 1]])
    logps = LOGPS.gather(1, places)
    bare = replace(bare, old_logps=logps - RATIOS.gather(1, places).log())
    loss, gradient = loss_and_gradient(Uft(hint=0.0), rows, LOGPS)
    alone, slopes = loss_and_gradient(Grpo(), bare, logps)
    assert loss == pytest.approx(alone, abs=1e-12)
    torch.testing.assert_close(gradient.gather(1, places), slopes, rtol=0, atol=1e-12)
    assert not (gradient * GIVEN).any()


def test_the_kl_is_of_what_was_sampled() -> None:
    """k3 with log pi - ref = 0.2 everywhere: e^-0.2 - 1 + 0.2, over sampled tokens alone, whose weights sum to 1."""
    rows = replace(make_rows([0.0, 0.0, 0.0]), ref_logps=LOGPS - 0.2)
    loss, gradient = loss_and_gradient(Uft(hint=0.0, kl=0.5), rows, LOGPS)
    assert loss == pytest.approx(0.5 * (math.exp(-0.2) - 0.8), abs=1e-12)
    assert not (gradient * GIVEN).any()


def test_a_hint_counts_whatever_its_answer_earned() -> None:
    rows = make_rows([0.0, 0.0, 0.0])
    assert Uft().has_gradient(rows).tolist() == [True, True, False]
    assert not Uft(hint=0.0).has_gradient(rows).any()
    _, gradient = loss_and_gradient(Uft(), rows, LOGPS)
    torch.testing.assert_close(gradient, -0.001 / 3 * GIVEN, rtol=0, atol=1e-12)


def draw(step: int, steps: int, problems: int = 400) -> list[tuple[float, ...]]:
    asked = [Problem(str(number), "", "") for number in range(problems)]
    return [request.shares for request in Uft().plan(asked, 4, StepContext(step, steps, 7))]


@pytest.mark.parametrize(
    ("step", "share"), [(1, 0.95), (76, 0.05 + 0.45 * (1 + math.sqrt(0.5))), (151, 0.5), (300, 0.05)]
)
def test_a_hint_is_a_binomial_number_of_pieces(step: int, share: float) -> None:
    """Equation B.1 in a run of 500 steps; five draws for each of 400 problems, four standard errors."""
    found = draw(step, 500)
    assert all(len(shares) == 4 and len(set(shares)) == 1 for shares in found)
    pieces = [6 * shares[0] for shares in found]
    assert {round(count) for count in pieces} <= set(range(6))
    assert all(count == pytest.approx(round(count)) for count in pieces)
    assert fmean(pieces) / 5 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 2000) + 1e-4)


def test_three_fifths_of_every_run_have_hints() -> None:
    for steps in (5, 50, 500):
        last = round(0.6 * steps)
        assert any(any(shares) for shares in draw(last, steps))
        assert not any(any(shares) for shares in draw(last + 1, steps))
        assert not any(any(shares) for shares in draw(steps, steps))


@pytest.mark.parametrize("settings", [{"hint": -0.1}, {"strategy_share": 0.0}])
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=rf"algorithm.*{next(iter(settings))}"):
        Uft(**settings)
