"""List the ways to train a model on a device of given memory, and compute how many rows of each fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from qed.config.phases import Settings
from qed.doctor.fit import MARGIN
from qed.doctor.trial import Lengths
from qed.errors import UsageError
from qed.loops.device_defaults import set_value
from qed.loops.memory import plan_step
from qed.loops.supported import require_supported
from qed.models.shapes import ModelShape
from qed.training.memory import Memory, SamplingPlan, StepPlan, estimate_sampling, estimate_training
from qed.training.parallel import Parallel

ROWS = 4096  # the largest number of rows to look for
# Precisions of the weights, and optimizers. A way that is slower or less exact comes later.
WAYS = (("float32", "adamw"), ("bfloat16", "adamw"), ("bfloat16", "adamw8bit"), ("bfloat16", "adamw_offload"))
# Default values, which a proposal need not list.
OMITTED = {"model.dtype": "float32", "model.gradient_checkpointing": False, "parallel.reduce": "step"}


@dataclass(frozen=True)
class Device:
    """Devices of equal memory, and how they share the training state; `memory` is in bytes, of one of them."""

    memory: float
    count: int = 1
    shard: str = "none"

    @property
    def budget(self) -> float:
        """Usable bytes; the rest is for fragmentation, kernel workspaces and communication buffers."""
        return self.memory * (1 - MARGIN)


@dataclass(frozen=True)
class Rows:
    """The number of rows in a micro-batch of the learner, and in a batch of the sampler."""

    learner: int
    sampler: int


@dataclass(frozen=True)
class Choice:
    """A way to train, and the largest micro-batch and sampler batch that fit; 0 rows if not even one fits."""

    shape: ModelShape
    plan: StepPlan  # for a micro-batch of one row
    settings: dict[str, Any]  # the settings of this way, by key
    rows: Rows
    needed: Rows

    @property
    def fits(self) -> bool:
        """Whether the needed rows fit."""
        return self.rows.learner >= self.needed.learner and self.rows.sampler >= self.needed.sampler

    @property
    def one_row(self) -> Memory:
        """The memory of a step with a micro-batch of one row."""
        return estimate_training(self.shape, self.plan)

    @property
    def row_bytes(self) -> int:
        """The bytes of an additional row in a micro-batch."""
        two, one = estimate_training(self.shape, _widen(self.plan, 2)), self.one_row
        return sum(two.parts[part] - one.parts[part] for part in ("activations", "output layer"))

    @property
    def way(self) -> str:
        """What is trained, in which precision, and the optimizer."""
        kind = "LoRA" if self.shape.adapters else "full"
        packed = "nf4 and " if self.plan.quantized else ""
        return f"{kind}, {packed}{self.plan.dtype} weights, {self.plan.optimizer}"

    def describe(self) -> str:
        """Describe the way to train."""
        return (
            self.way
            + (", checkpointing" if self.plan.checkpointing else "")
            + (", reduce microbatch" if self.plan.reduce == "microbatch" else "")
        )

    def list_settings(self) -> dict[str, Any]:
        """Return the settings of this way, without those that equal the defaults."""
        return {key: value for key, value in self.settings.items() if OMITTED.get(key) != value}


def list_choices(
    shape: ModelShape,
    settings: Settings,
    given: Mapping[str, Any],
    lengths: Lengths,
    device: Device,
) -> list[Choice]:
    """List the ways to train weights, or adapters, and the rows of each that fit.

    Args:
        shape: shape of the model, including adapters if these are trained.
        settings: settings to compute with.
        given: values by key that all ways have.
        lengths: lengths of a row.
        device: the devices.

    Raises:
        UsageError: the given values exclude all ways.
    """
    needed = _count_needed_rows(settings, given, lengths, device)
    choices, refused = [], UsageError("")
    for way in _list_ways(given, device, adapted=bool(shape.adapters)):
        own = settings
        try:
            for key, value in way.items():
                own = set_value(own, key, value)
            require_supported([own], Parallel(world=device.count, settings=own.parallel))
        except UsageError as error:
            refused = error
            continue
        plan = plan_step(shape, own, lengths.prompt, lengths.answer, 1, "cuda", device.count)
        plan = replace(plan, tokens=lengths.row, row=lengths.row, microbatches=2)
        choices.append(Choice(shape, plan, way, _count_fitting_rows(shape, plan, own, lengths, device), needed))
    if not choices:
        raise refused
    return choices


def _list_ways(given: Mapping[str, Any], device: Device, adapted: bool) -> Iterator[dict[str, Any]]:
    """Yield different ways to train as settings, overridden by the given values."""
    # Adapters have small gradients, whenever these are reduced, and a small optimizer state.
    sums = ("step", "microbatch") if device.count > 1 and device.shard != "none" and not adapted else ("step",)
    listed: list[dict[str, Any]] = []
    for (dtype, optimizer), checkpointing, reduce in product(WAYS[:2] if adapted else WAYS, (False, True), sums):
        way = {"model.precision": "bfloat16", "model.dtype": dtype, "model.gradient_checkpointing": checkpointing}
        way |= {"learner.optimizer": optimizer}
        way |= {"parallel.shard": device.shard, "parallel.reduce": reduce} if device.count > 1 else {}
        way |= {key: given[key] for key in way if key in given}
        if way not in listed:
            listed.append(way)
            yield way


def _count_needed_rows(settings: Settings, given: Mapping[str, Any], lengths: Lengths, device: Device) -> Rows:
    """Count the rows that must fit: one, or as many as the given batch sizes imply for a rank's share of a step."""
    step = -(-settings.sampling.problems_per_step * settings.sampling.group_size // device.count)
    tokens = given.get("learner.tokens_per_microbatch", 0)
    learner, sampler = tokens // lengths.row, given.get("sampling.rows_per_batch", 0)
    return Rows(max(1, min(learner, step)), max(1, min(sampler, step)))


def _count_fitting_rows(
    shape: ModelShape, plan: StepPlan, settings: Settings, lengths: Lengths, device: Device
) -> Rows:
    def fits_learner(rows: int) -> bool:
        return estimate_training(shape, _widen(plan, rows)).total <= device.budget

    def fits_sampler(rows: int) -> bool:
        group = settings.sampling.group_size
        sampler = SamplingPlan(rows, lengths.prompt, lengths.answer, group, settings.model.precision)
        return estimate_sampling(shape, sampler, plan).total <= device.budget

    return Rows(_find_largest(fits_learner), _find_largest(fits_sampler))


def _widen(plan: StepPlan, rows: int) -> StepPlan:
    return replace(plan, tokens=rows * plan.row)


def _find_largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number of rows, up to `ROWS`, that fits, or 0; memory must grow with the rows."""
    low, high = 0, ROWS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
