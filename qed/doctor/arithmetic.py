"""Compute the memory that training needs on a given device by arithmetic, without weights, hub or device."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from qed.config.keys import list_values
from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.config.screens import format_columns
from qed.doctor.fit import MARGIN
from qed.doctor.trial import Lengths
from qed.doctor.ways import Choice, Device, list_choices
from qed.errors import ModelError, UsageError
from qed.loops.device_defaults import find_longest_prompt, set_value
from qed.loops.supported import require_supported
from qed.models.qlora import require_quantizable
from qed.models.shapes import ModelShape, find_adapted_shape, find_shape
from qed.training.memory import count_cache_bytes
from qed.training.parallel import Parallel

GB = 10**9  # bytes, the unit in which GPUs are sold
ANSWER = 1024  # default maximum answer length in tokens
RANK = 16  # default LoRA rank
FEW = 4  # rows in a micro-batch, below which saving memory is worth more time
# The options of `qed doctor` that set settings.
OPTIONS = {
    "model.name": "--fit",
    "sampling.max_tokens": "--lengths",
    "sampling.group_size": "--group",
    "parallel.shard": "--shard",
}
# The columns of the table, and the part of an estimate in each.
COLUMNS = {
    "weights": "weights",
    "gradients": "gradients",
    "moments": "moments",
    "copies": "float32 copies",
    "reference": "reference",
}


@dataclass(frozen=True)
class ComputedFit:
    """All ways to train a model on a device, and the proposed settings: those of the first way that fits."""

    name: str
    shape: ModelShape
    device: Device
    lengths: Lengths
    step_rows: int
    given: dict[str, Any]  # by key, the settings from the command line and from configuration files
    choices: list[Choice]

    @property
    def precision(self) -> str:
        """The precision of the computation, which all ways share."""
        return self.choices[0].plan.precision

    def propose(self, adapters: bool) -> dict[str, Any]:
        """Return the settings of the first full fine-tune, or the first with adapters, that fits; {} if none does.

        They include all given settings, and the rows are limited to those of a step, because more have no effect. With
        the first precision and optimizer that fit, gradient checkpointing and reduction after each micro-batch are
        proposed if a micro-batch would otherwise have few rows.
        """
        fitting = [choice for choice in self.choices if choice.fits and bool(choice.shape.adapters) == adapters]
        if not fitting:
            return {}
        own = [choice for choice in fitting if choice.way == fitting[0].way]
        most = max(own, key=lambda choice: choice.rows.learner)
        few = min(FEW, -(-self.step_rows // self.device.count))
        chosen = next((choice for choice in own if choice.rows.learner >= few), most)
        rank = {"model.lora_rank": RANK} if adapters else {}
        sizes = {
            "sampling.max_tokens": self.lengths.answer,
            "sampling.rows_per_batch": min(chosen.rows.sampler, self.step_rows),
            "learner.tokens_per_microbatch": min(chosen.rows.learner, self.step_rows) * self.lengths.row,
        }
        return {"model.name": self.name, **rank, **chosen.list_settings(), **sizes, **self.given}

    def text(self) -> str:
        """Format the arithmetic as comments, and the proposed settings as a YAML fragment for `qed grpo`."""
        shape, lengths, device = self.shape, self.lengths, self.device
        cache, row = count_cache_bytes(shape, self.precision), lengths.prompt + lengths.answer
        shared = f", shard {device.shard}" if device.count > 1 else ""
        lines = [
            f"# {self.name}: {shape.weights / GB:.3f} B parameters; computed, not measured",
            f"# {device.count} device(s) of {device.memory / GB:g} GB{shared}, of which {MARGIN:.0%} are left free; "
            f"rows of {lengths.prompt} + {lengths.answer} tokens, {self.step_rows} a step",
            f"# KV cache: {cache / 1024:.0f} KiB a token in {self.precision}, {row} tokens a row: "
            f"{cache * row / 2**20:.0f} MiB",
            "#",
            *self._format_table(),
        ]
        if any(choice.one_row.host for choice in self.choices):
            lines.append("# Host memory is per device; torch rounds each pinned tensor up to a power of two.")
        lines += self._explain_misfits()
        full, adapted = self.propose(adapters=False), self.propose(adapters=True)
        if full and adapted:
            lines += ["#", f"# With LoRA: {json.dumps(adapted)}"]
        elif adapted and not all(choice.shape.adapters for choice in self.choices):
            lines += ["#", "# A full fine-tune does not fit: more --devices with --shard full, or LoRA as below."]
        lines += [f"{key}: {json.dumps(value)}" for key, value in (full or adapted).items()]
        return "\n".join([*lines, "#", f"# {shlex.join(self.build_command())}"])

    def build_command(self) -> list[str]:
        """Return the command line of the proposed settings, with an example task if none is given."""
        proposed = self.propose(adapters=False) or self.propose(adapters=True)
        # A value after an equals sign may start with a dash.
        options = [f"--{key}={_format_value(value)}" for key, value in proposed.items()]
        ranks = ["--ranks", str(self.device.count)] if self.device.count > 1 else []
        task = [] if "data.tasks" in proposed else ["--tasks", "gsm8k"]
        return ["qed", "grpo", *ranks, *options, *task]

    def _explain_misfits(self) -> Iterator[str]:
        """Explain why a full fine-tune with an optimizer does not fit, with the memory it needs at least."""
        ways = {choice.way: choice for choice in self.choices if not choice.shape.adapters}
        for way in ways:
            own = [choice for choice in self.choices if choice.way == way]
            if any(choice.fits for choice in own):
                continue
            memory = min((choice.one_row for choice in own), key=lambda memory: memory.total)
            parts = " + ".join(f"{part} {size / GB:.1f}" for part, size in memory.parts.items() if size >= GB / 20)
            taken, budget = memory.total / GB, self.device.budget / GB
            yield f"# Does not fit: {way}: it needs at least {taken:.1f} GB, and {budget:.1f} are available: {parts}"

    def _format_table(self) -> Iterator[str]:
        rows = [["# GB on a device:", *COLUMNS, "a row", "rest", "host", "learner rows", "sampler rows"]]
        for choice in self.choices:
            memory = choice.one_row
            parts = [memory.parts.get(part, 0) for part in COLUMNS.values()]
            row = choice.row_bytes
            rest = memory.total - sum(parts) - row
            fitted = [str(choice.rows.learner or "-"), str(choice.rows.sampler or "-")]
            sizes = [f"{size / GB:.1f}" for size in parts]
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
            "kv_cache_bytes_per_token": count_cache_bytes(self.shape, self.precision),
            "choices": [
                {
                    "choice": choice.describe(),
                    "bytes": choice.one_row.parts,
                    "host_bytes": choice.one_row.host,
                    "row_bytes": choice.row_bytes,
                    "learner_rows": choice.rows.learner,
                    "sampler_rows": choice.rows.sampler,
                }
                for choice in self.choices
            ],
            "command": self.build_command(),
            "full": self.propose(adapters=False),
            "lora": self.propose(adapters=True),
        }


def compute_fit(
    name: str,
    arguments: Sequence[str],
    device: Device,
    lengths: Lengths | None = None,
    options: Mapping[str, Any] | None = None,
) -> ComputedFit:
    """Compute which ways to train a model fit a device, in the order in which they are proposed.

    The computation is in bfloat16, unless the arguments set its precision. If they include a LoRA setting, only LoRA is
    computed.

    Args:
        name: name of the model, see `find_shape`.
        arguments: a command line of `qed grpo`.
        device: the devices; an empty `shard` shards what the settings allow.
        lengths: prompt and answer lengths of a row; None uses those of the settings, or 512 and 1024 tokens.
        options: additional settings by key, among those in `OPTIONS`, which the arguments must not contradict.

    Raises:
        UsageError: there is no such model, a setting is invalid, or one has two values.
        ModelError: nothing fits.
    """
    full_name, shape = find_shape(name)
    fixed = {"model.name": full_name, **(options or {})}
    fixed |= {} if lengths is None else {"sampling.max_tokens": lengths.answer}
    settings, given = _resolve_given(fixed, arguments)
    if lengths is None:
        answer = given.get("sampling.max_tokens", ANSWER)
        lengths = Lengths(find_longest_prompt(settings), answer)
    device = replace(device, shard=given.get("parallel.shard") or device.shard or _choose_shard(settings, device.count))
    choices = []
    if not _asks_for_adapters(given):
        choices += list_choices(shape, settings, given, lengths, device)
    if _asks_for_adapters(given) or "model.lora_rank" not in given:
        settings = set_value(settings, "model.lora_rank", settings.model.lora_rank or RANK)
        choices += list_choices(find_adapted_shape(name, settings.model), settings, given, lengths, device)
    step_rows = settings.sampling.problems_per_step * settings.sampling.group_size
    fit = ComputedFit(full_name, shape, device, lengths, step_rows, given, choices)
    if not any(choice.fits for choice in choices):
        raise ModelError(_explain_nothing_fits(fit))
    return fit


def _resolve_given(fixed: Mapping[str, Any], arguments: Sequence[str]) -> tuple[Settings, dict[str, Any]]:
    """Return the settings, and those explicitly given by key; fixed values override configuration files."""
    resolved = resolve_settings("grpo", [*(f"--{key}={value}" for key, value in fixed.items()), *arguments])
    settings = resolved.settings
    assert isinstance(settings, Settings)
    values = list_values(settings)
    for key, value in fixed.items():
        if values[key] != value:
            raise UsageError(
                f"qed doctor: {OPTIONS[key]} sets {key} to {value}, but {key}={values[key]} is given too. Give "
                "one of them."
            )
    require_quantizable(settings.model)
    return settings, {key: values[key] for key in resolved.list_given()}


def _asks_for_adapters(given: Mapping[str, Any]) -> bool:
    """Return whether a given setting requests adapters; a rank of 0 does not."""
    asked = any(given.get(f"model.lora_{name}") for name in ("rank", "alpha", "targets"))
    return asked and given.get("model.lora_rank") != 0


def _choose_shard(settings: Settings, count: int) -> str:
    """Return the default sharding of several devices: the full training state, or none if a setting forbids it."""
    if count == 1:
        return "none"
    sharded = set_value(settings, "parallel.shard", "full")
    try:
        require_supported([sharded], Parallel(world=count, settings=sharded.parallel))
    except UsageError:
        return "none"
    return "full"


def _explain_nothing_fits(fit: ComputedFit) -> str:
    """Explain how much memory the smallest way needs, or which sizes fit instead of the given batch sizes."""
    lengths, device = fit.lengths, fit.device
    most = max(fit.choices, key=lambda choice: min(choice.rows.learner, choice.rows.sampler))
    room = f"{device.memory / GB:g} GB, of which {MARGIN:.0%} are left free"
    if min(most.rows.learner, most.rows.sampler):
        return (
            f"The given learner.tokens_per_microbatch or sampling.rows_per_batch does not fit {room}. With "
            f"{most.describe()} they may be at most {most.rows.learner * lengths.row} and {most.rows.sampler}."
        )
    least = min(fit.choices, key=lambda choice: choice.one_row.total)
    # 4-bit weights are not sharded.
    more = "" if least.plan.quantized else "more --devices with --shard full, LoRA with model.quantization=nf4, "
    return (
        f"Not even one row of {lengths.prompt} + {lengths.answer} tokens of {fit.name} fits {room}: it needs at least "
        f"{least.one_row.total / GB:.1f} GB, with {least.describe()}. Use smaller --lengths, "
        f"{more}or a smaller model."
    )


def _format_value(value: Any) -> str:
    """Format a value for a command line: a list as its items, or as JSON if these need quotes."""
    if isinstance(value, (list, tuple)):
        plain = all(re.fullmatch(r"[\w./:@*+-]+", str(item)) for item in value)
        return ",".join(map(str, value)) if plain else json.dumps(value)
    return value if isinstance(value, str) else json.dumps(value)
