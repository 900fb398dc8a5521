"""GAE and the value loss: their closed forms, the recursions of verl and TRL written out, and autograd."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.algorithms.parts.critic import Critic
from qed.algorithms.parts.estimators import whiten
from qed.algorithms.parts.gae import Gae, compute_gae, compute_value_losses
from qed.algorithms.ppo import Ppo
from qed.errors import UsageError
from qed.rollout.stages import assign_advantages
from qed.training.critic import measure_values
from qed.types import Grade, Problem, Rollout, pack_column

EXACT = {"rtol": 0, "atol": 1e-9}
NUMBERS = st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=8)


def to_column(numbers: Any) -> torch.Tensor:
    """Numbers in float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def make_answer(
    reward: float, values: list[float], mask: list[bool] | None = None, tier: str = "", *, has_reward: bool = True
) -> Rollout:
    """A graded answer with the critic's values; the mask says which tokens are trained."""
    count = len(values)
    rollout = Rollout(Problem("p", "?", "1"), [5], [2] * count, [-1.0] * count, "", "stop", loss_mask=mask or ())
    rollout.grade = Grade(reward, reward > 0, True, None, tier=tier, has_reward=has_reward)
    rollout.values = values
    return rollout


def recurse(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, discount: float, decay: float
) -> torch.Tensor:
    """GAE over a padded batch, from its end: a token that is not trained hands on what came after it."""
    later, following = torch.zeros(len(rewards)).double(), torch.zeros(len(rewards)).double()
    found = torch.zeros_like(rewards)
    for place in reversed(range(rewards.shape[1])):
        own = rewards[:, place] + discount * following - values[:, place] + discount * decay * later
        later = torch.where(mask[:, place], own, later)
        following = torch.where(mask[:, place], values[:, place], following)
        found[:, place] = own * mask[:, place]
    return found


@given(values=NUMBERS, reward=st.floats(-1, 1), discount=st.sampled_from([1.0, 0.9]), decay=st.floats(0, 1))
@settings(max_examples=30)
def test_the_closed_form(values: list[float], reward: float, discount: float, decay: float) -> None:
    rewards = torch.zeros(len(values)).double()
    rewards[-1] = reward
    column = to_column(values)
    following = [*values[1:], 0.0]
    errors = [float(r) + discount * later - v for r, later, v in zip(rewards, following, values, strict=True)]
    expected = [
        sum((discount * decay) ** (k - t) * errors[k] for k in range(t, len(values))) for t in range(len(values))
    ]
    torch.testing.assert_close(compute_gae(rewards, column, discount, decay), to_column(expected), **EXACT)


def test_lambda_1_is_the_outcome_less_the_value_and_lambda_0_looks_one_token_ahead() -> None:
    rewards, values = to_column([0.0, 0.0, 1.0]), to_column([0.2, 0.5, 0.9])
    torch.testing.assert_close(compute_gae(rewards, values, 1, 1), 1 - values, **EXACT)
    torch.testing.assert_close(compute_gae(rewards, values, 1, 0), to_column([0.3, 0.4, 0.1]), **EXACT)


@given(seed=st.integers(0, 999))
@settings(max_examples=20)
def test_tokens_that_are_not_trained_are_passed_over(seed: int) -> None:
    """Advantages and returns of whole answers, against the recursion with a mask; whitened over the trained tokens."""
    source = random.Random(seed)
    masks = [[source.random() < share for _ in range(6)] for share in (0.7, 0.7, 0.7, 0.1)]  # often none of the last
    answers = [
        make_answer(source.choice([0.0, 1.0]), [source.uniform(-1, 1) if own else 0.0 for own in mask], mask)
        for mask in masks
    ]
    mask = torch.tensor(masks)
    values = to_column([list(answer.values or ()) for answer in answers])
    rewards = torch.zeros_like(values)
    for row, answer in enumerate(answers):
        if any(masks[row]):
            rewards[row, 5 - masks[row][::-1].index(True)] = answer.reward
    for whitened in (False, True):
        algorithm = Ppo(whiten=whitened, discount=0.95, gae=Gae(policy_lambda=0.8, value_lambda=0.9))
        assign_advantages([answers[:2], answers[2:]], algorithm)
        expected = recurse(rewards, values, mask, 0.95, 0.8)
        if whitened and mask.any():
            expected[mask] = whiten(expected[mask])
        returns = recurse(rewards, values, mask, 0.95, 0.9) + values * mask
        for row, answer in enumerate(answers):
            own = answer.advantage if isinstance(answer.advantage, tuple) else (answer.advantage,) * 6
            chosen = to_column(own) * mask[row]
            torch.testing.assert_close(chosen, expected[row], **EXACT)
            torch.testing.assert_close(to_column(list(answer.returns or ())), returns[row], **EXACT)


def test_the_length_of_an_answer_sets_its_lambda() -> None:
    gae = Gae(length_alpha=0.05)
    assert [gae.choose_lambda(length) for length in (0, 10, 20, 100)] == [0.0, 0.0, 0.0, pytest.approx(0.8)]
    assert Gae().choose_lambda(7) == 0.95


def test_an_answer_without_a_verdict_teaches_neither_policy_nor_critic() -> None:
    answers = [
        make_answer(1, [0.1, 0.2]),
        make_answer(0, [0.3], tier="timeout"),
        make_answer(0, [0.4], has_reward=False),
    ]
    assign_advantages([answers], Ppo())
    assert [answer.advantage for answer in answers[1:]] == [0.0, 0.0]
    assert all(math.isnan(value) for answer in answers[1:] for value in answer.returns or ())
    assert answers[0].returns == (1.0, 1.0)


def test_the_value_loss_is_that_of_trl_and_verl() -> None:
    """The mean over the tokens of the mask, values and gradients, against the larger of two squares."""
    torch.manual_seed(0)
    old, returns = torch.randn(4, 7).double(), torch.randn(4, 7).double()
    mask = torch.rand(4, 7) < 0.6
    values = (old + 0.4 * torch.randn(4, 7)).requires_grad_()
    losses, clipped = compute_value_losses(values, old, returns.where(mask, torch.nan), 0.2)
    mean = (losses * mask).sum() / mask.sum()
    (gradient,) = torch.autograd.grad(mean, values)
    total, slopes, bounded = 0.0, torch.zeros(4, 7).double(), 0
    for row, place in mask.nonzero().tolist():
        value, target = float(values.detach()[row, place]), float(returns[row, place])
        centre = float(old[row, place])
        inside = max(centre - 0.2, min(centre + 0.2, value))
        plain, other = (value - target) ** 2, (inside - target) ** 2
        total += 0.5 * max(plain, other)
        bounded += other > plain
        slopes[row, place] = 0.0 if other > plain else value - target
    count = int(mask.sum())
    torch.testing.assert_close(float(mean.detach()), total / count, **EXACT)
    torch.testing.assert_close(gradient, slopes / count, **EXACT)
    assert int(clipped.sum()) == bounded > 0


def test_without_a_clip_the_value_loss_is_half_a_square() -> None:
    values, old, returns = torch.randn(3, 9).double()
    losses, clipped = compute_value_losses(values, old, returns, math.inf)
    torch.testing.assert_close(losses, 0.5 * (values - returns) ** 2, **EXACT)
    assert not clipped.any()


def test_the_explained_variance() -> None:
    def measure(values: list[float], returns: list[float]) -> dict[str, float]:
        answer = make_answer(1, values)
        answer.returns = returns
        return measure_values([answer])

    assert measure([0, 1, 0.5], [0, 1, 0.5])["critic/explained_variance"] == 1
    assert measure([3, 3, 3], [0, 1, 0.5])["critic/explained_variance"] == 0
    assert measure([1, 0], [0, 1])["critic/explained_variance"] == -3
    assert "critic/explained_variance" not in measure([0.5, 0.1], [1, 1])
    assert "critic/explained_variance" not in measure([0.5, 0.1], [0, 0])
    assert "critic/explained_variance" not in measure([0.5, 0.1, 0.2], [0.1, 0.1 + 2e-17, 0.3 - 0.2])
    assert measure([0.5, 9.0], [1, math.nan]) == {"critic/values": 0.5, "critic/returns": 1.0}
    assert measure([0.5], [math.nan]) == {}
    assert measure([0.5, math.inf], [1, 2])["critic/values"] == math.inf


def test_the_values_of_tokens_that_are_not_trained_are_not_measured() -> None:
    answer, other = make_answer(1, [0.5, 9.0, 1.5]), make_answer(1, [])
    answer.returns, answer.loss_mask = pack_column("d", [1.0, 7.0, 3.0]), pack_column("b", [True, False, True])
    assert measure_values([answer, other]) == {
        "critic/values": 1.0,
        "critic/returns": 2.0,
        "critic/explained_variance": 0.75,
    }


@pytest.mark.parametrize(
    "build",
    [
        lambda: Critic(clip=0),
        lambda: Critic(lr=-1),
        lambda: Critic(passes=-1),
        lambda: Critic(trunk="policy", warmup_steps=2),
        lambda: Gae(policy_lambda=1.2),
        lambda: Gae(length_alpha=-1),
        lambda: Ppo(estimator="group"),
    ],
)
def test_settings_out_of_range_are_refused(build) -> None:
    with pytest.raises(UsageError, match=r"algorithm\."):
        build()
