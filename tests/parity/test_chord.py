"""CHORD on numbers small enough for paper: the schedule of mu, phi, and the two averages."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from test_closed_forms import batch, loss_and_gradient

from qed.algorithms.base import StepContext
from qed.algorithms.chord import Chord
from qed.errors import UsageError
from qed.training.batch import Batch

LOGPS = torch.tensor(
    [[math.log(0.5), math.log(0.2)], [math.log(0.9), 0.0], [-0.5, -1.0], [-0.7, 0.0]], dtype=torch.float64
)


def make_rows() -> Batch:
    """Demonstrations of two tokens and of one, and answers of two tokens and of one at ratio 1, A = 1 and -2."""
    rows = batch([[1, 1], [1, 0], [1, 1], [1, 0]], [9.0, 9.0, 1.0, -2.0])
    given = rows.mask * torch.tensor([[1.0], [1.0], [0.0], [0.0]], dtype=torch.float64)
    return replace(rows, expert=given, old_logps=LOGPS * (1 - given))


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 1, 0, 2]])
@pytest.mark.parametrize("phi", [True, False])
def test_the_loss_and_its_gradient(order: list[int], phi: bool) -> None:
    """mu/3 for each demonstration token, times p (1 - p) = 1/4, 0.16 and 0.09; (1 - mu)/3 for each sampled one."""
    algorithm = Chord(mu=0.3, phi=phi)
    loss, gradient = loss_and_gradient(algorithm, make_rows().select(order), LOGPS[order].clone())
    factors = [0.25, 0.16, 0.09] if phi else [1.0] * 3
    logs = [math.log(0.5), math.log(0.2), math.log(0.9)]
    imitated = -sum(factor * log for factor, log in zip(factors, logs, strict=True)) / 3
    assert loss == pytest.approx(0.7 * -(1 + 1 - 2) / 3 + 0.3 * imitated, abs=1e-12)
    slopes = [[-0.1 * factors[0], -0.1 * factors[1]], [-0.1 * factors[2], 0], [-0.7 / 3] * 2, [1.4 / 3, 0]]
    expected = torch.tensor(slopes, dtype=torch.float64)
    torch.testing.assert_close(gradient, expected[order], rtol=0, atol=1e-12)


def test_phi_has_no_gradient_of_its_own() -> None:
    """With mu = 1 the slope of a token by log p is -phi/N, whatever p is."""
    for p in (0.01, 0.3, 0.5, 0.99):
        rows = batch([[1, 1]], [0.0], expert=torch.ones(1, 2, dtype=torch.float64))
        logps = torch.full((1, 2), math.log(p), dtype=torch.float64)
        _, gradient = loss_and_gradient(Chord(mu=1.0), rows, logps)
        torch.testing.assert_close(gradient, torch.full_like(gradient, -p * (1 - p) / 2), rtol=0, atol=1e-12)


def test_mu_rises_linearly_and_falls_by_a_cosine() -> None:
    """A run of 10 steps: half-way through each, with a warm-up of 2 and a decay of 4 steps."""
    settings = Chord(mu_peak=0.5, mu_valley=0.1, mu_warmup=0.2, mu_decay=0.4)
    found = [settings.at_step(StepContext(step, 10, 0)).mu for step in range(1, 11)]
    falling = [0.1 + 0.4 * (1 + math.cos(math.pi * done / 8)) / 2 for done in (1, 3, 5, 7)]
    assert found == pytest.approx([0.125, 0.375, *falling, 0.1, 0.1, 0.1, 0.1], abs=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 2000])
def test_the_schedule_scales_with_the_run(steps: int) -> None:
    mean = sum(Chord().at_step(StepContext(step, steps, 0)).mu for step in range(1, steps + 1)) / steps
    assert 0 < mean <= 0.5
    if steps == 2000:
        assert mean == pytest.approx(0.2 * 0.25 + 0.4 * 0.26 + 0.4 * 0.02, abs=1e-3)


def test_the_variants_of_the_paper() -> None:
    """CHORD-mu falls from its peak at once; CHORD-phi keeps a constant mu."""
    falling = Chord(mu_peak=0.9, mu_valley=0.05, mu_warmup=0.0, mu_decay=0.5, phi=False)
    assert falling.at_step(StepContext(1, 10**6, 0)).mu == pytest.approx(0.9, abs=1e-6)
    assert falling.at_step(StepContext(10**6, 10**6, 0)).mu == 0.05
    for constant in (
        Chord(mu_peak=0.1, mu_valley=0.1),
        Chord(mu_peak=0.1, mu_valley=0.1, mu_warmup=0.0, mu_decay=0.0),
    ):
        assert constant.at_step(StepContext(5, 10, 0)).mu == pytest.approx(0.1)


def test_without_demonstrations_it_is_grpo_by_less() -> None:
    rows = make_rows()
    _, gradient = loss_and_gradient(Chord(mu=0.5), rows.select([2, 3]), LOGPS[2:].clone())
    torch.testing.assert_close(gradient, torch.tensor([[-0.5 / 3] * 2, [1 / 3, 0]], dtype=torch.float64))


def test_demonstrations_of_no_weight_are_not_computed() -> None:
    assert Chord(mu=0.0).has_gradient(make_rows()).tolist() == [False, False, True, True]
    quiet = replace(make_rows(), advantages=make_rows().mask * 0)
    assert Chord(mu=0.1).has_gradient(quiet).tolist() == [True, True, False, False]
    assert Chord(mu=0.1).compute_metrics(quiet)["guidance/mu"] == 0.1


@pytest.mark.parametrize(
    "settings", [{"mu_peak": 1.5}, {"mu_valley": -0.1}, {"mu_warmup": 0.7, "mu_decay": 0.5}, {"mu_decay": 2.0}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"algorithm\.mu"):
        Chord(**settings)
