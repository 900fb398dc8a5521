"""ReLIFT: its two losses in closed form, and what waits in its buffer."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from making import make_model, make_rollout, prefix_mask

from qed.algorithms.dr_grpo import DrGrpo
from qed.algorithms.relift import Relift, is_unsolved
from qed.algorithms.sft import Sft
from qed.config.settings import LearnerSettings
from qed.errors import UsageError
from qed.rollout.replay import ReplayBuffer
from qed.training.batch import collate
from qed.training.learner import Learner
from qed.types import Grade, Group, Problem, Rollout

LENGTH = 13


def sampled(seed: int, advantage: float) -> Rollout:
    rollout = make_rollout(random.Random(seed), advantage)
    return replace(rollout, sampled_mask=(), behaviour=())


def demonstration(seed: int) -> Rollout:
    rollout = make_rollout(random.Random(seed), 0.0)
    given = prefix_mask(len(rollout.output), len(rollout.output))
    return replace(rollout, source="expert", sampled_mask=given, behaviour=(), old_logps=None, ref_logps=None)


def compute(algorithm: Any, rollouts: list[Rollout]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The loss, its gradient by the log-probs, and the mask."""
    batch = collate(rollouts, dtype=torch.float64)
    batch = algorithm.prepare(batch.with_weights(algorithm.weights(batch, LENGTH)), None, None)
    source = torch.Generator().manual_seed(0)
    logps = -3 * torch.rand(batch.mask.shape, generator=source, dtype=torch.float64)
    logps.requires_grad_()
    loss, _ = algorithm.loss(batch, logps, torch.zeros_like(logps))
    (gradient,) = torch.autograd.grad(loss, logps)
    expected = -(logps.detach() * batch.mask).sum() / batch.mask.sum()
    return torch.stack([loss.detach(), expected]), gradient, batch.mask


def test_the_sft_update_is_the_mean_over_all_tokens() -> None:
    (loss, expected), gradient, mask = compute(Relift(), [demonstration(seed) for seed in range(5)])
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, -mask / mask.sum(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("settings", [{}, {"kl": 0.1, "entropy": 0.01}, {"clip_low": 0.2, "clip_high": 0.28}])
def test_the_rl_update_is_that_of_dr_grpo(settings: dict[str, Any]) -> None:
    rollouts = [sampled(seed, advantage) for seed, advantage in enumerate((1.0, -0.5, 0.5, 0.0))]
    unclipped = {"clip_low": 1.0, "clip_high": float("inf")}
    (loss, _), gradient, _ = compute(Relift(**settings), rollouts)
    (wanted, _), wanted_gradient, _ = compute(DrGrpo(**{**unclipped, **settings}), rollouts)
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("settings", [{}, {"kl": 0.1, "entropy": 0.01}, {"correction": "token_truncate"}])
def test_an_update_on_demonstrations_alone_is_that_of_sft(settings: dict[str, Any]) -> None:
    """With a KL, an entropy bonus or a correction too, which are for sampled tokens."""
    rollouts, weights = [demonstration(seed) for seed in range(5)], []
    for algorithm in (Relift(**settings), Sft(average="token")):
        learner = Learner(make_model(), algorithm, LearnerSettings(lr=1e-2, tokens_per_microbatch=30), length=LENGTH)
        learner.moved = 1.0  # an RL update has come before
        stats = learner.update(copy.deepcopy(rollouts), 0)
        assert stats["train/live_rows"] == 5
        weights.append(learner.model.state_dict())
    torch.testing.assert_close(*weights, rtol=1e-12, atol=1e-12)


def answer(problem: str, right: bool, source: Any = "policy", has_reward: bool = True) -> Rollout:
    rollout = Rollout(Problem(problem, "?", "1"), (5,), (7, 1), (-0.5, -0.5), "", "stop", source=source)
    if source == "expert":
        rollout.sampled_mask, rollout.logps = (False, False), (0.0, 0.0)
    rollout.grade = Grade(float(right), right, True, None, has_reward=has_reward)
    return rollout


def group(problem: str, right: int, size: int = 4, demonstrations: tuple[bool, ...] = (True,)) -> Group:
    own = [answer(problem, number < right) for number in range(size)]
    return own + [answer(problem, verdict, "expert") for verdict in demonstrations]


def name_problems(rollouts: list[Rollout]) -> list[str]:
    return [rollout.problem.id for rollout in rollouts]


def test_demonstrations_of_unsolved_problems_wait_for_a_full_update() -> None:
    pool, relift = ReplayBuffer(), Relift()
    first = [group("a", 0), group("solved", 1), group("b", 0), group("none", 0, demonstrations=())]
    assert relift.extra_minibatches(first, pool, wanted=4) == []
    assert name_problems(pool.waiting) == ["a", "b"]
    second = [group("c", 0), group("wrong", 0, demonstrations=(False,)), group("d", 0), group("e", 0)]
    (taken,) = relift.extra_minibatches(second, pool, wanted=4)
    assert name_problems(taken) == ["a", "b", "c", "d"], "the oldest"
    assert name_problems(pool.waiting) == ["e"]
    (taken,) = replace(relift, buffer=2).extra_minibatches([group("a", 0), group("f", 0)], pool, wanted=4)
    assert name_problems(taken) == ["e", "a"], "the setting, and a problem again that is still unsolved"
    keep = Relift(wrong_traces="keep")
    assert len(keep.extra_minibatches(second, ReplayBuffer(), wanted=4)[0]) == 4
    with pytest.raises(UsageError, match="buffer"):
        Relift(buffer=-1)


def test_a_problem_is_unsolved_if_its_own_answers_have_rewards_and_none_is_right() -> None:
    assert is_unsolved([answer("a", False), answer("a", True, "expert"), answer("a", True, "greedy")])
    assert not is_unsolved([answer("a", False), answer("a", True)])
    assert not is_unsolved([answer("a", False, has_reward=False)]), "nobody knows"
    assert not is_unsolved([answer("a", True, "expert")])
    failed = answer("a", False)
    failed.grade = Grade(0.0, False, False, None, tier="timeout")
    assert not is_unsolved([failed])
    assert is_unsolved([failed, answer("a", False)])


@pytest.mark.parametrize("dynamic", [False, True])
def test_demonstrations_are_no_part_of_a_group(dynamic: bool) -> None:
    """So they change neither its statistics nor whether dynamic sampling keeps it."""
    groups = [group("a", 0), group("b", 2), group("c", 4)]
    kept = Relift(dynamic_sampling=dynamic).filter_groups(groups)
    assert [name_problems(each) for each in kept] == [[name] * 4 for name in ("b" if dynamic else "abc")]
    assert len(groups[0]) == 5, "what was sampled stays as it is"


def test_what_waits_is_part_of_a_checkpoint() -> None:
    pool = ReplayBuffer()
    Relift().extra_minibatches([group("a", 0), group("b", 0)], pool, wanted=4)
    rows = json.loads(json.dumps(pool.to_rows()))
    again = ReplayBuffer.from_rows(rows, {name: Problem(name, "?", "1") for name in "ab"})
    assert again == pool
    copied = pool.copy()
    copied.waiting.clear()
    assert name_problems(pool.waiting) == ["a", "b"]
