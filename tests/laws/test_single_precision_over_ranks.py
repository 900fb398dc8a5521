"""Twenty steps in float32 on fixed rollouts: two ranks over gloo stay within 1e-5 of one process."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
from making import make_model, make_rollout
from ranks import find_port
from torch import Tensor

from qed.config.plugins import load_algorithm
from qed.config.ranks_settings import ParallelSettings
from qed.config.settings import LearnerSettings
from qed.training.learner import Learner
from qed.training.parallel import ALONE, Parallel, join_ranks, read_full

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


def be_rank(rank: int, port: int, file: Path) -> None:
    """Train with each way to shard, and write what came of it."""
    place = {"RANK": rank, "WORLD_SIZE": WORLD, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in place.items():
            patch.setenv(name, str(value))
        patch.setenv("GLOO_SOCKET_IFNAME", "lo")
        found = {}
        for shard in SHARDS:
            found[shard] = train(join_ranks("cpu", ParallelSettings(shard=shard), 60.0))  # type: ignore[arg-type]
        if rank == 0:
            torch.save(found, file)
        torch.distributed.barrier()


@pytest.mark.slow
def test_two_ranks_stay_near_one_process_in_single_precision(tmp_path: Path) -> None:
    file = tmp_path / "found.pt"
    torch.multiprocessing.start_processes(be_rank, (find_port(), file), WORLD, start_method="fork")
    metrics, weights = train(ALONE)
    assert all(weight.dtype == torch.float32 for weight in weights.values())
    start = make_model(tie_word_embeddings=True).to(torch.float32).state_dict()
    assert max(float((weights[name] - start[name]).abs().max()) for name in weights) > 100 * NEAR  # it has learned
    for shard, (own_metrics, own_weights) in torch.load(file).items():
        for before, after in zip(metrics, own_metrics, strict=True):
            assert before == pytest.approx(after, rel=NEAR, abs=NEAR), shard
        torch.testing.assert_close(own_weights, weights, rtol=NEAR, atol=NEAR)
