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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn

from qed.algorithms.base import Algorithm
from qed.config.settings import LearnerSettings
from qed.errors import QedError
from qed.guards import faults
from qed.guards.finite import describe_update, require_finite
from qed.guards.signals import check_signals
from qed.models.families import require_known_logits, split_head
from qed.models.lora import AdapterDisabled, disable_adapters
from qed.training.attention import supports_packing, use_packed_attention
from qed.training.batch import Batch, collate, compute_means, cut_microbatches, measure_mismatch, split_live, split_rows
from qed.training.logps import compute_logps, compute_scores
from qed.training.optim import compute_learning_rate, load_optimizer_tensors, make_optimizer, read_optimizer_tensors
from qed.training.packing import Layout, cut_packed_microbatches, pack_batch
from qed.types import Rollout

# How much there was to do in a step: rollouts, those with a gradient, their trained tokens, and all tokens that were
# computed for a gradient, prompts included. Over several updates these add up; every other entry is averaged.
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
        reference: nn.Module | AdapterDisabled | None = None,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.settings = settings
        self.temperature = temperature
        self.length = length
        self.precision = precision
        self.optimizer = make_optimizer(model, settings)
        self.reference = reference or (copy.deepcopy(model) if algorithm.reference else None)
        if isinstance(self.reference, nn.Module):
            self.reference.requires_grad_(False)
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.beginning: dict[str, Tensor] = {}
        self.moved = 0.0  # about how far each weight has gone since the rollouts were scored, as AdamW steps
        with self._autocast():
            require_known_logits(model)
            self.packing = settings.packing and supports_packing(split_head(model)[0])
        if settings.compile:
            # In place, so that every weight keeps its name; the shape differs from one micro-batch to the next.
            split_head(model)[0].compile(dynamic=True)

    def score(
        self,
        rollouts: Sequence[Rollout],
        old: bool,
        reference: nn.Module | AdapterDisabled | None = None,
        version: int = 0,
    ) -> None:
        """Write the log-probs that the loss compares with, before the first of a step's updates.

        Its own, `old`, are needed when there are several updates, because only for the first is the policy still the
        one that sampled, and where the sampler is not exact. The reference model's are needed when the algorithm asks
        for them. They are scored as the policy's are: the same tokens, temperature and precision.

        Args:
            rollouts: the rows, bundles whole.
            old: whether the learner's own are wanted.
            reference: the reference model, where the learner keeps none.
            version: answers of a policy before this one are compared with that policy, by the log-probs that they were
                sampled with, where those are known.
        """
        self.moved = 0.0
        reference = reference or self.reference
        if old:
            split = self.algorithm.has_ratio and len(rollouts) > 0
            live = self.algorithm.has_gradient(self._collate(rollouts)).tolist() if split else []
            for some in split_live(rollouts, live):  # cut as the update cuts them, so that bfloat16 rounds alike
                for rollout, logps in zip(some, self._score_outputs(self.model, some), strict=True):
                    rollout.old_logps = None if _is_older(rollout, version) else logps
        if reference is not None:
            for rollout, logps in zip(rollouts, self._score_outputs(reference, rollouts), strict=True):
                rollout.ref_logps = logps

    def set_initial_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Keep what `restart` goes back to: the weights of the phase's beginning."""
        # Copied together, so that tied weights, which have several names, are copied once.
        self.beginning = copy.deepcopy({name: weights[name].detach() for name in self.model.state_dict()})

    def restore_initial_weights(self) -> None:
        """Go back to the weights of the phase's beginning, and forget what the optimizer has seen."""
        self.model.load_state_dict(self.beginning)
        self.optimizer.state.clear()

    def compute_mean_scores(self, rollouts: Sequence[Rollout]) -> list[tuple[float, float]]:
        """The mean entropy and the mean log-prob of each rollout, over its trained tokens, under the model."""
        batch = self._collate(rollouts)
        logps, entropy = self.forward_logps(self.model, batch)
        counts = batch.mask.sum(1).clamp(min=1)
        means = [(column * batch.mask).sum(1) / counts for column in (entropy, logps)]
        return list(zip(*(mean.tolist() for mean in means), strict=True))

    def update(self, rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
        """One optimizer step; `step` counts from 0 within the schedule. A step without signal changes nothing.

        Where `skip_norm` is set, neither does one whose gradient is larger; it is counted.

        Raises:
            Diverged: when a figure, the loss or the gradient is not finite; the weights are those before the step.
            QedError: when the weights have moved since the rollouts were scored, and yet every ratio is exactly 1.
        """
        require_finite(rollouts)
        rate = compute_learning_rate(self.settings, step)
        self.optimizer.zero_grad(set_to_none=True)
        stats = self.accumulate(rollouts)
        stats["optim/lr"] = rate
        if stats["train/live_rows"] == 0:
            return stats | {"optim/grad_norm": 0.0}
        norm = float(nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm or math.inf))
        if not (math.isfinite(norm) and math.isfinite(stats["train/loss"])):
            self.optimizer.zero_grad(set_to_none=True)
            raise describe_update(rollouts, self.compute_mean_scores(rollouts), stats["train/loss"], norm, rate)
        if self.settings.skip_norm and norm > self.settings.skip_norm:
            self.optimizer.zero_grad(set_to_none=True)
            # What is no number would not be JSON, and would make every mean that it is part of none.
            finite_ones = {name: value for name, value in stats.items() if math.isfinite(value)}
            return finite_ones | {"optim/skipped": 1.0}
        self._require_ratios(stats)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # what samples next needs the memory
        self.moved += rate * min(1.0, norm)
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
        stats |= self.algorithm.compute_metrics(batch)
        batch = self._prepare_batch(batch)
        live = self.algorithm.has_gradient(batch).nonzero().flatten()
        trained = float(batch.mask.sum())
        stats |= {"train/live_rows": len(live), "train/tokens": trained}
        # The rows that are not live make room before the first micro-batch.
        batch = batch if len(live) == len(batch) else batch.select(live)
        sums: dict[str, Tensor | float] = defaultdict(float)
        for part in islice(self._parts(batch), rank, None, world) if len(live) else ():
            for name, value in self._backward(part).items():
                sums[name] = max(sums[name], value) if name.endswith("_max") else sums[name] + value
        # The loss is the step's own weighted sum, and so are those that the algorithm names; a maximum is no mean.
        whole = {name for name in sums if name.endswith("_max")} | {"train/loss", *COUNTS, *self.algorithm.step_means}
        return stats | compute_means(sums, whole, batch)

    def _backward(self, part: Batch) -> dict[str, Tensor | float]:
        """Add the gradient of a micro-batch, and describe it by sums over its tokens."""
        layout = self._layout(part)
        with use_packed_attention(split_head(self.model)[0].config) if layout is not None else nullcontext():
            with self._autocast():
                logps, entropy, log_squares = compute_scores(
                    self.model,
                    part,
                    self.temperature,
                    squares=self.algorithm.log_squares,
                    layout=layout,
                    into_grad=True,
                )
            part = part if log_squares is None else replace(part, log_squares=log_squares)
            loss, extra = self.algorithm.loss(part, logps, entropy)
            loss = faults.pass_through("loss", loss)
            loss.backward()  # type: ignore[no-untyped-call]
        found: dict[str, Tensor | float] = {**extra, **measure_mismatch(logps.detach(), part)}
        found |= {"train/loss": loss.detach(), "policy/entropy": entropy.detach().sum()}
        found["train/computed_tokens"] = float(part.attention.sum()) if layout is None else layout.ids.numel()
        return found

    def adapt(self, stats: Mapping[str, float]) -> None:
        """Let the algorithm set its coefficients for the next step by the metrics of this one."""
        self.algorithm = self.algorithm.adapt(stats)

    def weights(self) -> nn.Module:
        """What a sampler loads: here the model itself, which in-process samplers read where it lies."""
        return self.model

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state; the weights are saved beside it."""
        return read_optimizer_tensors(self.optimizer, self.model)

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Continue from `state()`."""
        load_optimizer_tensors(self.optimizer, self.model, tensors)

    def _require_ratios(self, stats: Mapping[str, float]) -> None:
        """Raise where a later update of a sampling has no ratio but 1, as it has when old log-probs are not kept.

        A move that the precision of the computation hardly shows is no evidence, so there is nothing to raise then.
        """
        if stats.get("ratio/log_max") == 0 and self.moved > 1e-3 * torch.finfo(self.precision).eps:
            raise QedError(
                "The weights have changed since these answers were sampled, and yet every probability ratio is exactly "
                "1: the loss compares the policy with itself, so that nothing is ever clipped. Old log-probs must be "
                "scored once, before the first update of a step, and kept; is algorithm.loss or a field old_logps of "
                "your own overwriting them? learner.passes 1 with learner.batch_size 0 makes one update a step."
            )

    def _collate(self, rollouts: Sequence[Rollout]) -> Batch:
        dtype = torch.float64 if self.parameters[0].dtype == torch.float64 else torch.float32
        return collate(rollouts, dtype=dtype).to(self.parameters[0].device)

    def _prepare_batch(self, batch: Batch) -> Batch:
        """The step's rows with their weights and whatever else must be worked out before they are cut."""
        batch = batch.with_weights(self.algorithm.weights(batch, self.length))
        if not self.algorithm.two_pass:
            return self.algorithm.prepare(batch, None, None)
        return self.algorithm.prepare(batch, *self.forward_logps(self.model, batch))

    def _cut(self, batch: Batch) -> Iterator[list[int]]:
        way = cut_packed_microbatches if self.packing else cut_microbatches
        for rows in way(batch, self.settings.tokens_per_microbatch, self.algorithm.together):
            check_signals("update")
            yield rows

    def _layout(self, part: Batch) -> Layout | None:
        return pack_batch(part) if self.packing else None

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        return (batch.select(rows) for rows in self._cut(batch))

    def _autocast(self) -> AbstractContextManager[object]:
        device = self.parameters[0].device.type
        return torch.autocast(device, dtype=self.precision, enabled=self.precision != torch.float32)

    def _score_outputs(
        self, model: nn.Module | AdapterDisabled, rollouts: Sequence[Rollout]
    ) -> list[tuple[float, ...]]:
        """The log-probs of each rollout's output under a model, 0 where it is not trained."""
        if not rollouts:
            return []
        if isinstance(model, AdapterDisabled):
            with disable_adapters(model.model):
                return self._score_outputs(model.model, rollouts)
        batch = self._collate(rollouts)
        logps, _ = self.forward_logps(model, batch)
        return split_rows(logps, rollouts)

    @torch.no_grad()
    def forward_logps(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """The log-probs and entropies of all rows under a model, [B, T] each, without a gradient."""
        logps, entropy = torch.zeros_like(batch.mask), torch.zeros_like(batch.mask)
        for rows in self._cut(batch):
            part = batch.select(rows)
            with self._autocast():
                found = compute_logps(model, part, self.temperature, self._layout(part))
            for column, values in zip((logps, entropy), found, strict=True):
                column[rows, : values.shape[1]] = values.to(column.dtype)
        return logps, entropy


def _is_older(rollout: Rollout, version: int) -> bool:
    """Whether a policy before `version` sampled an answer, with log-probs that are known."""
    sampled = [logp for logp, own in zip(rollout.logps, rollout.on_policy, strict=False) if own]
    return rollout.version < version and bool(sampled) and not any(map(math.isnan, sampled))
