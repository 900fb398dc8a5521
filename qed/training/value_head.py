"""A value head on the policy's trunk: a critic with no weights besides the head.

The learner's update of the policy trains trunk and head together. The head has its own optimizer, because it is not
part of the model that is saved and sampled from, and its gradient is clipped separately.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from qed.algorithms.parts.critic import Critic
from qed.config.settings import LearnerSettings
from qed.models.families import split_head
from qed.training.critic import OPTIMIZER, WEIGHTS, ValueLearner, choose_settings, write_values
from qed.training.learner import Learner
from qed.training.logps import compute_trunk_values
from qed.training.optim import (
    compute_learning_rate,
    load_optimizer_tensors,
    make_optimizer,
    read_optimizer_tensors,
)
from qed.training.slices import Part
from qed.types import Rollout


class TrunkCritic:
    """Scores answers with a value head on a learner's policy, and trains the head in the learner's updates.

    Args:
        learner: the policy's learner, whose updates train the head too from now on.
        critic: settings of the critic.
        settings: settings of the policy's optimizer.
    """

    network: nn.Module | None = None  # there is no separate model

    def __init__(self, learner: Learner, critic: Critic, settings: LearnerSettings) -> None:
        self.learner, self.settings = learner, choose_settings(critic, settings)
        width = split_head(learner.model)[1].in_features
        dtype = torch.promote_types(learner.parameters[0].dtype, torch.float32)
        self.head = nn.Linear(width, 1, bias=False, device=learner.device, dtype=dtype)
        nn.init.zeros_(self.head.weight)
        self.optimizer = make_optimizer(self.head, self.settings)
        learner.value_head = self

    def score(self, rollouts: Sequence[Rollout]) -> None:
        """Write the value before each trained token of rollouts, before the first update of a step."""
        if not rollouts:
            return
        batch = self.learner.collate(rollouts)
        scores = partial(compute_trunk_values, head=self.head)
        (values,) = self.learner.forward_columns(self.learner.model, batch, scores, 1)
        write_values(rollouts, values)

    def drop_gradients(self) -> None:
        """Drop the head's gradient, for example that of a skipped update."""
        self.optimizer.zero_grad(set_to_none=True)

    def sum_gradients(self) -> None:
        """Sum the head's gradient over the ranks, some of which may have had no rows."""
        weight = self.head.weight
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        self.learner.parallel.sum_in_place(weight.grad)

    def step(self, step: int) -> None:
        """Update the head; `step` counts from 0 within the schedule."""
        nn.utils.clip_grad_norm_(self.head.parameters(), self.settings.clip_norm or math.inf)
        for group in self.optimizer.param_groups:
            group["lr"] = compute_learning_rate(self.settings, step)
        self.optimizer.step()

    def pop_flops(self) -> int:
        """Return 0: the learner counts the passes of the trunk."""
        return 0

    def state(self) -> dict[str, Part]:
        """Return the head and its optimizer's state for a checkpoint."""
        optimizer = read_optimizer_tensors(self.optimizer, self.head)
        return {WEIGHTS + "head": self.head.weight, **{OPTIMIZER + name: part for name, part in optimizer.items()}}

    def describe(self) -> dict[str, Tensor]:
        """Return an empty dict, because the head is not sharded."""
        return {}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Restore what `state` returned, and return the remaining tensors."""
        self.head.weight.copy_(tensors[WEIGHTS + "head"])
        own = {name.removeprefix(OPTIMIZER): part for name, part in tensors.items() if name.startswith(OPTIMIZER)}
        load_optimizer_tensors(self.optimizer, self.head, own)
        return {name: tensor for name, tensor in tensors.items() if not name.startswith((WEIGHTS, OPTIMIZER))}


OpenCritic = ValueLearner | TrunkCritic
