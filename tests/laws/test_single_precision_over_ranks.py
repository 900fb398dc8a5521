"""Twenty steps in float32 on fixed rollouts: two ranks over gloo stay within 1e-5 of one process."""

from __future__ import annotations

import copy
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from making import make_model, make_rollout
from ranks import gather_from_ranks
from torch import Tensor

from qed.config.plugins import load_algorithm
from qed.config.ranks_settings import ParallelSettings
from qed.config.settings import LearnerSettings
from qed.training.joining import join_ranks
from qed.training.learner import Learner
from qed.training.parallel import ALONE, Parallel, read_full

WORLD, STEPS, NEAR = 2, 20, 1e-5
SHARDS = ("none", "full")


def train(parallel: Parallel) -> tuple[list[dict[str, float]], dict[str, Tensor]]:
    """Train on the same rows at every call: the metrics of each step, and the weights behind them."""
    model = make_model(tie_word_embeddings=True).to(torch.float32)
    learner = Learner(
        model,
        load_algorithm("grpo")(kl=0.1, entropy=0.01),
        LearnerSettings(lr=1e-4, tokens_per_microbatch=40),
        length=11,
        precision=torch.float32,
        parallel=parallel,
    )
    metrics = []
    for step in range(STEPS):
        source = random.Random(step)
        rollouts = copy.deepcopy([make_rollout(source, advantage=source.choice([-1.0, 0.5])) for _ in range(8)])
        learner.score(rollouts, old=True)
        metrics.append(learner.update(rollouts, step))
        metrics[-1].pop("train/computed_tokens")  # of which there are more where a shared prompt is cut apart
    return metrics, {name: read_full(weight).detach().clone() for name, weight in learner.model.state_dict().items()}


def train_as_rank() -> dict[str, Any]:
    """What a rank makes of each way to shard."""
    return {shard: train(join_ranks("cpu", ParallelSettings(shard=shard), 60.0)) for shard in SHARDS}  # type: ignore[arg-type]


@pytest.mark.slow
def test_two_ranks_stay_near_one_process_in_single_precision(tmp_path: Path) -> None:
    found = gather_from_ranks(train_as_rank, WORLD, tmp_path)
    metrics, weights = train(ALONE)
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    start = make_model(tie_word_embeddings=True).to(torch.float32).state_dict()
    assert max(float((weights[name] - start[name]).abs().max()) for name in weights) > 100 * NEAR  # it has learned
    for shard, (own_metrics, own_weights) in found.items():
        for before, after in zip(metrics, own_metrics, strict=True):
            assert before == pytest.approx(after, rel=NEAR, abs=NEAR), shard
        torch.testing.assert_close(own_weights, weights, rtol=NEAR, atol=NEAR)
