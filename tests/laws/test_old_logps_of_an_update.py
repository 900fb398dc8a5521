"""Where a step has one update, its own log-probs serve as the old ones, and nothing is scored beforehand."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from making import make_model, make_rollout
from torch import Tensor

from qed.config.plugins import list_leaves, load_algorithm
from qed.config.settings import LearnerSettings
from qed.loops.online import score_step, takes_update_logps
from qed.rollout.collector import CollectedStep
from qed.training.learner import Learner
from qed.types import Rollout

INEXACT: Any = SimpleNamespace(exact_logps=False)
VERSION = 3  # of the policy that is trained
METHODS = [name for name in list_leaves("algorithms") if takes_update_logps(load_algorithm(name)(), INEXACT, updates=1)]


def list_rollouts(count: int = 12) -> list[Rollout]:
    """Some of an older policy, some with demonstrations, and some without a gradient."""
    source, rows = random.Random(0), []
    for number in range(count):
        row = make_rollout(source)
        row.old_logps, row.version = None, VERSION - (number % 4 == 0)
        rows.append(row)
    return rows


def update(name: str, precision: torch.dtype, packing: bool, *, in_update: bool) -> tuple[Any, dict[str, Tensor]]:
    """The metrics and the weights after an update in several micro-batches."""
    settings = LearnerSettings(lr=1e-2, tokens_per_microbatch=40, packing=packing)
    learner = Learner(make_model(dtype=torch.float32), load_algorithm(name)(), settings, length=9, precision=precision)
    rollouts = list_rollouts()
    learner.score(rollouts, old=not in_update, version=VERSION, in_update=in_update)
    assert [rollout.old_logps is None for rollout in rollouts] == [
        in_update or (rollout.version < VERSION and any(rollout.on_policy)) for rollout in rollouts
    ]
    return learner.update(rollouts, 0), learner.model.state_dict()


def test_the_methods_are_those_with_a_ratio() -> None:
    assert {"grpo", "dr_grpo", "dapo", "gspo", "luffy"} <= set(METHODS)
    assert not {"sft", "reinforce", "exgrpo", "relift", "dppo", "opd"} & set(METHODS)


@pytest.mark.parametrize("packing", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_an_update_is_the_same_as_behind_a_pass_of_scoring(name: str, precision: torch.dtype, packing: bool) -> None:
    """Metrics and weights: both passes see the same weights, and but for rows that are packed apart the same bits."""
    scored, own = (update(name, precision, packing, in_update=each) for each in (False, True))
    assert own[0] == pytest.approx(scored[0], rel=1e-6)
    torch.testing.assert_close(own[1], scored[1], rtol=0, atol=1e-6)


def test_what_others_read_is_scored_beforehand() -> None:
    grpo = load_algorithm("grpo")()
    assert takes_update_logps(grpo, INEXACT, updates=1)
    assert not takes_update_logps(grpo, INEXACT, updates=2)
    exact: Any = SimpleNamespace(exact_logps=True)
    assert not takes_update_logps(grpo, exact, updates=1), "its own log-probs are the old ones"
    remote: Any = SimpleNamespace(exact_logps=False, remote=True)
    assert not takes_update_logps(grpo, remote, updates=1), "scoring measures the servers"


def test_in_a_step_answers_of_an_older_policy_keep_their_own_log_probs() -> None:
    """With two updates the learner scores those of the policy of the step before, and no surplus of older ones."""
    settings = LearnerSettings(batch_size=6)
    phase: Any = SimpleNamespace(
        learner=Learner(make_model(), load_algorithm("grpo")(), settings),
        critic=None,
        settings=SimpleNamespace(run=SimpleNamespace(seed=0), learner=settings),
    )
    rollouts = list_rollouts()
    assert len(score_step(phase, INEXACT, CollectedStep([rollouts], [rollouts], {}), VERSION + 1)) == 2
    older = [rollout.version < VERSION and any(rollout.on_policy) for rollout in rollouts]
    assert any(older)
    assert [rollout.old_logps is None for rollout in rollouts] == older


@pytest.mark.parametrize("mixed", [False, True], ids=["all have a gradient", "some have none"])
def test_scoring_holds_no_batch_but_the_one_it_scores(mixed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that all have a gradient are collated once; the whole batch is freed before parts of it are scored."""
    learner = Learner(make_model(dtype=torch.float32), load_algorithm("grpo")(), LearnerSettings(lr=1e-2), length=9)
    rollouts = [make_rollout(random.Random(seed), 0.0 if mixed and seed % 2 else 1.0) for seed in range(6)]
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []

    def collate(rows: Sequence[Rollout], collate: Any = learner.collate) -> Any:
        batch = collate(rows)
        made.append(weakref.ref(batch))
        return batch

    def forward(model: Any, batch: Any, forward: Any = learner.forward_logps) -> Tensor:
        alive.append(sum(one() is not None for one in made))
        return cast(Tensor, forward(model, batch))

    monkeypatch.setattr(learner, "collate", collate)
    monkeypatch.setattr(learner, "forward_logps", forward)
    learner.score(rollouts, old=True)
    assert (len(made), alive) == ((3, [1, 1]) if mixed else (1, [1]))
    assert all(len(rollout.old_logps or ()) == len(rollout.output) for rollout in rollouts)
