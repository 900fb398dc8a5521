"""A critic with separate weights: the values of answers, its updates, and its state for checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qed.algorithms.base import Algorithm
from qed.algorithms.parts.critic import FASTER, Critic
from qed.algorithms.parts.value_regression import ValueRegression
from qed.config.settings import LearnerSettings
from qed.errors import Diverged
from qed.training.batch import read_numbers, split_rows
from qed.training.learner import Learner
from qed.training.logps import compute_values
from qed.training.offload import Places, move_back, move_to_host
from qed.training.optim import list_state_tensors
from qed.training.parallel import Parallel
from qed.training.slices import Part, get_local, take_rows
from qed.types import Rollout

WEIGHTS, OPTIMIZER = "critic.weights.", "critic.optimizer."  # prefixes of names in a checkpoint's state
ROUNDING = 1e-12  # rounding error of a variance, relative to the mean square
# Metrics of a critic's update, and their names in a step's metrics.
RENAMED = {
    "train/loss": "critic/loss",
    "optim/grad_norm": "critic/grad_norm",
    "optim/lr": "critic/lr",
    "critic/clipped": "critic/clipped",
}


def choose_settings(critic: Critic, settings: LearnerSettings) -> LearnerSettings:
    """Derive the settings of the critic's optimizer and updates from the policy's."""
    return replace(
        settings,
        lr=critic.lr or FASTER * settings.lr,
        passes=critic.passes or settings.passes,
        batch_size=critic.batch_size or settings.batch_size,
        skip_norm=0.0,  # limits only the policy's gradients
        offload_for_sampling=False,  # `ValueLearner` moves the weights too
    )


def write_values(rollouts: Sequence[Rollout], values: Tensor) -> None:
    """Write the values of collated rollouts, [B, T], into them."""
    for rollout, row in zip(rollouts, split_rows(values, rollouts), strict=True):
        rollout.values = row


class ValueLearner:
    """Trains a critic, and scores answers with it.

    Args:
        model: model with a scalar head, already on its device.
        algorithm: the policy's algorithm, with settings of a critic.
        settings: settings of the policy's optimizer.
        length: generation budget in tokens, for averages by a constant.
        precision: precision of the computation.
        parallel: the ranks that share the work.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        settings: LearnerSettings,
        length: int,
        precision: torch.dtype,
        parallel: Parallel,
    ) -> None:
        critic = algorithm.value_model or Critic()
        self.settings = choose_settings(critic, settings)
        regression = ValueRegression(algorithm.average, algorithm.average_length, critic.clip)
        self.learner = Learner(model, regression, self.settings, length=length, precision=precision, parallel=parallel)
        self.offload = (critic.offload or settings.offload_for_sampling) and not parallel.shards
        self.hosted: Places = []

    def score(self, rollouts: Sequence[Rollout]) -> None:
        """Write the value before each trained token of rollouts, before the first update of a step."""
        if not rollouts:
            return
        with self._awake():
            batch = self.learner.collate(rollouts)
            (values,) = self.learner.forward_columns(self.learner.model, batch, compute_values, 1)
        write_values(rollouts, values)

    def update(self, rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
        """Take one optimizer step, see `Learner.update`; the metrics have the critic's names.

        Raises:
            Diverged: the loss or the gradient is not finite; the weights are unchanged.
        """
        try:
            with self._awake():
                stats = self.learner.update(rollouts, step)
        except Diverged as error:
            message = f"In an update of the critic, whose learning rate is algorithm.critic.lr: {error}"
            raise Diverged(message, error.rollouts) from error
        return {new: stats[name] for name, new in RENAMED.items() if name in stats}

    @property
    def network(self) -> nn.Module:
        """The critic's model."""
        return self.learner.model

    def pop_flops(self) -> int:
        """Return the critic's floating-point operations since the last call."""
        return self.learner.flops.pop()

    def state(self) -> dict[str, Part]:
        """Return the trained weights and the optimizer's state for a checkpoint."""
        optimizer = {OPTIMIZER + name: part for name, part in self.learner.state().items()}
        return {WEIGHTS + name: weight for name, weight in self._list_trained().items()} | optimizer

    def describe(self) -> dict[str, Tensor]:
        """Return the weights by their names in a checkpoint; `load` needs the same names and rows."""
        trained = self._list_trained()
        return {prefix + name: weight for prefix in (WEIGHTS, OPTIMIZER) for name, weight in trained.items()}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Restore what `state` returned, and return the remaining tensors."""
        with self._awake():
            for name, weight in self._list_trained().items():
                get_local(weight).copy_(take_rows(tensors[WEIGHTS + name], weight))
            own = {name.removeprefix(OPTIMIZER): part for name, part in tensors.items() if name.startswith(OPTIMIZER)}
            self.learner.load_state(own)
        return {name: tensor for name, tensor in tensors.items() if not name.startswith((WEIGHTS, OPTIMIZER))}

    def _list_trained(self) -> dict[str, nn.Parameter]:
        """Return the trained weights by name."""
        return {name: weight for name, weight in self.learner.model.named_parameters() if weight.requires_grad}

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Keep the critic on its device within the context; move it to host memory afterwards if it is offloaded."""
        move_back(self.hosted)
        self.hosted = []
        try:
            yield
        finally:
            if self.offload:
                model = self.learner.model
                weights = chain(model.parameters(), model.buffers(), list_state_tensors(self.learner.optimizer))
                self.hosted = move_to_host(weights)


def measure_values(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Compare the values of a step's answers with their returns, over the tokens with a return.

    The explained variance is 1 - var(R - V) / var(R): 1 for a critic that predicts every return, 0 for one that
    predicts only their mean, below 0 for a worse one. It is left out if all returns are equal up to rounding.
    """
    known = [_select_known(rollout) for rollout in rollouts if rollout.values and rollout.returns]
    values, returns = torch.from_numpy(np.concatenate([np.empty((2, 0)), *known], axis=1))
    if not len(returns):
        return {}
    figures = {"critic/values": float(values.mean()), "critic/returns": float(returns.mean())}
    spread = float(returns.var(unbiased=False))
    if spread > ROUNDING * float(returns.square().mean()):
        figures["critic/explained_variance"] = 1 - float((returns - values).var(unbiased=False)) / spread
    return figures


def _select_known(rollout: Rollout) -> NDArray[np.float64]:
    """Return the values and the returns of the trained tokens with a return, [2, N]."""
    both = np.stack([read_numbers(rollout.values or ()), read_numbers(rollout.returns or ())])
    trained = read_numbers(rollout.loss_mask) != 0 if rollout.loss_mask else True
    selected: NDArray[np.float64] = both[:, trained & ~np.isnan(both[1])]
    return selected
