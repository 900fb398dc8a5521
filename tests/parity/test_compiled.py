"""A compiled body makes the same updates and saves the same names."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from making import make_model, make_rollout
from torch import nn

from qed.algorithms.grpo import Grpo
from qed.config.settings import LearnerSettings
from qed.training.learner import Learner


def test_a_compiled_body_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over two updates of other shapes, with a reference; the compiler itself is left out, what it is given is run."""
    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    whole = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **options: whole(self, backend=backend, **options))
    found = []
    for compiled in (False, True):
        model = make_model()
        learner = Learner(model, Grpo(kl=0.1), LearnerSettings(lr=0.1, compile=compiled))
        for step in range(2):
            rollouts = [make_rollout(random.Random(9 * step + seed), advantage=1.0) for seed in range(2 + step)]
            learner.score(rollouts, old=True)
            learner.update(rollouts, step)
        assert bool(graphs) == compiled
        found.append(model.state_dict())
    assert found[0].keys() == found[1].keys()
    for name, tensor in found[0].items():
        torch.testing.assert_close(tensor, found[1][name], rtol=1e-9, atol=1e-10)
