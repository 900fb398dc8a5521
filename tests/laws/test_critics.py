"""A critic's gradient is a sum over its rows too: micro-batches, order, packing and ranks change nothing."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from making import make_holes, make_model, make_rollout
from threaded import run_threads

from qed.algorithms.parts.critic import Critic
from qed.algorithms.ppo import Ppo
from qed.config.settings import LearnerSettings
from qed.models.scalar_head import build_scalar_model
from qed.rollout.stages import assign_advantages
from qed.training.critic import ValueLearner
from qed.training.learner import Learner
from qed.training.parallel import ALONE, Parallel
from qed.training.value_head import TrunkCritic
from qed.types import Rollout

POLICY = make_model()
DOUBLE = torch.float64
CUTS: list[dict[str, Any]] = [{"tokens_per_microbatch": 20}, {"tokens_per_microbatch": 1}, {"packing": True}]


def draw_rows(seed: int = 0) -> list[Rollout]:
    source = random.Random(seed)
    rows = [make_holes(source, make_rollout(source)) for _ in range(9)]
    rows[0].grade = None  # teaches nothing, and counts in the average
    return rows


def make_learner(parallel: Parallel = ALONE, **settings: Any) -> Learner:
    own = LearnerSettings(**{"lr": 1e-3, "packing": False, **settings})
    return Learner(copy.deepcopy(POLICY), Ppo(critic=Critic(trunk="policy")), own, precision=DOUBLE, parallel=parallel)


def update_copy(rows: list[Rollout], parallel: Parallel = ALONE, **settings: Any) -> dict[str, torch.Tensor]:
    """The weights of a critic after two updates, and the values that it then has."""
    own = LearnerSettings(**{"lr": 1e-3, "packing": False, **settings})
    critic = ValueLearner(build_scalar_model(POLICY), Ppo(), own, 8, DOUBLE, parallel)
    torch.nn.init.ones_(critic.network.score.weight)
    return train(critic, rows, lambda: critic.update(rows, 0)) | dict(critic.network.state_dict())


def update_trunk(rows: list[Rollout], parallel: Parallel = ALONE, **settings: Any) -> dict[str, torch.Tensor]:
    """The same of a policy with a value head."""
    learner = make_learner(parallel, **settings)
    critic = TrunkCritic(learner, Critic(trunk="policy"), learner.settings)
    torch.nn.init.ones_(critic.head.weight)
    found = train(critic, rows, lambda: learner.update(rows, 0))
    return found | dict(learner.model.state_dict()) | {"head": critic.head.weight}


def train(critic: ValueLearner | TrunkCritic, rows: list[Rollout], update: Any) -> dict[str, torch.Tensor]:
    for _ in range(2):
        critic.score(rows)
        assign_advantages([rows], Ppo())
        update()
    critic.score(rows)
    return {
        f"values {number}": torch.tensor(row.values, dtype=DOUBLE) for number, row in enumerate(sorted(rows, key=str))
    }


@pytest.mark.parametrize("update", [update_copy, update_trunk])
def test_how_a_step_is_cut_changes_nothing(update: Any) -> None:
    whole = update(draw_rows(), tokens_per_microbatch=10**6)
    assert any(bool(values.any()) for name, values in whole.items() if name.startswith("values"))
    for cut in CUTS:
        assert_same(update(draw_rows(), **cut), whole)
    turned = draw_rows()
    assert_same(update([*turned[4:], *turned[:4]]), whole)


@pytest.mark.parametrize("update", [update_copy, update_trunk])
def test_two_ranks_have_the_weights_of_one(update: Any) -> None:
    alone = update(draw_rows())
    for own in run_threads(lambda parallel: update(draw_rows(), parallel), 2):
        assert_same(own, alone)


@pytest.mark.parametrize("trunk", ["copy", "policy"])
def test_its_state_restores_it(trunk: str) -> None:
    rows, learner = draw_rows(), make_learner()

    def build() -> ValueLearner | TrunkCritic:
        if trunk == "policy":
            return TrunkCritic(learner, Critic(trunk="policy"), learner.settings)
        return ValueLearner(build_scalar_model(POLICY), Ppo(), learner.settings, 8, DOUBLE, ALONE)

    first = build()
    train(first, rows, (lambda: learner.update(rows, 0)) if trunk == "policy" else (lambda: first.update(rows, 0)))
    state = {name: part.clone() for name, part in first.state().items()}  # type: ignore[union-attr]
    second = build()
    assert second.load({**state, "other": torch.ones(1)}).keys() == {"other"}
    assert_same(second.state(), state)


def assert_same(found: Any, expected: Any) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, msg=name)
