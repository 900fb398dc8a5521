"""SRFT on numbers small enough for paper: rewards, averages, the weights by entropy, and no gradient through them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_closed_forms import batch
from test_hpt import group, rollout

from qed.algorithms.srft import Srft
from qed.errors import UsageError
from qed.training.batch import Batch
from qed.types import Grade

LOGPS = torch.tensor([[-1.0, -2.0], [-3.0, 0.0], [-0.5, -1.5], [-0.7, 0.0]], dtype=torch.float64)
ENTROPY = torch.tensor([[0.2, 0.6], [1.0, 9.0], [0.5, 0.7], [2.0, 9.0]], dtype=torch.float64)


def make_rows() -> Batch:
    """Demonstrations of two tokens and of one, A = 2 and 0.5; a right answer of two tokens, a wrong one of one."""
    rows = batch([[1, 1], [1, 0], [1, 1], [1, 0]], [2.0, 0.5, 1.0, -1.0])
    return replace(rows, expert=rows.mask * torch.tensor([[1.0], [1.0], [0.0], [0.0]], dtype=torch.float64))


def compute(algorithm: Srft, rows: Batch, order: list[int]) -> tuple[float, torch.Tensor, dict[str, Any]]:
    rows, logps = rows.select(order), LOGPS[order].clone().requires_grad_()
    entropy = ENTROPY[order] + logps.sum() * 0  # an entropy with a gradient, which must not be read
    rows = algorithm.prepare(rows.with_weights(algorithm.weights(rows, 4)), None, None)
    loss, stats = algorithm.loss(rows, logps, entropy * (1 + logps - logps.detach()))
    (gradient,) = torch.autograd.grad(loss, logps)
    return float(loss.detach()), gradient, stats


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
@pytest.mark.parametrize("over", ["row", "token"])
def test_the_loss_and_its_gradient(order: list[int], over: str) -> None:
    """Each token weighs 1/(2 rows of its kind x 4). Likelihood: 0.5 e^-H log p; demonstrations A p; a right answer
    0.1 e^H log p; a wrong one -log p. H is the mean of a row, 0.4, 1, 0.6 and 2, or that of each token."""
    loss, gradient, stats = compute(Srft(entropy_over=over), make_rows(), order)
    level = ENTROPY.clone()
    if over == "row":
        level = torch.tensor([[0.4] * 2, [1.0] * 2, [0.6] * 2, [2.0] * 2], dtype=torch.float64)
    copied, raised = 0.5 * (-level[:2]).exp(), 0.1 * level[2].exp()
    given = copied * LOGPS[:2] + torch.tensor([[2.0], [0.5]]) * LOGPS[:2].exp()
    given[1, 1] = 0
    own = (raised * LOGPS[2]).sum() - LOGPS[3, 0]
    assert loss == pytest.approx(-float(given.sum() + own) / 8, abs=1e-12)
    slopes = torch.zeros(4, 2, dtype=torch.float64)
    slopes[:2] = copied + torch.tensor([[2.0], [0.5]]) * LOGPS[:2].exp()
    slopes[2], slopes[3, 0] = raised, -1.0
    slopes[1, 1] = 0
    torch.testing.assert_close(gradient, -slopes[order] / 8, rtol=0, atol=1e-12)
    weights = copied[[0, 0, 1], [0, 1, 0]]
    assert float(stats["guidance/sft_weight"]) == pytest.approx(float(weights.mean()))
    assert float(stats["guidance/positive_weight"]) == pytest.approx(float(raised.mean()))


def test_the_slopes_and_the_factors_are_settings() -> None:
    """The authors' code multiplies the likelihood by e^(+H); slopes of 0 leave constants."""
    rows = replace(make_rows(), advantages=make_rows().mask * 0)
    _, gradient, _ = compute(Srft(sft=0.25, sft_slope=1.0), rows, [0, 1, 2, 3])
    expected = [[-0.25 * math.exp(0.4) / 8] * 2, [-0.25 * math.exp(1) / 8, 0], [0, 0], [0, 0]]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)
    own = replace(make_rows(), expert=make_rows().mask * 0).select([2, 3])
    rows = own.with_weights(Srft().weights(own, 4))
    logps = LOGPS[2:].clone().requires_grad_()
    loss, _ = Srft(positive=0.5, positive_slope=0.0).loss(rows, logps, ENTROPY[2:])
    assert float(loss.detach()) == pytest.approx(-(0.5 * -2.0 + 0.7) / 8, abs=1e-12)


def test_sampled_answers_have_signs_and_demonstrations_the_advantage_of_the_group() -> None:
    """One of three answers is right, and the demonstration: mean 1/2, deviation sqrt(1/3) with n - 1."""
    members = group(1, answers=3)
    (signs,) = Srft().credit([members])
    assert signs[:3] == [1.0, -1.0, -1.0]
    assert signs[3] == pytest.approx(0.5 / math.sqrt(1 / 3), abs=1e-5)
    (advantages,) = Srft(signs=False, normalize_std=False).credit([members])
    assert advantages == [0.5, -0.5, -0.5, 0.5]
    assert Srft().needs_correctness
    assert not Srft(signs=False).needs_correctness


def test_what_was_not_graded_and_a_greedy_baseline_have_no_sign() -> None:
    members = [*group(1, answers=2), rollout(True, "greedy")]
    members[1].grade = Grade(0.0, False, False, None, tier="error")
    (signs,) = Srft().credit([members])
    assert (signs[0], signs[1], signs[3]) == (1.0, 0.0, 0.0)


def test_only_demonstrations_or_only_answers_are_a_step_too() -> None:
    for chosen in ([0, 1], [2, 3]):
        rows, logps = make_rows().select(chosen), LOGPS[chosen].clone().requires_grad_()
        rows = Srft().prepare(rows.with_weights(Srft().weights(rows, 4)), None, None)
        torch.testing.assert_close(rows.weights, rows.mask / 8)
        loss, _ = Srft().loss(rows, logps, ENTROPY[chosen])
        assert torch.autograd.grad(loss, logps)[0].isfinite().all()
    quiet = replace(make_rows(), advantages=make_rows().mask * 0)
    assert Srft().has_gradient(quiet).tolist() == [True, True, False, False]
    assert not Srft(sft=0.0).has_gradient(quiet).any()


@pytest.mark.parametrize("settings", [{"sft": -1.0}, {"positive": -0.1}])
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"algorithm.{next(iter(settings))}"):
        Srft(**settings)
