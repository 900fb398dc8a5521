"""Chooses defaults by device: on CUDA, precision, activation checkpointing, batch sizes and checkpoints.

The settings' defaults suit a CPU; a new run on a CUDA device uses others. Values that a user sets are never changed,
and a resumed run keeps those in its settings.yaml. The origin of a chosen value, in settings.origin.json, begins with
`ON_CUDA` and gives the reason.

The choice of precision changes results within rounding (docs/numerics.md); batch sizes and activation checkpointing do
not.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qed.config.changes import read_saved
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import DEFAULT
from qed.config.values import format_value
from qed.errors import QedError
from qed.loops.memory import estimate_memory
from qed.loops.resume import list_phases
from qed.models.shapes import ModelShape

ON_CUDA = f"{DEFAULT} on cuda"
AnySettings = Settings | PipelineSettings
GIB = 2**30
BFLOAT16_SINCE = 8  # the first major compute capability with bfloat16 and TF32 in hardware
MARGIN = 0.1  # share of the card's memory left free for fragmentation and other uses of the process
PROMPT = 512  # assumed longest prompt in tokens without data.max_prompt_tokens, as the data are not loaded yet
# More tokens or rows at once than these are no faster on current cards, and use more memory.
MOST_TOKENS, MOST_ROWS = 1 << 16, 1 << 10
LEAST_TOKENS, LEAST_ROWS = 1 << 10, 8
# With this many tokens a card is busy: smaller micro-batches cost less time than activation checkpointing.
ENOUGH_TOKENS = 4096
SAVES, SHORT = 10, 20  # checkpoints in a run; a run of fewer steps than SHORT is saved only at its end
SAVE_STEPS = 100  # steps between checkpoints if learner.epochs leaves the number of steps open
KEPT = 2  # number of newest checkpoints that are kept
DISK_SHARE = 0.5  # largest share of the free disk space that kept checkpoints may take


@dataclass(frozen=True)
class Card:
    """A CUDA device: its name, compute capability, and total and free memory in bytes."""

    name: str
    capability: tuple[int, int]
    memory: int
    free: int


@dataclass(frozen=True)
class Sizes:
    """The largest micro-batch in tokens and the largest sampler batch in rows that fit, and how they were found."""

    tokens: int
    rows: int
    reason: str


@dataclass(frozen=True)
class Surroundings:
    """What the choice depends on besides the settings.

    `shape` is the model's, None if unknown; `disk` is the free space on the run's disk in bytes; `measure` returns
    measured sizes, or None to fall back to an estimate.
    """

    card: Card
    shape: ModelShape | None
    disk: int
    measure: Callable[[Settings], Sizes | None] = lambda settings: None


def read_card(device: torch.device) -> Card | None:
    """Return the description of a CUDA device; None for other devices."""
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return Card(torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device), total, free)


class _Choices:
    """Settings being chosen; a value that the user has set is never replaced."""

    def __init__(self, settings: Any, origins: Mapping[str, str]) -> None:
        self.settings, self.origins = settings, dict(origins)

    def is_given(self, path: str) -> bool:
        """Return whether the user has set the setting at this path."""
        return not self.origins.get(path, DEFAULT).startswith(DEFAULT)

    def set(self, path: str, value: Any, reason: str) -> None:
        """Set a setting unless the user has, and record the reason as its origin."""
        if not self.is_given(path):
            self.settings = set_value(self.settings, path, value)
            self.origins[path] = f"{ON_CUDA}: {reason}"

    @property
    def phase(self) -> Settings:
        """The phase whose memory use decides: the last one, because it samples."""
        return list_phases(self.settings)[-1]

    def list_learners(self) -> list[str]:
        """Return the paths of the learners' sections."""
        if isinstance(self.settings, PipelineSettings):
            return ["sft.learner", "rl.learner"]
        return ["learner"]


def choose_device_defaults(
    settings: AnySettings, origins: Mapping[str, str], around: Surroundings
) -> tuple[AnySettings, dict[str, str]]:
    """Choose default settings for a CUDA device.

    Args:
        settings: settings of the run.
        origins: origin of each setting by its path, as in `Launch.origins`.
        around: the card, the model's shape, the disk and the measurement.

    Returns:
        The settings and their origins.
    """
    choices = _Choices(settings, origins)
    _choose_precision(choices, around.card)
    if around.shape is not None:
        _choose_checkpointing(choices, around.shape, around.card)
        _choose_sizes(choices, around.shape, around)
    _choose_saving(choices, around.shape, around.disk)
    return choices.settings, choices.origins


def _choose_precision(choices: _Choices, card: Card) -> None:
    """Choose bfloat16, and TF32 for matrix products left in float32; float32 set by the user stays exact."""
    major, minor = card.capability
    if major < BFLOAT16_SINCE:
        reason = f"{card.name} has no bfloat16 in hardware (compute capability {major}.{minor})"
        choices.set("model.precision", "float32", reason)
        return
    choices.set("model.precision", "bfloat16", f"{card.name} computes it in hardware")
    if choices.settings.model.precision == "bfloat16":
        choices.set("run.matmul_precision", "high", "TF32, for the products that bfloat16 leaves in float32")


def _choose_checkpointing(choices: _Choices, shape: ModelShape, card: Card) -> None:
    """Turn activation checkpointing on if a micro-batch of efficient size is estimated not to fit without it."""
    settings, path = choices.phase, f"{choices.list_learners()[-1]}.tokens_per_microbatch"
    tokens = settings.learner.tokens_per_microbatch if choices.is_given(path) else ENOUGH_TOKENS
    settings = replace(settings, learner=replace(settings.learner, tokens_per_microbatch=tokens))
    needed = estimate_peak(shape, settings)
    reason = (
        f"with a micro-batch of {tokens:,} tokens a step takes about {needed / GIB:.1f} GiB without it, of "
        f"{card.memory / GIB:.1f} GiB"
    )
    choices.set("model.gradient_checkpointing", needed > (1 - MARGIN) * card.memory, reason)


def _choose_sizes(choices: _Choices, shape: ModelShape, around: Surroundings) -> None:
    """Choose the sizes of the micro-batch and the sampler batch, measured if possible, otherwise estimated."""
    tokens = [f"{section}.tokens_per_microbatch" for section in choices.list_learners()]
    rows = "sampling.rows_per_batch"
    if all(map(choices.is_given, [*tokens, rows])):
        return
    sizes = around.measure(choices.phase) or estimate_sizes(shape, choices.phase, around.card)
    for path in tokens:
        choices.set(path, sizes.tokens, sizes.reason)
    choices.set(rows, sizes.rows, sizes.reason)


def _choose_saving(choices: _Choices, shape: ModelShape | None, disk: int) -> None:
    """Save checkpoints during training and keep the newest, if there is enough disk space."""
    if choices.is_given("run.save_every"):
        return
    learners = [phase.learner for phase in list_phases(choices.settings)]
    steps = sum(learner.steps for learner in learners)
    if not any(learner.epochs for learner in learners) and steps < SHORT:
        return
    # Weights, two moments, and the weights again if hf/ has another precision; one more checkpoint is being written.
    checkpoint = 4 * (2 * shape.weights + 2 * shape.trained) if shape is not None else 0
    given = choices.is_given("run.keep_last")
    kept = (choices.settings.run.keep_last or SAVES) if given else KEPT
    if (kept + 2) * checkpoint > DISK_SHARE * disk:
        reason = f"{kept + 2} checkpoints of about {checkpoint / GIB:.1f} GiB would fill the disk"
        choices.set("run.save_every", 0, reason)
        return
    every = SAVE_STEPS if any(learner.epochs for learner in learners) else max(SHORT // 2, math.ceil(steps / SAVES))
    choices.set("run.save_every", every, "a stopped run loses little")
    choices.set("run.keep_last", KEPT, "run.save_every is on by default")


def estimate_peak(shape: ModelShape, settings: Settings, prompt: int = 0) -> int:
    """Estimate a phase's peak memory in bytes: weights, and training or sampling with rows of full length."""
    prompt = prompt or find_longest_prompt(settings)
    rows = settings.learner.batch_size or settings.sampling.problems_per_step * settings.sampling.group_size
    needed = estimate_memory(shape, settings, prompt, settings.sampling.max_tokens, rows, "cuda")
    return max(memory.total for memory in needed)


def estimate_sizes(shape: ModelShape, settings: Settings, card: Card) -> Sizes:
    """Return the largest powers of two estimated to fit the card, but at least `LEAST_TOKENS` and `LEAST_ROWS`."""
    allowed = (1 - MARGIN) * card.memory

    def fits(tokens: int, rows: int) -> bool:
        learner = replace(settings.learner, tokens_per_microbatch=tokens, batch_size=0)
        # So many rows that only the micro-batch size limits memory.
        sampling = replace(settings.sampling, rows_per_batch=rows, problems_per_step=MOST_TOKENS)
        return estimate_peak(shape, replace(settings, learner=learner, sampling=sampling)) <= allowed

    tokens, rows = MOST_TOKENS, MOST_ROWS
    while tokens > LEAST_TOKENS and not fits(tokens, LEAST_ROWS):
        tokens //= 2
    while rows > LEAST_ROWS and not fits(LEAST_TOKENS, rows):
        rows //= 2
    return Sizes(tokens, rows, f"estimated for {card.memory / GIB:.1f} GiB")


def find_longest_prompt(settings: Settings) -> int:
    """Return the length of the longest prompt, in tokens, to assume before the data are loaded."""
    return settings.data.max_prompt_tokens or PROMPT


def set_value(settings: Any, path: str, value: Any) -> Any:
    """Return settings with one value replaced, by its path of sections."""
    name, _, rest = path.partition(".")
    return replace(settings, **{name: set_value(getattr(settings, name), rest, value) if rest else value})


def read_value(settings: Any, path: str) -> Any:
    """Return the value of a setting by its path."""
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


def list_chosen(settings: Any, origins: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    """List the settings that were chosen for the device: path, value and reason."""
    prefix = f"{ON_CUDA}: "
    return [
        (path, read_value(settings, path), origin.removeprefix(prefix))
        for path, origin in origins.items()
        if origin.startswith(prefix)
    ]


def describe_chosen(settings: Any, origins: Mapping[str, str], card: Card) -> str:
    """Describe in one line the settings chosen for a card."""
    values = ", ".join(f"{path} {format_value(value)}" for path, value, _ in list_chosen(settings, origins))
    return f"Defaults on {card.name}: {values}. Reasons are in settings.origin.json; your own settings take precedence."


def keep_device_defaults(
    settings: AnySettings, origins: Mapping[str, str], folder: Path, prefix: str = ON_CUDA
) -> tuple[AnySettings, dict[str, str]]:
    """Return a resumed run's settings with the values chosen for the device when the run began.

    Replace only values that the user does not set.

    Args:
        settings: settings of the command that resumes the run.
        origins: origin of each setting by its path.
        folder: folder of the run.
        prefix: prefix of the chosen values' origins; another one for the defaults on servers.
    """
    try:
        before = json.loads((folder / "settings.origin.json").read_bytes())
        saved = read_saved(folder / "settings.yaml")
        chosen = {path: origin for path, origin in before.items() if str(origin).startswith(prefix)}
    except (OSError, ValueError, AttributeError, QedError):
        return settings, dict(origins)  # a damaged file is reported when the run's settings are compared
    kept = dict(origins)
    for path, origin in chosen.items():
        value: Any = saved
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            continue
        if origins.get(path, DEFAULT).startswith(DEFAULT):
            settings = set_value(settings, path, value)
        if read_value(settings, path) == value:
            kept[path] = origin
    return settings, kept


def is_one_of_many() -> bool:
    """Return whether this process is one of several ranks, which must choose the same sizes without measuring."""
    return int(os.environ.get("WORLD_SIZE") or 1) > 1
