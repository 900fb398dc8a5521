"""An imported configuration has the formulas of its system, written out here from TRL 1.16."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from importing import import_files

from qed.algorithms.parts.surrogates import policy_loss
from qed.types import Grade, Problem, Rollout


def answer(reward: float, **changes: tuple[float, ...]) -> Rollout:
    rollout = Rollout(Problem("p", "?", "1"), (0,), (2, 2), (-1.0, -1.0), "", "stop", **changes)
    rollout.grade = Grade(reward, reward > 0, True, None)
    return rollout


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_trls_delta_is_a_dual_clip(tmp_path: Path, level: str) -> None:
    """TRL clamps the ratio at delta: -min(min(r, delta) A, clip(r) A), r of a token or of the row."""
    given = ["trl", "grpo", "--delta", "1.6", "--epsilon_high", "0.4", "--importance_sampling_level", level]
    settings = import_files(tmp_path, "trl", [], *given).settings.algorithm.surrogate
    random = torch.Generator().manual_seed(0)
    old, advantages = (torch.randn(2, 6, 8, generator=random, dtype=torch.float64)).unbind()
    advantages = advantages[:, :1].expand(6, 8)
    gradients = []
    for of_trl in (True, False):
        logps = (old + torch.linspace(-1.5, 1.5, 48, dtype=torch.float64).view(6, 8)).requires_grad_()
        ratio = logps - old
        ratio = (ratio if level == "token" else ratio.mean(1, keepdim=True)).exp().expand(6, 8)
        trl = -(ratio.clamp(max=1.6) * advantages).minimum(ratio.clamp(0.8, 1.4) * advantages)
        ours, _ = policy_loss(logps, old, advantages, torch.ones(6, 8, dtype=torch.float64), settings)
        assert torch.allclose(trl, ours, rtol=1e-12)
        gradients += torch.autograd.grad((trl if of_trl else ours).sum(), logps)
    assert torch.allclose(*gradients, rtol=1e-12)


def test_trls_rloo_subtracts_the_kl_from_the_reward(tmp_path: Path) -> None:
    """Rewards 1, 0, 0 with log-ratios that sum to 2, -1 and 0, beta 0.1: r - 0.1 KL, minus the mean of the others."""
    algorithm = import_files(tmp_path, "trl", [], "trl", "rloo", "--beta", "0.1").settings.algorithm
    sums = {1.0: (1.0, 1.0), 0.0: (-1.5, 0.5), 0.5: (0.25, -0.25)}
    group = [
        answer(reward, old_logps=(-1.0, -1.0), ref_logps=tuple(-1.0 - part for part in parts))
        for reward, parts in sums.items()
    ]
    left = [reward - 0.1 * sum(parts) for reward, parts in sums.items()]
    expected = [value - (sum(left) - value) / 2 for value in left]
    assert algorithm.scored_before_credit
    assert algorithm.credit([group])[0] == pytest.approx(expected)
