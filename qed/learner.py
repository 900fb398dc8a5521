"""One optimizer step over some rollouts, blind to the algorithm that it trains with.

A step: collate all rows, let the algorithm fix their weights, take the live ones, cut them by a budget of tokens, add
up the gradients of the cuts, clip once, step once. Where the cuts fall cannot change the gradient, because the loss is
a sum.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice

import torch
from torch import Tensor, nn

from qed.algorithms.base import Algorithm
from qed.batch import Batch, collate, cut
from qed.errors import Diverged
from qed.logps import response_logps
from qed.optim import learning_rate, load_optimizer_tensors, make_optimizer, optimizer_tensors
from qed.settings import LearnerSettings
from qed.types import Rollout

# How much there was to do in a step: rollouts, those with a gradient, their trained tokens, and all tokens of those
# with a gradient, prompts included. Over several updates these add up; every other entry is averaged.
COUNTS = ("train/rows", "train/live_rows", "train/tokens", "train/computed_tokens")


class Learner:
    """Trains a model in place.

    Args:
        model: a causal language model, already on its device.
        algorithm: says what counts, how it is averaged and what the loss is.
        settings: of the optimizer.
        temperature: divides the logits in every log-prob, as it did in sampling.
        length: the generation budget in tokens, for averages by a constant.
        precision: of the computation; the weights stay as they are.
        reference: the frozen model that the loss compares with, where the algorithm wants one; the model as it stands
            by default.
    """

    def __init__(
        self,
        model: nn.Module,
        algorithm: Algorithm,
        settings: LearnerSettings,
        *,
        temperature: float = 1.0,
        length: int = 1,
        precision: torch.dtype = torch.float32,
        reference: nn.Module | None = None,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.settings = settings
        self.temperature = temperature
        self.length = length
        self.precision = precision
        self.optimizer = make_optimizer(model, settings)
        self.reference = (reference or copy.deepcopy(model)).requires_grad_(False) if algorithm.reference else None
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def score(self, rollouts: Sequence[Rollout], old: bool) -> None:
        """Write the log-probs that the loss compares with, before the first of a step's updates.

        Its own, `old`, are needed when there are several updates, because only for the first is the policy still the
        one that sampled, and where the algorithm corrects for a sampler that is not exact. The reference model's are
        needed when the algorithm asks for them.
        """
        if old:
            for rollout, logps in zip(rollouts, self._scored(self.model, rollouts), strict=True):
                rollout.old_logps = logps
        if self.reference is not None:
            for rollout, logps in zip(rollouts, self._scored(self.reference, rollouts), strict=True):
                rollout.ref_logps = logps

    def look(self, rollouts: Sequence[Rollout]) -> list[tuple[float, float]]:
        """The mean entropy and the mean log-prob of each rollout, over its output, under the model as it is."""
        batch = self._collate(rollouts)
        logps, entropy = self._looked_over(self.model, batch)
        counts = batch.mask.sum(1)
        means = [(column * batch.mask).sum(1) / counts for column in (entropy, logps)]
        return list(zip(*(mean.tolist() for mean in means), strict=True))

    def update(self, rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
        """One optimizer step; `step` counts from 0 within the schedule. A step without signal changes nothing.

        Where `skip_norm` is set, neither does one whose gradient is larger or not finite; it is counted.

        Raises:
            Diverged: when the loss or the gradient is not finite; the weights are then still those before the step.
        """
        rate = learning_rate(self.settings, step)
        self.optimizer.zero_grad(set_to_none=True)
        stats = self.accumulate(rollouts)
        stats["optim/lr"] = rate
        if stats["train/live_rows"] == 0:
            return stats | {"optim/grad_norm": 0.0}
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm or math.inf))
        finite = math.isfinite(norm) and math.isfinite(stats["train/loss"])
        if self.settings.skip_norm and not (finite and norm <= self.settings.skip_norm):
            self.optimizer.zero_grad(set_to_none=True)
            # What is no number would not be JSON, and would make every mean that it is part of none.
            finite_ones = {name: value for name, value in stats.items() if math.isfinite(value)}
            return finite_ones | {"optim/skipped": 1.0}
        if not finite:
            self.optimizer.zero_grad(set_to_none=True)
            raise Diverged(
                f"The loss is {stats['train/loss']} and the gradient's norm {norm} at learning rate {rate:g}: "
                "stopped before "
                "the optimizer step. A smaller learner.lr, or float32 in place of bfloat16, is the usual cure."
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        skipped = {"optim/skipped": 0.0} if self.settings.skip_norm else {}
        return stats | {"optim/grad_norm": norm, **skipped}

    def accumulate(self, rollouts: Sequence[Rollout], rank: int = 0, world: int = 1) -> dict[str, float]:
        """Add the gradient of some rollouts' loss to the parameters, and describe it.

        Args:
            rollouts: all rows of the optimizer step.
            rank: this process among `world` ones, which each take every world-th micro-batch: their gradients add up to
                that of one process.
            world: how many processes share the step.
        """
        stats: dict[str, float] = {"train/loss": 0.0, "train/rows": len(rollouts), **dict.fromkeys(COUNTS[1:], 0)}
        if not rollouts:
            return stats
        batch = self._collate(rollouts)
        batch = self._prepared(batch)
        live = self.algorithm.live(batch).nonzero().flatten()
        trained = float(batch.mask.sum())
        stats |= {"train/live_rows": len(live), "train/tokens": trained}
        stats["train/computed_tokens"] = float(batch.attention[live].sum())
        sums: dict[str, Tensor | float] = defaultdict(float)
        for part in islice(self._parts(batch.select(live)), rank, None, world) if len(live) else ():
            with self._autocast():
                logps, entropy = response_logps(self.model, part, self.temperature)
            loss, extra = self.algorithm.loss(part, logps, entropy)
            loss.backward()  # type: ignore[no-untyped-call]
            extra |= {"train/loss": loss.detach(), "policy/entropy": entropy.detach().sum()}
            extra |= mismatch(logps.detach(), part)
            for name, value in extra.items():
                sums[name] = sums[name] + value
        computed = float(batch.mask[live].sum()) or 1.0
        # The loss is the step's own weighted sum; every other entry is a mean over the tokens that were computed.
        stats |= {name: float(total) / (1 if name == "train/loss" else computed) for name, total in sums.items()}
        return stats

    def adapt(self, stats: Mapping[str, float]) -> None:
        """Let the algorithm set its coefficients for the next step by the metrics of this one."""
        self.algorithm = self.algorithm.adapted(stats)

    def weights(self) -> nn.Module:
        """What a sampler loads: here the model itself, which in-process samplers read where it lies."""
        return self.model

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state; the weights are saved beside it."""
        return optimizer_tensors(self.optimizer, self.model)

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from `state()`."""
        load_optimizer_tensors(self.optimizer, self.model, tensors)

    def _collate(self, rollouts: Sequence[Rollout]) -> Batch:
        dtype = torch.float64 if self.parameters[0].dtype == torch.float64 else torch.float32
        return collate(rollouts, dtype=dtype).to(self.parameters[0].device)

    def _prepared(self, batch: Batch) -> Batch:
        """The step's rows with their weights and whatever else must be worked out before they are cut."""
        batch = batch.weighted(self.algorithm.weights(batch, self.length))
        if not self.algorithm.two_pass:
            return self.algorithm.prepare(batch, None, None)
        return self.algorithm.prepare(batch, *self._looked_over(self.model, batch))

    def _cuts(self, batch: Batch) -> list[list[int]]:
        return cut(batch, self.settings.tokens_per_microbatch, self.algorithm.together)

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        return (batch.select(rows) for rows in self._cuts(batch))

    def _autocast(self) -> AbstractContextManager[object]:
        device = self.parameters[0].device.type
        return torch.autocast(device, dtype=self.precision, enabled=self.precision != torch.float32)

    def _scored(self, model: nn.Module, rollouts: Sequence[Rollout]) -> list[tuple[float, ...]]:
        """The log-probs of each rollout's output under a model."""
        if not rollouts:
            return []
        batch = self._collate(rollouts)
        logps, _ = self._looked_over(model, batch)
        chosen = batch.mask.bool().cpu()
        return [tuple(values[mask].tolist()) for values, mask in zip(logps.cpu(), chosen, strict=True)]

    @torch.no_grad()
    def _looked_over(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The log-probs and entropies of all rows under a model, [B, T] each, without a gradient."""
        logps, entropy = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
        for rows in self._cuts(batch):
            part = batch.select(rows)
            with self._autocast():
                found = response_logps(model, part, self.temperature)
            for column, values in zip((logps, entropy), found, strict=True):
                column[rows, : values.shape[1]] = values.to(column.dtype)
        return logps, entropy


def mismatch(logps: Tensor, batch: Batch) -> dict[str, Tensor]:
    """How far the sampler's log-probs are from the learner's: sums of |d| and of the KL estimate e^d - 1 - d.

    Demonstrations have no sampler. From a step's second update on, the figures hold the policy's own progress too.
    """
    sampled = batch.mask.bool() & (batch.sampled_logps != 0)
    difference = (logps - batch.sampled_logps) * sampled
    return {
        "mismatch/logp": difference.abs().sum(),
        "mismatch/kl": ((difference.exp() - 1 - difference) * sampled).sum(),
    }
