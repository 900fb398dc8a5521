"""One optimizer step over rollouts, for any algorithm.

A step collates all rows, lets the algorithm compute their token weights, selects the rows with a gradient, cuts them
into micro-batches within a token budget, accumulates the gradients, clips once and steps once. How rows are cut into
micro-batches cannot change the gradient, because the loss is a sum.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from qed.algorithms.base import Algorithm
from qed.config.settings import LearnerSettings
from qed.guards import faults
from qed.guards.finite import describe_update, require_finite
from qed.guards.signals import check_signals
from qed.models.families import require_known_logits, split_head
from qed.models.fast_float32 import compute_batches_in
from qed.models.lora import AdapterDisabled, disable_adapters
from qed.training import optim
from qed.training.attention import supports_packing, use_packed_attention
from qed.training.batch import (
    COUNTS,
    Batch,
    collate,
    compute_means,
    compute_row_means,
    cut_microbatches,
    measure_mismatch,
    show_teacher,
    split_by_gradient,
    split_rows,
)
from qed.training.distilling import can_pack_teacher, compute_part_scores, count_teacher, observe_teacher
from qed.training.flops import FlopCounter
from qed.training.logps import compute_scores
from qed.training.offload import Places, lend_device, move_back, move_to_host
from qed.training.out_of_memory import explain_out_of_memory, share_budget
from qed.training.packing import cut_packed_microbatches, pack_batch
from qed.training.parallel import ALONE, Parallel, call_scores, read_full
from qed.training.ratios import forget_old_logps, is_older, require_ratios
from qed.training.slices import Part, copy_sharded
from qed.training.spreading import select_rows, spread_microbatches
from qed.types import Rollout

if TYPE_CHECKING:
    from qed.training.value_head import TrunkCritic

Scores = Callable[..., Any]


class Learner:
    """Trains a model in place.

    Args:
        model: causal language model, already on its device.
        algorithm: determines which rows are trained, how they are averaged, and the loss.
        settings: settings of the optimizer and the micro-batches.
        temperature: divides the logits in every log-prob, as in sampling.
        length: generation budget in tokens, for averages by a constant.
        precision: precision of the computation; the weights keep theirs.
        reference: frozen reference model, if the algorithm needs one; by default a copy of the current model.
        parallel: the ranks that share the work; all must call the same methods with the same arguments.
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
        self.budget = share_budget(settings.tokens_per_microbatch, parallel)
        self.hosted: Places = []  # tensors that `sleep` has moved to the host
        self.value_head: TrunkCritic | None = None  # a critic on the policy's trunk, which updates train too
        self.served: Scores | None = None  # requests the log-probs of rollouts from a teacher's server
        self.moved = 0.0  # approximate change of each weight since the rollouts were scored, by AdamW's steps
        self.unscored_from: int | None = None  # version from which an update uses its own log-probs as old ones
        self.device = next(model.parameters()).device
        with parallel.gather_weights(model), self._autocast():
            require_known_logits(model)
            self.packing = settings.packing and supports_packing(split_head(model)[0])
        if settings.compile:
            # Compile in place, so that weights keep their names; dynamic, because shapes of micro-batches differ.
            split_head(model)[0].compile(dynamic=True)
        self.reference = reference or (copy.deepcopy(model) if algorithm.reference else None)
        networks = [model, *([self.reference] if isinstance(self.reference, nn.Module) else [])]
        with self._autocast():
            for each in networks[1:]:
                self.packing &= can_pack_teacher(each.requires_grad_(False), model)
            for each in networks:
                parallel.shard_model(each)  # replaces parameters
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = optim.make_optimizer(model, settings)
        self.flops = FlopCounter()

    def score(
        self,
        rollouts: Sequence[Rollout],
        old: bool,
        reference: nn.Module | AdapterDisabled | None = None,
        version: int = 0,
        in_update: bool = False,
    ) -> None:
        """Write `old_logps` and `ref_logps` of rollouts, before the first update of a step.

        `old_logps` are needed with several updates, because only the first one sees the sampling policy, and with an
        inexact sampler; `ref_logps` by algorithms with a reference. Both are computed as in the update.

        Args:
            rollouts: rows to score; rows that belong together, such as pairs, must all be included.
            old: whether to compute `old_logps`.
            reference: reference model, if the learner has none.
            version: rollouts of an older policy than this keep their sampler's log-probs, if known, as old ones.
            in_update: use the log-probs of the step's only update as old ones, which saves a forward pass.
        """
        self.moved, self.unscored_from = 0.0, version if in_update else None
        if old:
            batch = self.collate(rollouts) if self.algorithm.has_ratio and rollouts else None
            live = [] if batch is None else self.algorithm.has_gradient(batch).tolist()
            batch = batch if len(set(live)) == 1 else None  # otherwise each part has its own batch
            # Use the same micro-batches as the update, so that bfloat16 rounds in the same way.
            for part in split_by_gradient(rollouts, live):
                for rollout, logps in zip(part, self.score_outputs(self.model, part, batch), strict=True):
                    rollout.old_logps = None if is_older(rollout, version) else logps
        if reference is not None or self.served or self.algorithm.scores_reference:
            score = self.served or partial(self.score_outputs, reference or self.reference or self.model)
            for rollout, logps in zip(rollouts, score(show_teacher(rollouts)), strict=True):
                rollout.ref_logps = logps

    def set_initial_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Store a copy of the phase's initial weights, for `restore_initial_weights`."""
        self.initial_weights = copy_sharded(weights, self.model.state_dict())

    def restore_initial_weights(self) -> None:
        """Restore the phase's initial weights, and clear the optimizer's state."""
        self.wake()
        self.model.load_state_dict(self.initial_weights)
        optim.reset_optimizer(self.optimizer)

    def compute_mean_scores(self, rollouts: Sequence[Rollout]) -> list[tuple[float, float]]:
        """Compute the mean entropy and the mean log-prob of each rollout's trained tokens under the current policy."""
        batch = self.collate(rollouts)
        logps, entropy = compute_row_means(self.forward_logps(self.model, batch), batch)
        return list(zip(entropy, logps, strict=True))

    def update(self, rollouts: Sequence[Rollout], step: int) -> dict[str, float]:
        """Take one optimizer step; `step` counts from 0 within the schedule. Without a gradient, nothing changes.

        A gradient norm above `skip_norm`, if set, skips the step and counts it in `optim/skipped`.

        Raises:
            Diverged: an input, the loss or the gradient is not finite; the weights are unchanged.
            QedError: the weights have changed since the rollouts were scored, yet every ratio is exactly 1.
        """
        require_finite(rollouts)
        self.wake()
        rate = optim.compute_learning_rate(self.settings, step)
        self._drop_gradients()
        stats = self.accumulate(rollouts) | {"optim/lr": rate}
        if stats["train/live_rows"] == 0:
            return stats | {"optim/grad_norm": 0.0}
        norm = float(read_full(nn.utils.clip_grad_norm_(self.parameters, self.settings.clip_norm or math.inf)))
        if not (math.isfinite(norm) and math.isfinite(stats["train/loss"])):
            self._drop_gradients()
            raise describe_update(rollouts, self.compute_mean_scores(rollouts), stats["train/loss"], norm, rate)
        if self.settings.skip_norm and norm > self.settings.skip_norm:
            self._drop_gradients()
            # NaN and infinity are not valid JSON, and would spread to every mean over steps.
            return {"optim/skipped": 1.0, **{name: value for name, value in stats.items() if math.isfinite(value)}}
        require_ratios(stats, self.moved, torch.finfo(self.precision).eps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with explain_out_of_memory("the optimizer's state"):
            self.optimizer.step()
        if self.value_head is not None:
            self.value_head.step(step)
        self._drop_gradients()  # frees memory for sampling
        self.moved += rate * min(1.0, norm)
        return stats | {"optim/grad_norm": norm} | ({"optim/skipped": 0.0} if self.settings.skip_norm else {})

    def accumulate(self, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Accumulate the gradient of the rollouts' loss, summed over the ranks; return metrics."""
        stats: dict[str, float] = {"train/loss": 0.0, "train/rows": len(rollouts), **dict.fromkeys(COUNTS[1:], 0)}
        if not rollouts:
            return stats
        batch = forget_old_logps(self.collate(rollouts), rollouts, self.unscored_from)
        stats |= self.algorithm.compute_metrics(batch)
        batch = self._prepare_batch(batch)
        live = self.algorithm.has_gradient(batch).nonzero().flatten()
        stats |= {"train/live_rows": len(live), "train/tokens": float(batch.mask.sum())}
        if not len(live):
            return stats
        # Drop rows without a gradient first, to free memory.
        batch = batch if len(live) == len(batch) else batch.select(live)
        self.flops.add(self.model, batch)
        count_teacher(self.flops, self.algorithm, self.reference or self.model, batch)
        sums = self.budget.repeat(lambda: self._accumulate_parts(batch), self._drop_gradients)
        self.parallel.sum_gradients(self.parameters)
        if self.value_head is not None:
            self.value_head.sum_gradients()
        sums = self.parallel.sum_metrics(sums)
        return stats | compute_means(sums, self.algorithm.step_means, batch)

    def _accumulate_parts(self, batch: Batch) -> dict[str, Tensor | float]:
        """Accumulate the gradient of this rank's micro-batches; return metrics as sums over their tokens."""
        sums: dict[str, Tensor | float] = defaultdict(float)
        parts = self._cut(batch)
        for number, rows in enumerate(self.budget.watch(parts, batch, self.algorithm.together)):
            check_signals("update")
            self.parallel.begin_microbatch(self.model, is_last=number == len(parts) - 1)
            computed = self._backward(select_rows(batch, rows, self.algorithm.together))
            for name, value in computed.items() if rows else ():
                sums[name] = max(sums[name], value) if name.endswith("_max") else sums[name] + value
        return sums

    def _backward(self, part: Batch) -> dict[str, Tensor | float]:
        """Accumulate the gradient of a micro-batch; return metrics as sums over its tokens."""
        layout = pack_batch(part) if self.packing else None
        network, sharded, critic = self.reference or self.model, self.parallel.shards, self.value_head
        observe = partial(observe_teacher, network, device=self.device, packing=self.packing, sharded=sharded)
        with use_packed_attention(split_head(self.model)[0].config) if layout is not None else nullcontext():
            with self._autocast():
                logps, entropy, part = compute_part_scores(
                    self.model, self.algorithm, part, self.temperature, layout, observe, critic.head if critic else None
                )
            loss, extra = self.algorithm.loss(part, logps, entropy)
            loss = faults.pass_through("loss", loss)
            # A blank micro-batch has no loss, but must take part in the other ranks' backward pass.
            (loss if bool(part.mask.any()) else loss + 0 * logps.sum()).backward()  # type: ignore[no-untyped-call]
        sums: dict[str, Tensor | float] = {**extra, **measure_mismatch(logps.detach(), part)}
        sums |= {"train/loss": loss.detach(), "policy/entropy": entropy.detach().sum()}
        sums["train/computed_tokens"] = float(part.attention.sum()) if layout is None else layout.ids.numel()
        return sums

    def adapt(self, stats: Mapping[str, float]) -> None:
        """Let the algorithm adapt its coefficients for the next step to the metrics of this step."""
        self.algorithm = self.algorithm.adapt(stats)

    def weights(self) -> nn.Module:
        """Return the weights for a sampler: the model itself, shared with in-process samplers."""
        if self.settings.offload_for_sampling:
            self.sleep()  # until the next update
        return self.model

    def state(self) -> dict[str, Part]:
        """Return the optimizer's state; the weights are saved separately."""
        return optim.read_optimizer_tensors(self.optimizer, self.model)

    def load_state(self, tensors: Mapping[str, Part]) -> None:
        """Load what `state` returned."""
        optim.load_optimizer_tensors(self.optimizer, self.model, tensors)

    def sleep(self) -> None:
        """Move the optimizer's state and initial weights to the host, and drop gradients; samplers need the weights."""
        self._drop_gradients()
        self.hosted += move_to_host([*optim.list_state_tensors(self.optimizer), *self.initial_weights.values()])

    def wake(self) -> None:
        """Move back what `sleep` has moved; `update` does this automatically."""
        move_back(self.hosted)
        self.hosted = []

    def collate(self, rollouts: Sequence[Rollout]) -> Batch:
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
        """Return the rows of each micro-batch of this rank; with a sharded model, every rank has the same number.

        An empty list is a micro-batch that only takes part in the other ranks' computations.
        """
        cut = partial(cut_packed_microbatches if self.packing else cut_microbatches, together=self.algorithm.together)
        return spread_microbatches(batch, cut, self.budget.tokens, self.parallel, self.packing)

    def _drop_gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        if self.value_head is not None:
            self.value_head.drop_gradients()

    def _autocast(self) -> AbstractContextManager[object]:
        return compute_batches_in(self.device.type, self.precision, self.settings.compile)

    def score_outputs(self, model: Any, rows: Sequence[Rollout], whole: Batch | None = None) -> list[Sequence[float]]:
        """Compute the log-probs of each output, 0 where it is not trained; `whole` is the rows' batch, if known."""
        if not rows:
            return []
        if isinstance(model, AdapterDisabled):
            with disable_adapters(model.model):
                return self.score_outputs(model.model, rows)
        with lend_device(model, self.device):
            logps, _ = self.forward_logps(model, whole or self.collate(rows))
        return split_rows(logps, rows)

    def forward_logps(self, model: nn.Module, batch: Batch) -> Tensor:
        """Compute log-probs and entropies of all rows under a model, [2, B, T], without a gradient."""
        return self.forward_columns(model, batch, compute_scores, 2)

    @torch.no_grad()
    def forward_columns(self, model: nn.Module, batch: Batch, scores: Scores, count: int, at: str = "") -> Tensor:
        """Compute the first columns of `scores(model, part, temperature, layout=…)` for all rows, [count, B, T]."""
        check_signals(at or "score")  # here, because a rank may have no micro-batches
        self.flops.add(model, batch)
        parts = self.budget.repeat(lambda: self._forward_parts(model, batch, scores, count, at))
        return self.parallel.sum_in_place(parts)

    def _forward_parts(self, model: nn.Module, batch: Batch, scores: Scores, count: int, at: str) -> Tensor:
        """Compute the columns of this rank's micro-batches, [count, B, T]; 0 elsewhere."""
        columns = torch.zeros(count, *batch.mask.shape, dtype=batch.mask.dtype, device=batch.mask.device)
        for rows in self.budget.watch(self._cut(batch), batch, self.algorithm.together):
            check_signals(at or "update")
            part = select_rows(batch, rows, self.algorithm.together)
            with self._autocast():
                layout = pack_batch(part) if self.packing else None
                computed = call_scores(model, scores, part, self.temperature, layout=layout)
            for column, values in zip(columns, computed[:count], strict=True):
                column[rows, : values.shape[1]] = values.to(column.dtype)[: len(rows)]
        self.parallel.free_weights(model)
        return columns
