"""Law 2 over processes: two of them that add up their gradients make the step of one."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor, nn

from qed.algorithms.grpo import Grpo
from qed.config.settings import LearnerSettings
from qed.training.learner import Learner
from qed.types import Problem, Rollout


class Mix(nn.Module):
    """Each token's embedding with the mean of those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(23, 8)

    def forward(self, input_ids: Tensor, **_: object) -> SimpleNamespace:
        found = self.embeddings(input_ids)
        places = torch.arange(1, found.shape[1] + 1, dtype=found.dtype)[:, None]
        return SimpleNamespace(last_hidden_state=(found + found.cumsum(1) / places).tanh())


class Model(nn.Module):
    """The least that a learner can train; a model of transformers would take the other process seconds to import."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model, self.head = Mix(), nn.Linear(8, 23)
        self.double()

    def get_output_embeddings(self) -> nn.Linear:
        return self.head


def rollout(source: random.Random) -> Rollout:
    tokens = [tuple(source.randrange(23) for _ in range(source.randint(1, 9))) for _ in range(2)]
    logps = tuple(-3 * source.random() for _ in tokens[1])
    answer = Rollout(Problem("p", "?", "1"), *tokens, logps, "", "stop", advantage=source.choice([-1.0, 0.5]))
    answer.old_logps = answer.ref_logps = tuple(value + 0.2 for value in logps)
    return answer


def gradients(rank: int, world: int) -> Tensor:
    """What `accumulate` adds up over the same rollouts everywhere, all parameters in one vector."""
    algorithm = Grpo(kl=0.1, entropy=0.01, correction="token_truncate", correction_normalize=True)
    # The reference's log-probs are given with the rollouts, so there is no reference to score.
    learner = Learner(Model(), algorithm, LearnerSettings(tokens_per_microbatch=30), length=11)
    learner.accumulate([rollout(random.Random(seed)) for seed in range(6)], rank, world)
    return torch.cat([parameter.grad.flatten() for parameter in learner.parameters if parameter.grad is not None])


def summed(rank: int, folder: str) -> Tensor:
    """The gradients of one of two processes, added up over both."""
    meeting = f"file://{folder}/meeting"
    patience = timedelta(seconds=60)
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=patience)
    found = gradients(rank, 2)
    torch.distributed.all_reduce(found)
    torch.distributed.destroy_process_group()
    return found


def other(_: int, folder: str) -> None:
    torch.set_num_threads(1)
    summed(1, folder)


@pytest.mark.slow
def test_two_processes_make_the_step_of_one(tmp_path: Path) -> None:
    context = torch.multiprocessing.spawn(other, args=(str(tmp_path),), nprocs=1, join=False)
    together = summed(0, str(tmp_path))
    context.join()
    torch.testing.assert_close(together, gradients(0, 1), rtol=1e-8, atol=1e-10)
