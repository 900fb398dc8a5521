"""Algorithms on numbers small enough for paper, the arithmetic written out."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from making import make_model, make_rollout

from qed.algorithms.base import Algorithm, compute_token_weights
from qed.algorithms.dft import Dft
from qed.algorithms.dr_grpo import DrGrpo
from qed.algorithms.expert_iteration import ExpertIteration
from qed.algorithms.grpo import Grpo
from qed.algorithms.reinforce import Reinforce
from qed.algorithms.sft import Sft
from qed.config.settings import LearnerSettings
from qed.errors import UsageError
from qed.evaluation.intervals import compute_wilson_interval
from qed.training.batch import COLUMNS, Batch
from qed.training.learner import Learner
from qed.training.optim import compute_learning_rate
from qed.types import Grade, Problem, Rollout


def batch(mask: list[list[int]], advantages: list[float], **columns: torch.Tensor) -> Batch:
    """A batch of which the loss reads only some columns."""
    shape = torch.tensor(mask, dtype=torch.float64)
    zeros = torch.zeros_like(shape)
    parts: dict[str, Any] = dict.fromkeys(COLUMNS, zeros) | {
        "attention": shape.long(),
        "mask": shape,
        "advantages": torch.tensor(advantages, dtype=torch.float64)[:, None] * shape,
        "behaviour_logps": zeros * torch.nan,
    }
    return Batch(**{**parts, **columns})


def loss_and_gradient(algorithm: Algorithm, rows: Batch, logps: torch.Tensor) -> tuple[float, torch.Tensor]:
    logps = logps.double().requires_grad_()
    rows = rows.with_weights(algorithm.weights(rows, 4))
    loss, _ = algorithm.loss(rows, logps, torch.zeros_like(logps))
    (gradient,) = torch.autograd.grad(loss, logps)
    return float(loss.detach()), gradient


def test_sft_is_the_mean_negative_log_likelihood() -> None:
    """Three tokens of log-probs -1, -2, -3: the loss is 6/3, each token's gradient -1/3."""
    rows = batch([[1, 1], [1, 0]], [0, 0])
    loss, gradient = loss_and_gradient(Sft(), rows, torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]))
    assert loss == pytest.approx(2)
    assert gradient.tolist() == [[pytest.approx(-1 / 3), pytest.approx(-1 / 3)], [pytest.approx(-1 / 3), 0]]


def test_reinforce_weighs_by_the_advantage() -> None:
    """A = 2 and -1 on rows of two tokens and one; sequence mean: w = 1/4 a token of the first, 1/2 of the second."""
    rows = batch([[1, 1], [1, 0]], [2, -1])
    loss, gradient = loss_and_gradient(Reinforce(average="sequence"), rows, torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]))
    assert loss == pytest.approx(-(2 * (-1 - 2) / 4 + -1 * -3 / 2))
    assert gradient.tolist() == [[pytest.approx(-0.5)] * 2, [pytest.approx(0.5), 0]]


def test_dft_weighs_by_the_probability_itself() -> None:
    """Probabilities 1/2 and 1/4, each of weight 1/2: the loss is (log 2 / 2 + log 4 / 4) / 2, the gradient -p / 2."""
    rows = batch([[1, 1, 0]], [0])
    loss, gradient = loss_and_gradient(Dft(), rows, torch.tensor([[math.log(0.5), math.log(0.25), math.nan]]))
    assert loss == pytest.approx((math.log(2) / 2 + math.log(4) / 4) / 2)
    assert gradient.tolist() == [[pytest.approx(-1 / 4), pytest.approx(-1 / 8), 0]]


def test_a_constant_of_ones_own_divides_the_constant_average() -> None:
    """CS336's masked normalise: the sum of a row over c, then the mean over rows; rows of two tokens and one, c = 5."""
    algorithm = Sft(average="constant", average_length=5)
    loss, _ = loss_and_gradient(algorithm, batch([[1, 1], [1, 0]], [0, 0]), torch.tensor([[-1.0, -2.0], [-3.0, 0.0]]))
    assert loss == pytest.approx((3 / 5 + 3 / 5) / 2)
    with pytest.raises(UsageError, match="average_length"):
        Grpo(average_length=-1)


@pytest.mark.parametrize("kind", [Grpo, DrGrpo])
def test_grpo_at_ratio_one_is_reinforce(kind: type[Grpo]) -> None:
    """On-policy the gradient of the clipped surrogate is that of A log pi; the loss itself is -w A."""
    logps = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    rows = batch([[1, 1], [1, 0]], [2, -1], old_logps=logps.double())
    _, gradient = loss_and_gradient(kind(), rows, logps)
    _, plain = loss_and_gradient(Reinforce(average=kind().average), rows, logps)
    torch.testing.assert_close(gradient, plain)


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected", "moves"),
    [
        (1.0, 1.5, -1.28, False),  # good and already more likely: clipped above at 1 + 0.28
        (1.0, 0.5, -0.5, True),  # good but less likely: pulled back up, whatever the distance
        (-1.0, 0.5, 0.8, False),  # bad and already less likely: clipped below at 1 - 0.2
        (-1.0, 1.5, 1.5, True),  # bad but more likely: pushed down without a bound
    ],
)
def test_the_clip_binds_on_the_far_side_only(advantage: float, ratio: float, expected: float, moves: bool) -> None:
    rows = batch([[1]], [advantage])
    loss, gradient = loss_and_gradient(Grpo(clip_high=0.28), rows, torch.tensor([[math.log(ratio)]]))
    assert loss == pytest.approx(expected)
    assert bool(gradient.any()) is moves
    if moves:
        assert float(gradient) == pytest.approx(-advantage * ratio)


def test_kl_and_entropy_are_averaged_as_the_policy_loss_is() -> None:
    """k3 at ref - logp = log 2 is 2 - log 2 - 1; two rows of one token, so each weighs 1/2; entropy 0.7 and 0.1."""
    rows = batch([[1], [1]], [0, 0], ref_logps=torch.tensor([[math.log(2)], [0.0]], dtype=torch.float64))
    algorithm = Grpo(kl=0.5, entropy=0.1)
    rows = rows.with_weights(algorithm.weights(rows, 4))
    assert algorithm.has_gradient(rows).all()
    entropy = torch.tensor([[0.7], [0.1]], dtype=torch.float64)
    loss, stats = algorithm.loss(rows, torch.zeros(2, 1, dtype=torch.float64), entropy)
    assert float(loss) == pytest.approx(0.5 * (1 - math.log(2)) / 2 - 0.1 * (0.7 + 0.1) / 2)
    assert float(stats["kl/ref"]) == pytest.approx(1 - math.log(2))


def test_advantages_by_hand() -> None:
    """Rewards 1, 0, 0, 1: mean 1/2, variance with n - 1 is 1/3, so A = ±0.5 / (sqrt(1/3) + 1e-6)."""
    rewards = torch.tensor([1.0, 0, 0, 1], dtype=torch.float64)
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    assert Grpo().advantages(rewards).tolist() == pytest.approx([expected, -expected, -expected, expected])
    assert DrGrpo().advantages(rewards).tolist() == [0.5, -0.5, -0.5, 0.5]
    assert Reinforce().advantages(rewards).tolist() == [0.5, -0.5, -0.5, 0.5]
    assert Reinforce(estimator="none").advantages(rewards).tolist() == rewards.tolist()
    equal = torch.full((7,), 0.1, dtype=torch.float64)  # its mean is not exactly 0.1
    for algorithm in (Grpo(), DrGrpo(), Reinforce()):
        assert not algorithm.advantages(equal).any()
    assert not Grpo().advantages(equal[:1]).any(), "a group of one has no deviation"


def test_averages_by_hand() -> None:
    """Rows of two tokens and one, budget 4: 1/3 each; 1/4, 1/4, 1/2; 1/8 each."""
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    assert compute_token_weights(mask, "token", 4).tolist() == [[pytest.approx(1 / 3)] * 2, [pytest.approx(1 / 3), 0]]
    assert compute_token_weights(mask, "sequence", 4).tolist() == [[0.25, 0.25], [0.5, 0]]
    assert compute_token_weights(mask, "constant", 4).tolist() == [[0.125, 0.125], [0.125, 0]]


def test_expert_iteration_keeps_correct_answers_once_and_few_of_a_problem() -> None:
    def answer(token: int, correct: bool) -> Rollout:
        rollout = Rollout(Problem("p", "?", "1"), (0,), (token,), (-1.0,), "", "stop")
        rollout.grade = Grade(float(correct), correct, True, None)
        return rollout

    group = [answer(1, True), answer(1, True), answer(2, False), answer(3, True), answer(4, True)]
    assert [r.output[0] for r in ExpertIteration().rows([group])] == [1, 3, 4]
    assert [r.output[0] for r in ExpertIteration(keep=2).rows([group, group])] == [1, 3, 1, 3]
    assert [r.output[0] for r in ExpertIteration(deduplicate=False).rows([group])] == [1, 1, 3, 4]


def test_a_restart_forgets_what_was_learned() -> None:
    """The first update after a restart is the first update of all, bit for bit."""
    rows = [make_rollout(random.Random(seed)) for seed in range(3)]

    def state(learner: Learner) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in learner.parameters]

    learner = Learner(make_model(), ExpertIteration(restart=True), LearnerSettings(lr=0.1))
    learner.set_initial_weights(learner.model.state_dict())
    learner.update(rows, 0)
    once = state(learner)
    learner.update(rows, 0)
    assert any(not torch.equal(one, other) for one, other in zip(once, state(learner), strict=True))
    learner.restore_initial_weights()
    learner.update(rows, 0)
    assert all(torch.equal(one, other) for one, other in zip(once, state(learner), strict=True))


def test_schedules() -> None:
    """Four steps of warm-up to 1, then eight down to 0; the first step is not lost at a rate of 0."""
    linear = LearnerSettings(lr=1.0, steps=12, warmup_steps=4, schedule="linear")
    assert [compute_learning_rate(linear, step) for step in (0, 3, 4, 8, 11, 12, 99)] == [0.25, 1, 1, 0.5, 0.125, 0, 0]
    cosine = LearnerSettings(lr=2.0, steps=8, schedule="cosine")
    assert [compute_learning_rate(cosine, step) for step in (0, 4, 8)] == pytest.approx([2, 1, 0])
    assert compute_learning_rate(LearnerSettings(lr=3.0, steps=2), 50) == 3


def test_intervals() -> None:
    """Wilson 1927 for 8 of 10 is [.490, .943]."""
    assert compute_wilson_interval(8, 10) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)
    assert compute_wilson_interval(0, 5)[0] == 0
    assert compute_wilson_interval(5, 5)[1] == 1
    assert compute_wilson_interval(0, 0) == (0, 1)


@pytest.mark.parametrize(
    ("case", "algorithm"),
    [
        ("grpo_binary_std1", Grpo()),
        ("grpo_binary_std0", Grpo(normalize_std=False)),
    ],
)
def test_recorded_advantages(shared: Path, case: str, algorithm: Algorithm) -> None:
    """verl's group advantages: the outcome of a row, spread over its tokens."""
    vectors = np.load(shared / "vectors" / "verl_advantages.npz")
    rewards = torch.tensor(vectors[f"{case}::in::token_level_rewards"]).double().sum(1)
    groups, mask = vectors[f"{case}::in::index"], vectors[f"{case}::in::response_mask"]
    found = torch.zeros(len(rewards), dtype=torch.float64)
    for group in set(groups.tolist()):
        members = torch.tensor(groups == group)
        found[members] = algorithm.advantages(rewards[members])
    np.testing.assert_allclose(found[:, None].numpy() * mask, vectors[f"{case}::out::advantages"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", ["grpo_clip_loss_large", "grpo_clip_loss_small"])
def test_recorded_clipped_losses(shared: Path, case: str) -> None:
    """The course's per-token GRPO-clip loss, one token at a time through ours."""
    vectors = np.load(shared / "vectors" / "cs336_a5.npz")
    logps, old = (torch.tensor(vectors[f"{case}::in::{name}_log_probs"]).double() for name in ("policy", "old"))
    advantages = torch.tensor(vectors[f"{case}::in::advantages"]).double().flatten()
    wide = {"grpo_clip_loss_large": 10.0, "grpo_clip_loss_small": 0.1}[case]
    algorithm = Grpo(clip_low=min(1.0, wide), clip_high=wide)
    expected = vectors[f"{case}::out::loss"]
    for row in range(logps.shape[0]):
        for column in range(logps.shape[1]):
            one = batch([[1]], [float(advantages[row])], old_logps=old[row, column].reshape(1, 1))
            loss, _ = loss_and_gradient(algorithm, one, logps[row, column].reshape(1, 1))
            assert loss == pytest.approx(float(expected[row, column]), rel=1e-4, abs=1e-5)
