"""Prefix-RFT on numbers small enough for paper: which prefix tokens count, by what ratio, and how long a prefix is."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import pytest
import torch
from test_closed_forms import batch
from test_hpt import PROBLEM, rollout

from qed.algorithms.base import StepContext
from qed.algorithms.prefix_rft import PrefixRft
from qed.errors import UsageError
from qed.training.batch import Batch
from qed.types import Problem

GIVEN = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]], dtype=torch.float64)
LOGPS = torch.tensor([[-1.0, -2.0, -0.5, -0.4], [-3.0, -0.7, -0.6, 0.0], [-0.3, -0.2, 0.0, 0.0]], dtype=torch.float64)
ENTROPY = torch.tensor([[0.5, 2.0, 0.1, 7.0], [1.5, 0.4, 0.0, 9.0], [0.0, 0.3, 9.0, 9.0]], dtype=torch.float64)
RATIOS = torch.tensor([[1.1, 1.1, 1.1, 1.5], [0.5, 0.5, 0.9, 9], [1.0, 1.0, 9, 9]], dtype=torch.float64)


def make_rows() -> Batch:
    """Prefixes of three tokens and of two, with one sampled token behind each, and an answer of two; A = 2, -1, 1."""
    rows = batch([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 0, 0]], [2.0, -1.0, 1.0])
    return replace(rows, expert=GIVEN, old_logps=LOGPS - RATIOS.log())


def compute(algorithm: PrefixRft, rows: Batch, order: list[int]) -> tuple[float, torch.Tensor, float]:
    rows, logps = rows.select(order), LOGPS[order].clone().requires_grad_()
    rows = algorithm.prepare(rows.with_weights(algorithm.weights(rows, 4)), logps.detach(), ENTROPY[order])
    loss, stats = algorithm.loss(rows, logps, ENTROPY[order])
    (gradient,) = torch.autograd.grad(loss, logps)
    return float(loss.detach()), gradient, float(stats["guidance/token_share"])


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_two_of_five_prefix_tokens(order: list[int]) -> None:
    """The entropies of the prefixes are 0.1, 0.4, 0.5, 1.5 and 2; 0.4 of them keeps the last two, one of each row, and
    no sampled token is dropped, however certain. A token weighs 1/(3 rows x 4). The ratio 1.5 is clipped to 1.2, and
    the second prefix's 0.5, A = -1, to 0.8."""
    loss, gradient, kept = compute(PrefixRft(top_prefix=0.4), make_rows(), order)
    assert loss == pytest.approx((-2 * (1.1 + 1.2) + (0.8 + 0.9) - 2) / 12, abs=1e-12)
    slopes = [[0, -2 * 1.1, 0, 0], [0, 0, 0.9, 0], [-1, -1, 0, 0]]
    torch.testing.assert_close(gradient, torch.tensor(slopes, dtype=torch.float64)[order] / 12, rtol=0, atol=1e-12)
    assert kept == 2


def test_all_prefix_tokens() -> None:
    loss, gradient, kept = compute(PrefixRft(top_prefix=1.0), make_rows(), [0, 1, 2])
    assert loss == pytest.approx((-2 * (3 * 1.1 + 1.2) + (2 * 0.8 + 0.9) - 2) / 12, abs=1e-12)
    assert float(gradient[0, 0]) == pytest.approx(-2 * 1.1 / 12, abs=1e-12)
    assert kept == 5
    assert not PrefixRft(top_prefix=1.0).two_pass
    assert PrefixRft().two_pass


def test_a_prefix_that_was_not_scored_has_a_ratio_of_one() -> None:
    rows = make_rows()
    rows = replace(rows, old_logps=rows.old_logps * (1 - GIVEN))
    loss, gradient, _ = compute(PrefixRft(top_prefix=0.4), rows, [0, 1, 2])
    assert loss == pytest.approx((-2 * (1 + 1.2) + (1 + 0.9) - 2) / 12, abs=1e-12)
    torch.testing.assert_close(gradient[:2, :2] * 12, torch.tensor([[0, -2], [1, 0]]).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (2, 1), (4, 1), (5, 1), (6, 2), (10, 2), (11, 3), (25, 5)])
def test_a_fifth_is_kept_as_the_authors_count_it(count: int, kept: int) -> None:
    """They drop the first floor(0.8 n) of n sorted entropies."""
    rows = batch([[1] * count], [1.0])
    rows = replace(rows, expert=rows.mask)
    entropy = torch.arange(count, dtype=torch.float64).flip(0)[None] / 7
    prepared = PrefixRft().prepare(rows, entropy, entropy)
    assert prepared.advantages[0].tolist() == [1.0] * kept + [0.0] * (count - kept)


def test_a_row_far_off_policy_keeps_its_prefix() -> None:
    """The sampled token of the second row, A = -1, is 1 nat below what sampled it; that of the first has A > 0."""
    rows = make_rows()
    rows = replace(rows, sampled_logps=(LOGPS + 1).where(GIVEN == 0, math.nan))
    _, gradient, _ = compute(PrefixRft(top_prefix=1.0, offpolicy_limit=0.5, clip_low=1.0), rows, [0, 1, 2])
    assert gradient[1].tolist() == pytest.approx([0.5 / 12, 0.5 / 12, 0, 0])
    assert (gradient[[0, 2]] != 0).tolist() == [[True, True, True, False], [True, True, False, False]]


def test_a_step_without_a_prefix_is_on_policy() -> None:
    rows = replace(make_rows(), expert=GIVEN * 0)
    prepared = PrefixRft().prepare(rows, LOGPS, ENTROPY)
    torch.testing.assert_close(prepared.advantages, rows.advantages)


def test_the_continued_answer_is_one_of_the_group() -> None:
    """The baseline is the mean of all four, and nothing divides by a deviation."""
    members = [rollout(True), rollout(False), rollout(False), rollout(False)]
    members[0] = replace(members[0], sampled_mask=(False, True))
    members[0].grade = rollout(True).grade
    assert PrefixRft().credit([members]) == [[0.75, -0.25, -0.25, -0.25]]
    (request,) = PrefixRft().plan([PROBLEM], 4, StepContext(1, 10, 0))
    assert (request.count, request.shares, request.demonstrations) == (4, (0.95,), 0)


@pytest.mark.parametrize("steps", [8, 400])
def test_the_share_is_uniform_above_a_bound_that_falls(steps: int) -> None:
    """The bound is 0.95, 0.5 and, but for one step, 0.05; four standard errors of 500 draws."""
    problems = [Problem(str(number), "", "") for number in range(500)]
    for step in (1, steps // 4 + 1, steps // 2 + 1, steps):
        low = 0.05 + 0.45 * (1 + math.cos(math.pi * (step - 1) / steps))
        requests = PrefixRft().plan(problems, 4, StepContext(step, steps, 7))
        shares = [share for request in requests for share in request.shares]
        assert len(shares) == 500
        assert low - 1e-12 <= min(shares) <= max(shares) <= 0.95 + 1e-12
        spread = (0.95 - low) / math.sqrt(12 * 500)
        assert fmean(shares) == pytest.approx((low + 0.95) / 2, abs=4 * spread + 1e-12)


@pytest.mark.parametrize("top_prefix", [0.0, 1.1])
def test_settings_out_of_range_are_refused(top_prefix: float) -> None:
    with pytest.raises(UsageError, match=r"algorithm\.top_prefix"):
        PrefixRft(top_prefix=top_prefix)
