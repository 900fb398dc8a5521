"""Law 2: a loss is a sum, so micro-batches, row order, padding and idle rows cannot change the gradient of a step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_model, make_rollout

from qed import plugins
from qed.algorithms import find
from qed.algorithms.base import Algorithm, Average, spread
from qed.algorithms.parts.shaping import Shaping
from qed.batch import collate, cut
from qed.learner import Learner
from qed.settings import LearnerSettings
from qed.types import Rollout

ALL = sorted(plugins.shelf("algorithms"))
AVERAGES = list(get_args(Average))
MODEL = make_model()


# Settings that take other ways through an algorithm than its defaults do.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "luffy": [
        {"shaping": Shaping(drop_above=0.2)},
        {
            "shaping": Shaping(kind="p_logp", own_kind="regularized", behaviour=True, most=2.0, least=0.1),
            "clip_high": 0.2,
        },
    ],
    "rl_sft": [{"sft": 0.3, "clip_low": 0.2}],
    "exgrpo": [{"mixed": True}, {"mixed": True, "corrected": False}],
}


def variants(name: str) -> list[Algorithm]:
    """An algorithm with each average, with KL and entropy where it has them, and with its own other settings."""
    kind = find(name)
    extras = [{}, {"kl": 0.1, "entropy": 0.01}] if "kl" in {field.name for field in fields(kind)} else [{}]
    extras += SETTINGS.get(name, [])
    return [kind(average=average, **extra) for average in AVERAGES for extra in extras]


def gradient(algorithm: Algorithm, rollouts: Sequence[Rollout], budget: int) -> torch.Tensor:
    """The gradient of one step, all parameters in one vector."""
    # The reference's log-probs are given with the rollouts, so the learner needs no copy of the model.
    learner = Learner(MODEL, algorithm, LearnerSettings(tokens_per_microbatch=budget), temperature=0.7, length=11)
    learner.optimizer.zero_grad(set_to_none=True)
    learner.accumulate(rollouts)
    return torch.cat([(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in learner.parameters])


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 7), budget=st.integers(1, 90), which=st.integers(0, 99))
def test_cuts_and_order_change_nothing(name: str, seed: int, count: int, budget: int, which: int) -> None:
    source = random.Random(seed)
    rollouts = [make_rollout(source) for _ in range(count)]
    algorithm = variants(name)[which % len(variants(name))]
    whole = gradient(algorithm, rollouts, budget=10**6)
    assert_same(gradient(algorithm, rollouts, budget), whole)
    assert_same(gradient(algorithm, source.sample(rollouts, count), budget), whole)


@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every row alone, without a padded place, gives what one wide batch gives; and it does not matter what is padded
    with."""
    rollouts = [make_rollout(random.Random(seed), longest=3 + 3 * seed) for seed in range(4)]
    for algorithm in variants(name):
        whole = gradient(algorithm, rollouts, budget=10**6)
        assert_same(gradient(algorithm, rollouts, budget=1), whole)
        with monkeypatch.context() as patch:
            patch.setattr("qed.learner.collate", lambda rows, dtype: collate(rows, pad=7, dtype=dtype))
            assert_same(gradient(algorithm, rollouts, budget=10**6), whole)


@pytest.mark.parametrize("name", ALL)
def test_rows_that_are_not_live_count_but_add_nothing(name: str) -> None:
    """Computing every row gives the gradient of computing the live ones."""
    rollouts = [make_rollout(random.Random(seed)) for seed in range(6)]
    for algorithm in variants(name):
        everything = type("Everything", (type(algorithm),), {"live": lambda self, batch: batch.mask.any(1)})
        computed = everything(**{field.name: getattr(algorithm, field.name) for field in fields(algorithm)})
        assert_same(gradient(algorithm, rollouts, 40), gradient(computed, rollouts, 40))


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("sft", "expert_iteration", "rl_sft")])
def test_zero_advantage_gives_zero_gradient(name: str) -> None:
    rollouts = [make_rollout(random.Random(seed), advantage=0.0) for seed in range(4)]
    for average in AVERAGES:
        assert not gradient(find(name)(average=average), rollouts, 40).any()


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8), length=st.integers(1, 20))
def test_weights_are_what_each_average_promises(lengths: list[int], length: int) -> None:
    mask = torch.zeros(len(lengths), max(lengths), dtype=torch.float64)
    for row, count in enumerate(lengths):
        mask[row, :count] = 1
    token, sequence, constant = (spread(mask, average, length) for average in ("token", "sequence", "constant"))
    torch.testing.assert_close(token.sum(), torch.tensor(1.0).double())
    torch.testing.assert_close(sequence.sum(1), torch.full((len(lengths),), 1 / len(lengths)).double())
    torch.testing.assert_close(constant.sum(1), mask.sum(1) / (len(lengths) * length))
    for weights in (token, sequence, constant):
        assert not weights[mask == 0].any()


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12), budget=st.integers(1, 120))
def test_a_cut_keeps_every_row_whole_and_within_the_budget(seed: int, count: int, budget: int) -> None:
    source = random.Random(seed)
    batch = collate([make_rollout(source) for _ in range(count)])
    parts = cut(batch, budget)
    assert sorted(row for part in parts for row in part) == list(range(count))
    for part in parts:
        piece = batch.select(part)
        assert piece.inputs.numel() <= budget or len(part) == 1
        assert (piece.attention.sum(1) == batch.attention[part].sum(1)).all()
