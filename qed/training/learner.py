"""One optimizer step over rollouts, for any algorithm.

A step collates all rows, lets the algorithm compute their token weights, selects the rows with a gradient, cuts them
into micro-batches within a budget of tokens, accumulates the gradients, clips once and steps once. The micro-batches
cannot change the gradient, because the loss is a sum.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial

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
from qed.models.precision import compute_in
from qed.training.attention import supports_packing, use_packed_attention
from qed.training.batch import (
    Batch,
    collate,
    compute_means,
    cut_microbatches,
    measure_mismatch,
    split_by_gradient,
    split_rows,
)
from qed.training.flops import FlopCounter
from qed.training.logps import compute_scores
from qed.training.optim import compute_learning_rate, load_optimizer_tensors, make_optimizer, read_optimizer_tensors
from qed.training.packing import Layout, cut_packed_microbatches, pack_batch
from qed.training.parallel import ALONE, Parallel, call_scores, read_full, take_part
from qed.training.slices import Part
from qed.training.spreading import spread_microbatches
from qed.types import Rollout

# The counts of a step: rollouts, those with a gradient, their trained tokens, and all tokens that were computed for a
# gradient, prompts included. Several updates add them up; every other metric is averaged.
COUNTS = ("train/rows", "train/live_rows", "train/tokens", "train/computed_tokens")


class Learner:
    """Trains a model in place.

    Args:
        model: a causal language model, already on its device.
        algorithm: which rows are trained, how they are averaged, and the loss.
        settings: those of the optimizer and the micro-batches.
        temperature: divides the logits in every log-prob, as in sampling.
        length: the generation budget in tokens, for averages by a constant.
        precision: of the computation; the weights keep theirs.
        reference: the frozen reference model, if the algorithm needs one; by default a copy of the current model.
        parallel: the ranks that share the work; all of them call the same methods with the same arguments.
    """

    def __init__(  # noqa: PLR0913 -- a learner has many parts
        self,
        model: nn.Module,
        algorithm: Algorithm,
        settings: LearnerSettings,
        *,
        temperature: float = 1.0,
        length: int = 1,
        precision: torch.dtype = torch.float32,
        reference: nn.Module | AdapterDisabled | None = None,
        parallel: Parallel = ALONE,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.settings = settings
        self.temperature = temperature
        self.length = length
        self.precision = precision
        self.parallel = parallel
        self.initial_weights: dict[str, Tensor] = {}
        self.moved = 0.0  # approximate change of each weight since the rollouts were scored, as AdamW steps
        self.device = next(model.parameters()).device
        with parallel.gather_weights(model), self._autocast():
            require_known_logits(model)
            self.packing = settings.packing and supports_packing(split_head(model)[0])
        if settings.compile:
            # In place, so that weights keep their names; dynamic, because the shapes of micro-batches differ.
            split_head(model)[0].compile(dynamic=True)
        self.reference = reference or (copy.deepcopy(model) if algorithm.reference else None)
        if isinstance(self.reference, nn.Module):
            self.reference.requires_grad_(False)
            parallel.shard_model(self.reference, compute_scores)
        parallel.shard_model(model, compute_scores)
        # Sharding replaces parameters.
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = make_optimizer(model, settings)
        self.flops = FlopCounter()

    def score(
        self,
        rollouts: Sequence[Rollout],
        old: bool,
        reference: nn.Module | AdapterDisabled | None = None,
        version: int = 0,
    ) -> None:
        """Write `old_logps` and `ref_logps` of rollouts, before the first update of a step.

        `old_logps` are needed with several updates, because only the first one sees the policy that sampled, and with a
        sampler that is not exact. `ref_logps` are needed by algorithms with a reference model. Tokens, temperature and
        precision are those of the policy's log-probs in the update.

        Args:
            rollouts: the rows; rows that belong together, such as pairs, must all be included.
            old: whether to compute `old_logps`.
            reference: the reference model, if the learner has none.
            version: rollouts of an older policy than this keep their sampler's log-probs, if known, as the old ones.
        """
        self.moved = 0.0
        reference = reference or self.reference
        if old:
            split = self.algorithm.has_ratio and len(rollouts) > 0
            live = self.algorithm.has_gradient(self._collate(rollouts)).tolist() if split else []
            for part in split_by_gradient(
                rollouts, live
            ):  # the same micro-batches as in the update, so bfloat16 rounds alike
                for rollout, logps in zip(part, self._score_outputs(self.model, part), strict=True):
                    rollout.old_logps = None if _is_older(rollout, version) else logps
        if reference is not None:
            for rollout, logps in zip(rollouts, self._score_outputs(reference, rollouts), strict=True):
                rollout.ref_logps = logps

    def set_initial_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Store a copy of the initial weights of the phase, for `restore_initial_weights`."""
        # Copied in one call, so that tied weights, which have several names, are copied once.
        shards = {name: take_part(weights[name].detach(), own) for name, own in self.model.state_dict().items()}
        self.initial_weights = copy.deepcopy(shards)

    def restore_initial_weights(self) -> None:
        """Restore the initial weights of the phase, and clear the optimizer's state."""
        self.model.load_state_dict(self.initial_weights)
        self.optimizer.state.clear()

    def compute_mean_scores(self, rollouts: Sequence[Rollout]) -> list[tuple[float, float]]:
        """Compute the mean entropy and the mean log-prob of each rollout, over its trained tokens, under the model."""
        batch = self._collate(rollouts)
        logps, entropy = self.forward_logps(self.model, batch)
        counts = batch.mask.sum(1).clamp(min=1)
        means = [(column * batch.mask).sum(1) / counts for column in (entropy, logps)]
        return list(zip(*(mean.tolist() for mean in means), strict=True))

    def update(self, rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
        """Take one optimizer step; `step` counts from 0 within the schedule. Without a gradient it changes nothing.

        A gradient norm above `skip_norm`, if set, skips the step and counts it in `optim/skipped`.

        Raises:
            Diverged: an input, the loss or the gradient is not finite; the weights are unchanged.
            QedError: the weights have changed since the rollouts were scored, and yet every ratio is exactly 1.
        """
        require_finite(rollouts)
        rate = compute_learning_rate(self.settings, step)
        self.optimizer.zero_grad(set_to_none=True)
        stats = self.accumulate(rollouts)
        stats["optim/lr"] = rate
        if stats["train/live_rows"] == 0:
            return stats | {"optim/grad_norm": 0.0}
        norm = float(read_full(nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm or math.inf)))
        if not (math.isfinite(norm) and math.isfinite(stats["train/loss"])):
            self.optimizer.zero_grad(set_to_none=True)
            raise describe_update(rollouts, self.compute_mean_scores(rollouts), stats["train/loss"], norm, rate)
        if self.settings.skip_norm and norm > self.settings.skip_norm:
            self.optimizer.zero_grad(set_to_none=True)
            # NaN and infinity are not valid JSON, and would spread to every mean over steps.
            finite = {name: value for name, value in stats.items() if math.isfinite(value)}
            return finite | {"optim/skipped": 1.0}
        self._require_ratios(stats)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)  # sampling needs the memory
        self.moved += rate * min(1.0, norm)
        skipped = {"optim/skipped": 0.0} if self.settings.skip_norm else {}
        return stats | {"optim/grad_norm": norm, **skipped}

    def accumulate(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Accumulate the gradient of the rollouts' loss, summed over the ranks, and return metrics."""
        stats: dict[str, float] = {"train/loss": 0.0, "train/rows": len(rollouts), **dict.fromkeys(COUNTS[1:], 0)}
        if not rollouts:
            return stats
        batch = self._collate(rollouts)
        stats |= self.algorithm.compute_metrics(batch)
        batch = self._prepare_batch(batch)
        live = self.algorithm.has_gradient(batch).nonzero().flatten()
        trained = float(batch.mask.sum())
        stats |= {"train/live_rows": len(live), "train/tokens": trained}
        if not len(live):
            return stats
        # Rows without a gradient are dropped first, to free memory.
        batch = batch if len(live) == len(batch) else batch.select(live)
        sums: dict[str, Tensor | float] = defaultdict(float)
        self.flops.add(self.model, batch)
        parts = self._cut(batch)
        for number, rows in enumerate(parts):
            check_signals("update")
            self.parallel.begin_microbatch(self.model, is_last=number == len(parts) - 1)
            computed = self._backward(self._select(batch, rows))
            for name, value in computed.items() if rows else ():
                sums[name] = max(sums[name], value) if name.endswith("_max") else sums[name] + value
        self.parallel.sum_gradients(self.parameters)
        sums = self.parallel.sum_metrics(sums)
        # The loss and `step_means` are weighted by the step's token weights already, and maxima are not averaged.
        final = {name for name in sums if name.endswith("_max")} | {"train/loss", *COUNTS, *self.algorithm.step_means}
        return stats | compute_means(sums, final, batch)

    def _backward(self, part: Batch) -> dict[str, Tensor | float]:
        """Accumulate the gradient of a micro-batch, and return metrics as sums over its tokens."""
        layout = self._layout(part)
        with use_packed_attention(split_head(self.model)[0].config) if layout is not None else nullcontext():
            with self._autocast():
                logps, entropy, log_squares = call_scores(
                    self.model,
                    compute_scores,
                    part,
                    self.temperature,
                    squares=self.algorithm.log_squares,
                    layout=layout,
                    into_grad=True,
                )
            part = part if log_squares is None else replace(part, log_squares=log_squares)
            loss, extra = self.algorithm.loss(part, logps, entropy)
            loss = faults.pass_through("loss", loss)
            # A blank micro-batch has no loss, but takes part in the backward pass of the other ranks.
            (loss if bool(part.mask.any()) else loss + 0 * logps.sum()).backward()  # type: ignore[no-untyped-call]
        sums: dict[str, Tensor | float] = {**extra, **measure_mismatch(logps.detach(), part)}
        sums |= {"train/loss": loss.detach(), "policy/entropy": entropy.detach().sum()}
        sums["train/computed_tokens"] = float(part.attention.sum()) if layout is None else layout.ids.numel()
        return sums

    def adapt(self, stats: Mapping[str, float]) -> None:
        """Let the algorithm adapt its coefficients for the next step by the metrics of this one."""
        self.algorithm = self.algorithm.adapt(stats)

    def weights(self) -> nn.Module:
        """Return the weights for a sampler: the model itself, which in-process samplers share."""
        return self.model

    def state(self) -> dict[str, Part]:
        """Return the optimizer's state; the weights are saved separately."""
        return read_optimizer_tensors(self.optimizer, self.model)

    def load_state(self, tensors: Mapping[str, Part]) -> None:
        """Load what `state` returned."""
        load_optimizer_tensors(self.optimizer, self.model, tensors)

    def _require_ratios(self, stats: Mapping[str, float]) -> None:
        """Raise if every ratio of a later update is exactly 1, as happens when old log-probs are overwritten.

        Changes of the weights below the precision of the computation are ignored.
        """
        if stats.get("ratio/log_max") == 0 and self.moved > 1e-3 * torch.finfo(self.precision).eps:
            raise QedError(
                "The weights have changed since these answers were sampled, and yet every probability ratio is exactly "
                "1: the loss compares the policy with itself, so that nothing is ever clipped. Old log-probs must be "
                "scored once, before the first update of a step, and stay; does algorithm.loss or a field old_logps of "
                "your own overwrite them? learner.passes 1 with learner.batch_size 0 makes one update per step."
            )

    def _collate(self, rollouts: Sequence[Rollout]) -> Batch:
        """Collate rollouts on the model's device."""
        dtype = torch.float64 if self.parameters[0].dtype == torch.float64 else torch.float32
        return collate(rollouts, dtype=dtype).to(self.device)

    def _prepare_batch(self, batch: Batch) -> Batch:
        """Compute the token weights and the algorithm's `prepare` over all rows of the step."""
        batch = batch.with_weights(self.algorithm.weights(batch, self.length))
        if not self.algorithm.two_pass:
            return self.algorithm.prepare(batch, None, None)
        return self.algorithm.prepare(batch, *self.forward_logps(self.model, batch))

    def _cut(self, batch: Batch) -> list[list[int]]:
        """Return the rows of each micro-batch of this rank; a sharded model has equally many on every rank.

        An empty list stands for a micro-batch that only takes part in what the other ranks compute.
        """
        cut = cut_packed_microbatches if self.packing else cut_microbatches
        cut = partial(cut, together=self.algorithm.together)
        return spread_microbatches(batch, cut, self.settings.tokens_per_microbatch, self.parallel, self.packing)

    def _select(self, batch: Batch, rows: list[int]) -> Batch:
        """Return the rows of a micro-batch; without any a blank one, whose loss is 0."""
        if rows:
            return batch.select(rows)
        part = batch.select(list(range(self.algorithm.together)))
        return replace(part, mask=torch.zeros_like(part.mask), weights=torch.zeros_like(part.weights))

    def _layout(self, part: Batch) -> Layout | None:
        return pack_batch(part) if self.packing else None

    def _autocast(self) -> AbstractContextManager[object]:
        return compute_in(self.device.type, self.precision)

    def _score_outputs(self, model: nn.Module | AdapterDisabled, rollouts: Sequence[Rollout]) -> list[Sequence[float]]:
        """Compute the log-probs of each rollout's output under a model, 0 where it is not trained."""
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
        """Compute log-probs and entropies of all rows under a model, [B, T] each, without a gradient."""
        scores = torch.zeros(2, *batch.mask.shape, dtype=batch.mask.dtype, device=batch.mask.device)
        self.flops.add(model, batch)
        for rows in self._cut(batch):
            check_signals("update")
            part = self._select(batch, rows)
            with self._autocast():
                computed = call_scores(model, compute_scores, part, self.temperature, layout=self._layout(part))
            for column, values in zip(scores, computed[:2], strict=True):
                column[rows, : values.shape[1]] = values.to(column.dtype)[: len(rows)]
        self.parallel.free_weights(model)
        logps, entropy = self.parallel.sum_in_place(scores)  # 0 where another rank has computed a row
        return logps, entropy


def _is_older(rollout: Rollout, version: int) -> bool:
    """Whether an older policy than `version` sampled a rollout, with known log-probs."""
    sampled = [logp for logp, on_policy in zip(rollout.logps, rollout.on_policy, strict=False) if on_policy]
    return rollout.version < version and bool(sampled) and not any(map(math.isnan, sampled))
