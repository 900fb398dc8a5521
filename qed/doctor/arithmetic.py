"""Compute what training takes on a device of given memory, by arithmetic: without weights, hub or device."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.config.screens import format_columns
from qed.doctor.fit import MARGIN
from qed.doctor.rows import Lengths
from qed.errors import ModelError
from qed.loops.memory import plan_step
from qed.models.shapes import ModelShape, find_shape
from qed.training.memory import (
    Memory,
    SamplingPlan,
    StepPlan,
    count_cache_bytes,
    estimate_sampling,
    estimate_training,
)

GB = 10**9  # of memory, as cards are sold by
RANK = 16  # of LoRA, where no setting gives one
FEW = 4  # rows in a micro-batch, below which less memory is worth more time
ROWS = 4096  # the largest number of rows to look for
# Each column of the table, and the part of an estimate.
COLUMNS = {
    "weights": "weights",
    "gradients": "gradients",
    "moments": "moments",
    "copies": "float32 copies",
    "reference": "reference",
}


@dataclass(frozen=True)
class Device:
    """Devices of equal memory, and how they share the training state; `memory` is in bytes, of one of them."""

    memory: float
    count: int = 1
    shard: str = "none"

    @property
    def budget(self) -> float:
        """Bytes that may be used; the rest is for fragments, kernels' workspaces and the communication's buffers."""
        return self.memory * (1 - MARGIN)


@dataclass(frozen=True)
class Choice:
    """A way to train, and the largest micro-batch and sampler batch that fit, in rows; 0 if not even one fits."""

    shape: ModelShape
    plan: StepPlan  # of a micro-batch of one row
    learner_rows: int
    sampler_rows: int

    @property
    def fits(self) -> bool:
        """Whether at least one row fits, of the learner and of the sampler."""
        return min(self.learner_rows, self.sampler_rows) > 0

    @property
    def one_row(self) -> Memory:
        """The memory of a step with a micro-batch of one row."""
        return estimate_training(self.shape, self.plan)

    @property
    def row_bytes(self) -> int:
        """The bytes of a further row in a micro-batch."""
        two, one = estimate_training(self.shape, _widen(self.plan, 2)), self.one_row
        return sum(two.parts[part] - one.parts[part] for part in ("activations", "output layer"))

    @property
    def way(self) -> str:
        """What is trained, in which precision, and the optimizer."""
        kind = "LoRA" if self.shape.adapters else "full"
        return f"{kind}, {self.plan.dtype} weights, {self.plan.optimizer}"

    def describe(self) -> str:
        """Describe the way to train."""
        return (
            self.way
            + (", checkpointing" if self.plan.checkpointing else "")
            + (", reduce microbatch" if self.plan.reduce == "microbatch" else "")
        )

    def list_settings(self, lengths: Lengths, step_rows: int, device: Device) -> dict[str, Any]:
        """Return the settings for a YAML file; the rows are limited to those of a step, as more have no effect."""
        settings: dict[str, Any] = {"model.precision": self.plan.precision}
        settings |= {"model.dtype": self.plan.dtype} if self.plan.dtype != "float32" else {}
        settings |= {"model.gradient_checkpointing": True} if self.plan.checkpointing else {}
        settings |= {"learner.optimizer": self.plan.optimizer}
        settings |= {"parallel.shard": device.shard} if device.count > 1 else {}
        settings |= {"parallel.reduce": self.plan.reduce} if self.plan.reduce != "step" else {}
        return settings | {
            "sampling.max_tokens": lengths.answer,
            "sampling.rows_per_batch": min(self.sampler_rows, step_rows),
            "learner.tokens_per_microbatch": min(self.learner_rows, step_rows) * lengths.row,
        }


@dataclass(frozen=True)
class ComputedFit:
    """All ways to train a model on a device, and the settings that are proposed: of the first that fits."""

    name: str
    shape: ModelShape
    device: Device
    lengths: Lengths
    step_rows: int
    rank: int
    choices: list[Choice]

    def propose(self, adapters: bool) -> dict[str, Any]:
        """Return the settings of the first full fine-tune, or the first with adapters, that fits; {} if none does.

        With the first precision and optimizer that fit, checkpointing and a sum after each micro-batch are proposed
        where a micro-batch would have few rows without.
        """
        fitting = [choice for choice in self.choices if choice.fits and bool(choice.shape.adapters) == adapters]
        if not fitting:
            return {}
        own = [choice for choice in fitting if choice.way == fitting[0].way]
        most = max(own, key=lambda choice: choice.learner_rows)
        chosen = next((choice for choice in own if choice.learner_rows >= FEW), most)
        rank = {"model.lora_rank": self.rank} if adapters else {}
        return {"model.name": self.name, **rank, **chosen.list_settings(self.lengths, self.step_rows, self.device)}

    def text(self) -> str:
        """Format the arithmetic as comments, and the proposed settings as a YAML fragment for `qed grpo`."""
        shape, lengths, device = self.shape, self.lengths, self.device
        cache = count_cache_bytes(shape, "bfloat16")
        shared = f", shard {device.shard}" if device.count > 1 else ""
        lines = [
            f"# {self.name}: {shape.weights / GB:.3f} B parameters; computed, not measured",
            f"# {device.count} device(s) of {device.memory / GB:g} GB{shared}, of which {MARGIN:.0%} are left free; "
            f"rows of {lengths.prompt} + {lengths.answer} tokens, {self.step_rows} a step",
            f"# KV cache: {cache / 1024:.0f} KiB a token in bfloat16, {lengths.prompt + lengths.answer} tokens a row: "
            f"{cache * (lengths.prompt + lengths.answer) / 2**20:.0f} MiB",
            "#",
            *self._format_table(),
        ]
        if any(choice.one_row.host for choice in self.choices):
            lines.append("# The host's part is of each device; torch rounds each pinned tensor up to a power of two.")
        lines += self._explain_misfits()
        full, adapted = self.propose(adapters=False), self.propose(adapters=True)
        if not full:
            lines += ["#", "# A full fine-tune does not fit: more --devices with --shard full, or LoRA as below."]
        elif adapted:
            lines += ["#", f"# With LoRA: {json.dumps(adapted)}"]
        lines += [f"{key}: {json.dumps(value)}" for key, value in (full or adapted).items()]
        return "\n".join([*lines, "#", f"# {shlex.join(self.build_command())}"])

    def build_command(self) -> list[str]:
        """Return the command line of the proposed settings; its task is an example."""
        proposed = self.propose(adapters=False) or self.propose(adapters=True)
        options = [part for key, value in proposed.items() for part in (f"--{key}", _format_value(value))]
        ranks = ["--ranks", str(self.device.count)] if self.device.count > 1 else []
        return ["qed", "grpo", *ranks, *options, "--tasks", "gsm8k"]

    def _explain_misfits(self) -> Iterator[str]:
        """Say why a full fine-tune with an optimizer does not fit, by what it takes at least."""
        ways = {choice.way: choice for choice in self.choices if not choice.shape.adapters}
        for way in ways:
            own = [choice for choice in self.choices if choice.way == way]
            if any(choice.fits for choice in own):
                continue
            memory = min((choice.one_row for choice in own), key=lambda memory: memory.total)
            parts = " + ".join(f"{part} {size / GB:.1f}" for part, size in memory.parts.items() if size >= GB / 20)
            taken, budget = memory.total / GB, self.device.budget / GB
            yield f"# Does not fit: {way}: it takes {taken:.1f} GB at least, of {budget:.1f}: {parts}"

    def _format_table(self) -> Iterator[str]:
        rows = [
            ["# GB on a device:", *COLUMNS, "a row", "rest", "host", "learner rows", "sampler rows"],
        ]
        for choice in self.choices:
            memory = choice.one_row
            parts = [memory.parts.get(part, 0) for part in COLUMNS.values()]
            row = choice.row_bytes
            rest = memory.total - sum(parts) - row
            fitted = [str(choice.learner_rows or "-"), str(choice.sampler_rows or "-")]
            sizes = [f"{size / GB:.1f}" for size in [*parts]]
            sizes += [f"{row / GB:.2f}", f"{rest / GB:.1f}", f"{sum(memory.host.values()) / GB:.1f}"]
            rows.append([f"# {choice.describe()}", *sizes, *fitted])
        return iter(format_columns(rows).splitlines())

    def as_object(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return {
            "model": self.name,
            "parameters": self.shape.weights,
            "device_memory_gb": self.device.memory / GB,
            "devices": self.device.count,
            "shard": self.device.shard,
            "margin": MARGIN,
            "kv_cache_bytes_per_token": count_cache_bytes(self.shape, "bfloat16"),
            "choices": [
                {
                    "choice": choice.describe(),
                    "bytes": choice.one_row.parts,
                    "host_bytes": choice.one_row.host,
                    "row_bytes": choice.row_bytes,
                    "learner_rows": choice.learner_rows,
                    "sampler_rows": choice.sampler_rows,
                }
                for choice in self.choices
            ],
            "command": self.build_command(),
            "full": self.propose(adapters=False),
            "lora": self.propose(adapters=True),
        }


def compute_fit(name: str, arguments: Sequence[str], lengths: Lengths, device: Device) -> ComputedFit:
    """Compute which ways to train a model fit a device, in the order in which they are proposed.

    The computation is in bfloat16. A way that is slower or less exact comes later.

    Args:
        name: of the model, see `find_shape`.
        arguments: a command line of `qed grpo`.
        lengths: prompt and answer lengths of a row.
        device: the devices.

    Raises:
        UsageError: no such model, or a bad setting.
        ModelError: not even LoRA fits.
    """
    full_name, shape = find_shape(name)
    settings = resolve_settings("grpo", arguments).settings
    assert isinstance(settings, Settings)
    rank = settings.model.lora_rank or RANK
    choices = [
        _fit_choice(own, plan, settings, lengths, device)
        for own, plan in _list_plans(shape, shape.with_adapters(rank), settings, lengths, device)
    ]
    step_rows = settings.sampling.problems_per_step * settings.sampling.group_size
    fit = ComputedFit(full_name, shape, device, lengths, step_rows, rank, choices)
    if not any(choice.fits for choice in choices):
        least = min(choice.one_row.total for choice in choices)
        raise ModelError(
            f"Not even one row of {lengths.prompt} + {lengths.answer} tokens of {full_name} fits "
            f"{device.memory / GB:g} GB, of which {MARGIN:.0%} are left free: the least that it takes is "
            f"{least / GB:.1f} GB, with LoRA. Use smaller --lengths, more "
            "--devices with --shard full, or a smaller model."
        )
    return fit


def _list_plans(
    shape: ModelShape, adapted: ModelShape, settings: Settings, lengths: Lengths, device: Device
) -> Iterator[tuple[ModelShape, StepPlan]]:
    """List the ways to train, full fine-tunes first."""
    ways = [("float32", "adamw"), ("bfloat16", "adamw"), ("bfloat16", "adamw8bit"), ("bfloat16", "adamw_offload")]
    for own, dtypes in ((shape, ways), (adapted, ways[:2])):
        base = plan_step(own, settings, lengths.prompt, lengths.answer, 1, "cuda", device.count)
        row = replace(base, tokens=lengths.row, row=lengths.row, microbatches=2, shard=device.shard)
        # Adapters' gradients are small, whenever they are summed.
        sums = ("step", "microbatch") if row.divided > 1 and not own.adapters else ("step",)
        for (dtype, optimizer), checkpointing, reduce in product(dtypes, (False, True), sums):
            plan = replace(row, dtype=dtype, optimizer=optimizer, checkpointing=checkpointing, reduce=reduce)
            yield own, replace(plan, precision="bfloat16")


def _fit_choice(shape: ModelShape, plan: StepPlan, settings: Settings, lengths: Lengths, device: Device) -> Choice:
    def fits_learner(rows: int) -> bool:
        return estimate_training(shape, _widen(plan, rows)).total <= device.budget

    def fits_sampler(rows: int) -> bool:
        sampler = SamplingPlan(rows, lengths.prompt, lengths.answer, settings.sampling.group_size, "bfloat16")
        return estimate_sampling(shape, sampler, plan).total <= device.budget

    return Choice(shape, plan, _find_largest(fits_learner), _find_largest(fits_sampler))


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _widen(plan: StepPlan, rows: int) -> StepPlan:
    return replace(plan, tokens=rows * plan.row)


def _find_largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number of rows, up to `ROWS`, that fits; 0 if none does. Memory grows with the rows."""
    low, high = 0, ROWS
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
