"""Surrogates, corrections and scales against arithmetic written out, finite differences and the recorded averages."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from making import make_model, make_rollout, prefix_mask
from other_libraries import average_as_trl_bnpo, average_as_verl_legacy, sum_as_luffy

from qed.algorithms.parts import corrections, losses
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.parts.scales import Scale, compute_factor
from qed.algorithms.parts.surrogates import (
    CLIPPING,
    Surrogate,
    SurrogateKind,
    find_sampled_tokens,
    find_tokens_with_logps,
    policy_loss,
)
from qed.algorithms.rl_sft import RlSft
from qed.config.settings import LearnerSettings
from qed.errors import QedError, UsageError
from qed.training.batch import Batch, collate
from qed.training.learner import Learner
from qed.types import Problem, Rollout

ONES = torch.ones(1, 1, dtype=torch.float64)
# Surrogates whose value is not what their gradient is of: a weight in them is held fixed.
HELD = ("gspo_token", "cispo", "vespo")


def column(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def of_token(ratio: float, advantage: float, **settings: Any) -> tuple[float, float]:
    """The loss of a single token of a ratio and an advantage, and its derivative by the token's log-prob."""
    logps = column([math.log(ratio) - 1]).requires_grad_()
    loss, _ = policy_loss(logps, -ONES, ONES * advantage, ONES, PolicyGradient(**settings).surrogate)
    (gradient,) = torch.autograd.grad(loss.sum(), logps)
    return float(loss.detach()), float(gradient)


@pytest.mark.parametrize(
    ("settings", "ratio", "advantage", "loss", "gradient"),
    [
        ({"surrogate": "unclipped"}, 3.0, -2.0, 6.0, 6.0),
        ({}, 3.0, -2.0, 6.0, 6.0),  # without the dual clip a bad token pushes as hard as its ratio is large
        ({"clip_dual": 2.5}, 3.0, -2.0, 5.0, 0.0),
        ({"clip_dual": 2.5}, 2.0, -2.0, 4.0, 4.0),
        ({"clip_dual": 2.5}, 3.0, 2.0, -2.4, 0.0),  # the dual clip is for negative advantages alone
        ({"ratio_clamp": math.log(2), "surrogate": "unclipped"}, 3.0, 1.0, -2.0, 0.0),
        ({"surrogate": "cispo", "cispo_clip": "both"}, 0.5, 1.0, 0.8 * (1 + math.log(2)), -0.8),
        ({"surrogate": "cispo", "cispo_clip": "above"}, 0.5, 1.0, 0.5 * (1 + math.log(2)), -0.5),
        ({"surrogate": "cispo", "cispo_clip": "above", "clip_high": 0.28}, 3.0, 1.0, 1.28 * (1 - math.log(3)), -1.28),
        ({"surrogate": "cispo", "cispo_clip": "trl", "clip_high": 0.28}, 1.0, 1.0, 0.28, -0.28),
        ({"surrogate": "cispo", "cispo_clip": "trl", "clip_high": 5.0}, 3.0, 1.0, 3 * (1 - math.log(3)), -3.0),
        ({"surrogate": "sapo"}, 1.0, 2.0, -4.0, -2.0),
        ({"surrogate": "sapo"}, 1.0, -2.0, 4 / 1.05, 2.0),
        ({"surrogate": "sapo"}, 2.0, 1.0, -4 / (1 + math.exp(-1)), -8 * math.exp(-1) / (1 + math.exp(-1)) ** 2),
        ({"surrogate": "vespo"}, 1.0, 3.0, 3.0, -3.0),
        ({"surrogate": "vespo"}, 2.0, 1.0, 4 * math.exp(-3) * (1 - math.log(2)), -4 * math.exp(-3)),
        ({"surrogate": "vespo"}, 2.0, -1.0, -8 * math.exp(-2) * (1 - math.log(2)), 8 * math.exp(-2)),
        ({"surrogate": "gmpo", "clip_high": 0.4}, math.exp(0.5), 1.0, -math.exp(0.4), 0.0),
        ({"surrogate": "gmpo", "clip_high": 0.4}, math.exp(0.5), -1.0, math.exp(0.5), math.exp(0.5)),
        ({"surrogate": "gmpo", "clip_low": 0.4}, math.exp(-0.5), -1.0, math.exp(-0.4), 0.0),
        # From 1/e to 2/e is a rise of 0.37, beyond 0.2; bound is what a good token gains or a bad one loses.
        ({"surrogate": "dppo", "dppo_square": 0.0}, 2.0, 1.0, 0.0, 0.0),
        ({"surrogate": "dppo", "dppo_square": 0.0}, 2.0, -1.0, 2.0, 2.0),
        ({"surrogate": "dppo", "dppo_square": 0.0}, 0.4, -1.0, 0.0, 0.0),
        ({"surrogate": "dppo", "dppo_square": 0.0}, 0.4, 1.0, -0.4, -0.4),
        ({"surrogate": "dppo", "dppo_square": 0.5}, 2.0, 1.0, 0.5 * math.log(2) ** 2, math.log(2)),
        # ipo leaves a token out on both sides of both advantages; the square stays.
        ({"surrogate": "ipo", "dppo_square": 0.0}, 2.0, 1.0, 0.0, 0.0),
        ({"surrogate": "ipo", "dppo_square": 0.0}, 2.0, -1.0, 0.0, 0.0),
        ({"surrogate": "ipo", "dppo_square": 0.0}, 0.4, -1.0, 0.0, 0.0),
        ({"surrogate": "ipo", "dppo_square": 0.0}, 0.4, 1.0, 0.0, 0.0),
        ({"surrogate": "ipo", "dppo_square": 0.0}, 1.5, -2.0, 3.0, 3.0),
        ({"surrogate": "ipo", "dppo_square": 0.0, "clip_high": 0.4}, 2.0, 1.0, -2.0, -2.0),
        ({"surrogate": "ipo", "dppo_square": 0.5}, 2.0, 1.0, 0.5 * math.log(2) ** 2, math.log(2)),
    ],
)
def test_a_token_by_hand(
    settings: dict[str, Any], ratio: float, advantage: float, loss: float, gradient: float
) -> None:
    assert of_token(ratio, advantage, **settings) == (pytest.approx(loss), pytest.approx(gradient))


def random_columns() -> tuple[torch.Tensor, ...]:
    """Log-probs, old ones, advantages of rows and a mask with a hole, seeded."""
    generator = torch.Generator().manual_seed(3)
    logps = -torch.rand(5, 7, generator=generator, dtype=torch.float64) * 3
    old = logps + 0.6 * torch.randn(5, 7, generator=generator, dtype=torch.float64)
    advantages = torch.randn(5, 1, generator=generator, dtype=torch.float64).expand(5, 7)
    mask = (torch.arange(7) < torch.tensor([7, 3, 5, 1, 6])[:, None]).double()
    mask[0, 2] = 0
    return logps, old, advantages, mask


@pytest.mark.parametrize("surrogate", [name for name in get_args(SurrogateKind) if name not in HELD])
def test_gradients_are_those_of_finite_differences(surrogate: str) -> None:
    logps, old, advantages, mask = random_columns()
    settings = Surrogate(kind=surrogate, clip_low=0.3, clip_high=0.3, clip_dual=1.5)
    where = logps.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: policy_loss(x, old, advantages, mask, settings)[0], where, eps=1e-7)


@pytest.mark.parametrize("surrogate", get_args(SurrogateKind))
def test_masked_places_reach_nothing(surrogate: str) -> None:
    """A NaN at a masked place changes neither a value nor a gradient, and the loss is 0 there."""
    logps, old, advantages, mask = random_columns()
    settings = Surrogate(kind=surrogate)
    found = []
    for filling in (0.0, torch.nan):
        columns = [values.masked_fill(mask == 0, filling) for values in (logps, old, advantages)]
        where = columns[0].requires_grad_()
        loss, stats = policy_loss(where, *columns[1:], mask, settings)
        loss.sum().backward()
        found.append([loss.detach(), where.grad, *(value.double() for value in stats.values())])
    assert not found[0][0][mask == 0].any()
    for clean, dirty in zip(*found, strict=True):
        torch.testing.assert_close(dirty, clean)


@pytest.mark.parametrize("surrogate", get_args(SurrogateKind))
def test_at_ratio_one_all_are_reinforce(surrogate: str) -> None:
    """With equal log-probs, or with old ones that are not known, the gradient of the row mean is that of A log pi."""
    logps, _, advantages, mask = random_columns()
    weights = mask / mask.sum(1, keepdim=True)
    settings = Surrogate(kind=surrogate, cispo_clip="above")
    for old in (logps, logps * torch.nan):
        where = logps.clone().requires_grad_()
        loss, stats = policy_loss(where, old, advantages, mask, settings)
        (weights * loss).sum().backward()
        torch.testing.assert_close(where.grad, -weights * advantages)
        assert stats.get("ratio/log_max", 0) == 0


def test_a_sequence_has_one_ratio() -> None:
    """Log-ratios 0.1 and 0.3: s = e^0.2; each token's gradient is half of s A; the token form has s A for each."""
    logps, mask = column([0.1, 0.3]).requires_grad_(), column([1, 1])
    zeros, advantages = torch.zeros(1, 2).double(), column([2, 2])
    for surrogate, share in (("gspo", 1.0), ("gspo_token", 1.0)):
        settings = Surrogate(kind=surrogate, clip_high=0.5)
        loss, _ = policy_loss(logps, zeros, advantages, mask, settings)
        assert loss[0].tolist() == pytest.approx([-2 * math.exp(0.2)] * 2)
        (gradient,) = torch.autograd.grad(loss.mean(), logps)
        assert gradient[0].tolist() == pytest.approx([-math.exp(0.2) * share] * 2)
    capped = losses.compute_sequence_token_log_ratios(column([30, 30]), logps, mask)
    assert capped.tolist() == [[10.0, 10.0]]


def test_clipped_tokens_are_counted_where_the_clip_is_strictly_larger() -> None:
    """Ratios 1, 1.5, 0.5 and 1.5: the second is beyond the bound on its side, the third on the other side."""
    logps = column([1, 1.5, 0.5, 1.5]).log()
    mask, advantages = column([1, 1, 1, 0]), column([1, 1, 1, 1])
    for sign, low, high in ((1, 0, 1), (-1, 1, 0)):
        _, stats = policy_loss(logps, logps * 0, sign * advantages, mask, Surrogate())
        assert (int(stats["clip/low"]), int(stats["clip/high"])) == (low, high)
    _, stats = policy_loss(logps, logps * 0, -advantages, mask, Surrogate(clip_dual=1.4))
    assert int(stats["clip/dual"]) == 1


@pytest.mark.parametrize("surrogate", CLIPPING)
@pytest.mark.parametrize(
    ("ratio", "advantage", "further"),
    [(2.0, 1, True), (0.4, -1, True), (1.1, 1, False), (0.9, -1, False), (2.0, -1, False), (0.4, 1, False)],
)
def test_every_clip_counts_the_tokens_that_it_stops(
    surrogate: SurrogateKind, ratio: float, advantage: int, further: bool
) -> None:
    # These two bound a token on both sides, whatever its advantage.
    stopped = abs(ratio - 1) > 0.5 if surrogate in ("cispo", "ipo") else further
    # From 1/e the probability changes by 0.37, -0.22, 0.04 or -0.04, beside bounds of 0.2.
    logps = column([math.log(ratio) - 1])
    _, stats = policy_loss(logps, -ONES, ONES * advantage, ONES, Surrogate(surrogate))
    expected = (int(stopped and advantage < 0), int(stopped and advantage > 0))
    assert (int(stats["clip/low"]), int(stats["clip/high"])) == expected


# Corrections

RATIOS = column([0.5, 1.0, 4.0], [2.0, 2.0, 9.0])
MASK = column([1, 1, 1], [1, 1, 0])


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("none", 0, 2, [[1, 1, 1], [1, 1, 0]]),
        ("bypass", 0, 2, [[1, 1, 1], [1, 1, 0]]),
        ("token_truncate", 0, 2, [[0.5, 1, 2], [2, 2, 0]]),
        ("token_truncate", 0.8, 1.5, [[0.8, 1, 1.5], [1.5, 1.5, 0]]),
        ("token_mask", 0.8, 3, [[0, 1, 0], [2, 2, 0]]),
        ("sequence_truncate", 0, 3, [[2, 2, 2], [3, 3, 0]]),
        ("sequence_mask", 0, 3, [[2, 2, 2], [0, 0, 0]]),
        ("geometric_mask", 0.5, 1.9, [[0.5, 1, 4], [0, 0, 0]]),  # a kept row's weights have no bound
    ],
)
def test_importance_weights_by_hand(kind: Any, low: float, high: float, expected: list[list[float]]) -> None:
    weights = corrections.compute_importance_weights(RATIOS.log(), MASK, kind, low, high)
    torch.testing.assert_close(weights, column(*expected))


def test_normalised_weights_have_mean_one() -> None:
    """Over the tokens, and for row weights over the rows, whatever their lengths."""
    weights = column([1, 2, 3], [4, 4, 0])
    torch.testing.assert_close(corrections.normalize_weights(weights, MASK, "token_truncate"), weights / 2.8)
    rows = column([1, 1, 1], [4, 4, 0])
    torch.testing.assert_close(corrections.normalize_weights(rows, MASK, "sequence_truncate"), rows / 2.5)


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        # k1 is bounded on sampled / old, the inverse of the ratios: 2, 1, 1/4 and 1/2, 1/2.
        ("token_k1", 0.5, 2, [[1, 1, 0], [1, 1, 0]]),
        ("token_k1", 0.2, 1.5, [[0, 1, 1], [1, 1, 0]]),
        ("sequence_sum_k1", 0.3, 2, [[1, 1, 1], [0, 0, 0]]),
        ("sequence_mean_k1", 0.6, 2, [[1, 1, 1], [0, 0, 0]]),
        ("token_k2", 0, 0.5, [[1, 1, 0], [1, 1, 0]]),
        ("sequence_sum_k2", 0, 1, [[0, 0, 0], [1, 1, 0]]),
        ("token_k3", 0, 0.2, [[1, 1, 0], [0, 0, 0]]),  # 0.193, 0, 1.614 and 0.307, 0.307
        ("sequence_mean_k3", 0, 0.5, [[0, 0, 0], [1, 1, 0]]),
        ("sequence_max_k3", 0, 1.7, [[1, 1, 1], [1, 1, 0]]),
    ],
)
def test_rejections_by_hand(kind: Any, low: float, high: float, expected: list[list[float]]) -> None:
    assert corrections.find_kept_tokens(RATIOS.log(), MASK, kind, low, high).double().tolist() == expected


def test_rows_that_the_policy_has_left_are_dropped_when_they_are_bad() -> None:
    """sampled - log pi is 0.5 on average in the first row, 0.1 in the second; NaN counts as no difference."""
    logps, rolled = column([-1.0, -1.0, -9], [-1, -1, -1]), column([0.0, -1.0, 0], [-0.8, -0.9, torch.nan])
    mask = column([1, 1, 0], [1, 1, 1])
    for advantages, kept in ((-mask, [0, 1]), (mask, [1, 1])):
        found = corrections.compute_off_policy_mask(logps, rolled, advantages, mask, 0.3)
        assert found[:, 0].tolist() == kept


def batch_of(*rollouts: Rollout) -> Batch:
    return collate(rollouts, dtype=torch.float64)


def answer(logps: tuple[float, ...], old: tuple[float, ...], given: int = 0) -> Rollout:
    rollout = Rollout(Problem("p", "?", "1"), (0,), (1,) * len(old), logps, "", "stop", advantage=1.0)
    rollout.sampled_mask = prefix_mask(given, len(old))
    rollout.old_logps = old
    return rollout


def test_only_what_a_sampler_wrote_is_corrected() -> None:
    """A given token and a demonstration keep their advantage beside a token that is weighed."""
    rows = batch_of(answer((0.0, -1.0, math.nan), (-1.0, -0.5, -1.0), given=1), answer((), (-1.0, -2.0)))
    assert find_tokens_with_logps(rows).tolist() == [[False, True, False], [False, False, False]]
    assert find_sampled_tokens(rows).tolist() == [[False, True, True], [False, False, False]]
    settings = PolicyGradient(correction="sequence_truncate", correction_high=9.0)
    assert settings.needs_old_logps
    corrected = settings.prepare(rows, None, None)
    weight = pytest.approx(math.exp(0.5))
    assert corrected.advantages.tolist() == [[1, weight, weight], [1, 1, 0]]
    told = settings.compute_metrics(rows)
    assert told["correction/ratio_mean"] == told["correction/ratio_max"] == pytest.approx(math.exp(0.5))
    assert told["correction/dropped"] == 0
    dropped = PolicyGradient(correction="sequence_mask", correction_high=1.5)
    assert dropped.prepare(rows, None, None).advantages.tolist() == [[1, 0, 0], [1, 1, 0]]
    assert dropped.compute_metrics(rows)["correction/dropped"] == 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # Log-ratios 0.6, unknown and 0.3: 0 for the unknown one, the row's sum 0.9, its mean 0.3, its largest 0.6.
        ({"correction": "token_truncate", "correction_high": 1.5}, [1.5, 1, math.exp(0.3)]),
        ({"correction": "token_truncate", "correction_low": 1.2, "correction_high": 9.0}, [math.exp(0.6), 1.2, 1.35]),
        ({"correction": "sequence_truncate", "correction_high": 9.0}, [math.exp(0.9)] * 3),
        ({"correction": "sequence_mask", "correction_high": 2.0}, [0, 0, 0]),
        ({"correction": "geometric_mask", "correction_high": 1.36}, [math.exp(0.6), 1, math.exp(0.3)]),
        ({"correction": "geometric_mask", "correction_high": 1.34}, [0, 0, 0]),
        ({"rejection": "token_k2", "rejection_high": 0.1}, [0, 1, 1]),
        ({"rejection": "token_k1", "rejection_low": 0.1, "rejection_high": 0.9}, [1, 0, 1]),
        ({"rejection": "sequence_sum_k1", "rejection_low": 0.5}, [0, 0, 0]),
        ({"rejection": "sequence_mean_k1", "rejection_low": 0.73}, [1, 1, 1]),
        ({"rejection": "sequence_max_k2", "rejection_high": 0.17}, [0, 0, 0]),
    ],
)
def test_a_token_without_a_log_prob_shares_the_verdict_of_its_row(
    settings: dict[str, Any], expected: list[float]
) -> None:
    """It has the log-ratio 0, as in verl; by itself it would escape what drops the rest of its row."""
    rows = batch_of(answer((-1.0, math.nan, -1.0), (-0.4, -1.0, -0.7)))
    method = PolicyGradient(**settings)
    assert method.prepare(rows, None, None).advantages.tolist() == [pytest.approx(expected, abs=2e-4)]
    dropped = sum(value == 0 for value in expected) / 3
    assert method.compute_metrics(rows)["correction/dropped"] == pytest.approx(dropped)


@pytest.mark.parametrize(
    ("kinds", "low", "high", "expected"),
    [
        (("token_k1", "sequence_mean_k3"), (0.5,), (2.0,), [[1, 1, 0], [1, 1, 0]]),
        # A token that the first drops still counts in the mean of the second.
        (("token_k1", "sequence_mean_k3"), (0.5,), (2.0, 0.5), [[0, 0, 0], [1, 1, 0]]),
        (("token_k1", "sequence_mean_k3"), (0.6, 0.5), (2.0, 0.5), [[0, 0, 0], [0, 0, 0]]),
        (("sequence_mean_k3", "token_k1"), (0.0, 0.2), (9.0, 1.5), [[0, 1, 1], [1, 1, 0]]),
    ],
)
def test_of_several_rejections_each_must_keep_a_token(
    kinds: tuple[Any, ...], low: tuple[float, ...], high: tuple[float, ...], expected: list[list[float]]
) -> None:
    """Ratios and k3 as in the test of single rejections: the row means of k3 are 0.602 and 0.307."""
    settings = corrections.Correction(rejection=kinds, rejection_low=low, rejection_high=high)
    alone = [
        corrections.find_kept_tokens(RATIOS.log(), MASK, kind, least, most) for kind, least, most in settings.bounds
    ]
    assert torch.stack(alone).all(0).double().tolist() == expected
    rows = batch_of(
        answer((0.0,) * 3, tuple(RATIOS[0].log().tolist())), answer((0.0,) * 2, tuple(RATIOS[1, :2].log().tolist()))
    )
    # A row whose sampled log-probs are all 0 has no sampler.
    shift = 0.5 * rows.mask
    rows = replace(rows, sampled_logps=rows.sampled_logps - shift, old_logps=rows.old_logps - shift)
    found = corrections.apply_correction(rows, settings, in_ratio=False)
    assert found.advantages.tolist() == expected


def test_a_correction_of_vespo_is_inside_of_its_weight() -> None:
    """log w of tokens 0.5 and 0, and of the row 0.5 in all: the ratio of the row is e^0.5, and A stays what it is."""
    rows = batch_of(answer((-1.0, -0.5), (-0.5, -0.5)), answer((), (-1.0, -2.0)))
    for kind in ("token_truncate", "sequence_truncate"):
        method = PolicyGradient(surrogate="vespo", correction=kind, correction_high=9.0)
        found = method.prepare(rows, None, None)
        assert torch.equal(found.advantages, rows.advantages)
        loss, _ = method.terms(found, rows.old_logps)
        weight = math.exp(3 + 2 * 0.5 - 3 * math.exp(0.5))
        assert loss.tolist() == [[pytest.approx(0.5 * weight)] * 2, [pytest.approx(1), pytest.approx(2)]]
    method = PolicyGradient(surrogate="vespo", rejection="token_k1", rejection_low=0.9)
    assert method.prepare(rows, None, None).advantages.tolist() == [[0, 1], [1, 1]]


def test_a_token_without_an_advantage_stays_in_the_geometric_mean() -> None:
    """Log-ratios 0.1 and 0.6, the second dropped by a correction: the mean is still of 0.1 and of 0.4, its bound."""
    found = losses.compute_gmpo_log_ratios(column([0.1, 0.6]), column([2.0, 0.0]), column([1, 1]), 0.4, 0.4)
    assert found.tolist() == [[pytest.approx(0.25)] * 2]


def test_a_bypass_takes_the_sampler_for_the_old_policy_and_weighs_nothing() -> None:
    rows = batch_of(answer((-1.0, math.nan), (-0.5, -0.7)))
    settings = PolicyGradient(correction="bypass")
    assert not settings.needs_old_logps
    corrected = settings.prepare(rows, None, None)
    assert corrected.old_logps.tolist() == [[-1.0, -0.7]]
    assert torch.equal(corrected.advantages, rows.advantages)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clip_dual": 0.5},
        {"correction_low": 3.0},
        {"rejection": "token_k1", "rejection_low": 3.0},
        {"rejection": ("token_k1", "token_k2"), "rejection_low": (0.5, 0.5), "rejection_high": (2.0, 1.0, 1.0)},
        {"rejection": ("token_k1", "sequence_sum_k1"), "rejection_high": 2.0, "rejection_low": (0.5, 3.0)},
        {"rejection": ("none", "token_k1")},
        {"rejection": ("token_k1", "token_k1")},
        {"sapo_temperatures": (0.0, 1.0)},
        {"offpolicy_limit": -1.0},
        {"surrogate": "dppo", "correction": "token_mask"},
        {"surrogate": "ipo", "correction": "token_mask"},
    ],
)
def test_settings_that_no_run_can_mean(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(name for name in reversed(wrong))):
        PolicyGradient(**wrong)


# Scales


def test_scales_by_hand() -> None:
    """Dr. GRPO's constant is not divided by the rows in verl and LUFFY; every other average is the same everywhere."""
    for scale in get_args(Scale):
        assert (
            compute_factor(scale, "sequence", 64)
            == compute_factor(scale, "token", 64)
            == compute_factor(scale, "sequence_sum", 64)
            == 1
        )
    assert [compute_factor(scale, "constant", 64) for scale in get_args(Scale)] == [1, 1, 64, 1, 64]
    rows = batch_of(answer((-1.0,), (-1.0,)), answer((-1.0, -1.0), (-1.0, -1.0)))
    weights = PolicyGradient(average="constant", scale="luffy").weights(rows, 10)
    assert weights.tolist() == [[pytest.approx(0.1), 0], [pytest.approx(0.1)] * 2]


def test_cut_dependent_originals_by_hand() -> None:
    """Rows of 1 and 3 tokens with losses 4 and 1, 1, 1: how each library sums them in one micro-batch and in two."""
    loss, mask = column([4, 9, 9], [1, 1, 1]), column([1, 0, 0], [1, 1, 1])
    together, apart = [[0, 1]], [[0], [1]]
    assert float(average_as_verl_legacy(loss, mask, together, "token")) == pytest.approx(7 / 4)
    assert float(average_as_verl_legacy(loss, mask, apart, "token")) == pytest.approx((4 + 1) / 2)
    assert float(average_as_verl_legacy(loss, mask, apart, "sequence")) == pytest.approx((4 + 1) / 2)
    assert float(average_as_verl_legacy(loss, mask, together, "constant", 10)) == pytest.approx(7 / 10)
    assert float(average_as_verl_legacy(loss, mask, apart, "constant", 10)) == pytest.approx(7 / 10 / 2)
    assert float(average_as_trl_bnpo(loss, mask, together)) == pytest.approx(7 / 4)
    assert float(average_as_trl_bnpo(loss, mask, apart)) == pytest.approx((4 + 1) / 2)
    assert float(sum_as_luffy(loss, mask, apart, 10)) == float(sum_as_luffy(loss, mask, together, 10))
    assert float(sum_as_luffy(loss, mask, apart)) == pytest.approx(4 + 1)


def test_averages_are_verls(shared: Path) -> None:
    """The recorded results of its aggregation, January 2026, for one micro-batch; a global count is the caller's."""
    data = np.load(shared / "vectors" / "verl_agg_loss.npz")
    names: dict[str, Any] = {
        "token-mean": "token",
        "seq-mean-token-sum": "sequence_sum",
        "seq-mean-token-mean": "sequence",
        "seq-mean-token-sum-norm": "constant",
    }
    for name, average in names.items():
        loss, mask = (torch.from_numpy(data[f"{name}::in::{part}"]) for part in ("loss_mat", "loss_mask"))
        (expected,) = json.loads(str(data[f"{name}::scalars"])).values()
        found = average_as_verl_legacy(loss, mask.double(), [range(len(mask))], average, mask.shape[1])
        assert float(found) == pytest.approx(expected, rel=1e-6), name


# The ratio of a later update


def updates(algorithm: PolicyGradient, forget: bool, **settings: Any) -> None:
    """Two updates for one scoring; a user's loss that forgets old log-probs takes the policy's own at each."""
    torch.manual_seed(0)
    learner = Learner(make_model(), algorithm, LearnerSettings(**{"lr": 1e-3, **settings}))
    rollouts = [make_rollout(random.Random(seed)) for seed in range(4)]
    learner.score(rollouts, old=True)
    for step in range(2):
        if forget:
            for rollout, logps in zip(rollouts, learner.score_outputs(learner.model, rollouts), strict=True):
                rollout.old_logps = logps
        learner.update(rollouts, step)


def test_a_ratio_that_cannot_move_is_an_error() -> None:
    """And is none where there is no ratio, where nothing moved, in the first update, and where all was given."""
    with pytest.raises(QedError, match="exactly 1"):
        updates(PolicyGradient(), forget=True)
    updates(PolicyGradient(), forget=False)
    updates(PolicyGradient(surrogate="plain"), forget=True)
    updates(PolicyGradient(), forget=True, lr=0.0)
    updates(PolicyGradient(), forget=True, lr=1e-20)
    learner = Learner(make_model(), RlSft(), LearnerSettings(lr=1e-3))
    imitated = answer((0.0, 0.0), (-1.0, -1.0), given=2)
    learner.score([imitated], old=True)
    for step in range(2):
        assert "ratio/log_max" not in learner.update([imitated], step)
