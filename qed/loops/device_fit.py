"""Measures the sizes that fit a CUDA card with `qed doctor --fit`, once per model, card and relevant settings.

The measurement is a separate process, which may fail or run out of memory without harm to the run; the sizes are then
estimated. Results are stored in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

import qed
from qed import host
from qed.config.phases import Settings
from qed.config.settings import LearnerSettings, ModelSettings
from qed.config.values import format_value
from qed.console.live import Console
from qed.errors import QedError
from qed.guards.parents import build_code_command
from qed.loops.device_defaults import (
    LEAST_ROWS,
    MOST_ROWS,
    MOST_TOKENS,
    ON_CUDA,
    AnySettings,
    Card,
    Sizes,
    Surroundings,
    choose_device_defaults,
    describe_chosen,
    find_longest_prompt,
    is_one_of_many,
    keep_device_defaults,
    list_chosen,
    read_card,
)
from qed.loops.resume import list_phases
from qed.models import lora
from qed.models.load import is_new, load_outline, read_window
from qed.models.shapes import ModelShape, measure_shape
from qed.runs.environment import read_version
from qed.runs.run import Launch, Run, write_whole

SECONDS = 600  # time limit of a measurement
FREE_SHARE = 0.9  # of the card's memory; with less, other programs use it and results are not cached
# Settings that do not affect memory, or that are measured.
NOT_OF_MEMORY = {
    *("name", "revision"),
    *("steps", "epochs", "batch_size", "passes", "tokens_per_microbatch", "lr", "schedule", "warmup_steps"),
    *("warmup_ratio", "betas", "weight_decay", "clip_norm", "skip_norm"),
}
# The child process ends with its parent.
BOOT = (
    "from qed.guards.parents import die_with_parent; "
    "die_with_parent(int(sys.argv[2]))(); from qed.cli.main import main; sys.exit(main(sys.argv[3:]))"
)


@dataclass(frozen=True)
class FitRequest:
    """A measurement to make: the arguments of `qed doctor`, and a row's tokens as the learner counts them."""

    arguments: tuple[str, ...]
    row: int


def settle_device_defaults(
    settings: AnySettings, launch: Launch, device: torch.device, run: Run, console: Console
) -> tuple[AnySettings, Launch]:
    """Return a run's settings with the defaults for its device, and its launch with their origins.

    A resumed run keeps the values chosen when it began. Nothing changes if the launch has no origins, because the
    caller built the settings itself, or if defaults have been chosen already. Errors here never fail a run.
    """
    origins = launch.origins
    if launch.resume:
        settings, kept = keep_device_defaults(settings, origins, run.folder)
        return settings, replace(launch, origins=kept)
    card = read_card(device)
    if card is None or not origins or any(origin.startswith(ON_CUDA) for origin in origins.values()):
        return settings, launch

    shape, window = find_shape(list_phases(settings)[-1])

    def measure(phase: Settings) -> Sizes | None:
        return None if is_one_of_many() else measure_sizes(phase, card, window, console.say)

    around = Surroundings(card, shape, shutil.disk_usage(run.folder).free, measure)
    settings, chosen = choose_device_defaults(settings, origins, around)
    console.say(describe_chosen(settings, chosen, card))
    run.event(
        "device_defaults", card=card.name, chosen={path: value for path, value, _ in list_chosen(settings, chosen)}
    )
    return settings, replace(launch, origins=chosen)


def preview_device_defaults(settings: AnySettings, origins: Mapping[str, str], device: torch.device) -> list[str]:
    """Return lines that say what a new run would choose for the device, without measuring; empty without CUDA."""
    card = read_card(device)
    if card is None:
        return []

    shape, window = find_shape(list_phases(settings)[-1])

    def recall(phase: Settings) -> Sizes | None:
        return read_sizes(build_request(phase, window), phase, card)

    around = Surroundings(card, shape, shutil.disk_usage(Path.cwd()).free, recall)
    settings, chosen = choose_device_defaults(settings, origins, around)
    lines = [f"  {path} {format_value(value)}: {reason}" for path, value, reason in list_chosen(settings, chosen)]
    return [f"Defaults on {card.name}:", *lines] if lines else []


def find_shape(settings: Settings) -> tuple[ModelShape | None, int]:
    """Return the shape of an existing model, without loading weights, and its context window in tokens.

    The shape is None if it cannot be read, and for a new model, which is small and keeps its batch sizes.
    """
    name = settings.model.name
    if is_new(name) or name.startswith("sft:"):
        return None, 0
    with suppress(QedError):
        model, _ = load_outline(settings.model)
        adapted = lora.add_adapters(model, settings.model, 0) if settings.model.lora_rank else model
        return measure_shape(adapted), read_window(model)
    return None, 0


def measure_sizes(
    settings: Settings, card: Card, window: int, say: Callable[[str], None], run: Callable[..., Any] = subprocess.run
) -> Sizes | None:
    """Return measured sizes, from the cache if they were measured before; None if measuring is not possible.

    `qed doctor` measures only the policy, so phases with a named reference or a divergence to a teacher return None.

    Args:
        settings: settings of the phase.
        card: card to measure on.
        window: context window of the model, in tokens.
        say: prints a line.
        run: starts a process, like `subprocess.run`.
    """
    if settings.algorithm.reference_name or settings.algorithm.teacher_divergence is not None:
        return None
    request = build_request(settings, window)
    known = read_sizes(request, settings, card)
    if known is not None:
        return known
    say(f"Measuring which batches fit {card.name}, once for this model and these settings: qed doctor --fit.")
    command = build_code_command(BOOT, str(os.getpid()), *request.arguments)
    try:
        done = run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
        found = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        sizes = None if found is None else _read_result(found, request)
        why = done.stderr.strip().splitlines()[-1][:300] if sizes is None and done.stderr.strip() else ""
    except (OSError, ValueError, KeyError, TypeError, IndexError, subprocess.SubprocessError) as error:
        sizes, why = None, f"{type(error).__name__}: {error}"[:300]
    if sizes is None:
        say(f"The measurement failed, so the batch sizes are estimated. {why}")
        return None
    if card.free >= FREE_SHARE * card.memory:
        with suppress(QedError, OSError):
            write_whole(_find_cache_file(request, settings, card), json.dumps(found).encode())
    return sizes


def build_request(settings: Settings, window: int) -> FitRequest:
    """Build the arguments of `qed doctor` that measure a phase: the settings that affect its memory.

    The longest prompt is limited so that an answer also fits the window.
    """
    sampling = settings.sampling
    answer = sampling.max_tokens
    prompt = max(1, min(find_longest_prompt(settings), window - answer))
    given = {
        f"{name}.{part.name}": value
        for name, section, default in (
            ("model", settings.model, ModelSettings()),
            ("learner", settings.learner, LearnerSettings()),
        )
        for part in fields(section)
        if part.name not in NOT_OF_MEMORY and (value := getattr(section, part.name)) != getattr(default, part.name)
    }
    if settings.model.revision:
        given["model.revision"] = settings.model.revision
    given["run.matmul_precision"] = settings.run.matmul_precision
    given["sampling.sampler"] = sampling.sampler
    if settings.algorithm.reference:
        given["algorithm.kl"] = 0.01  # adds a reference model, as in the phase's algorithm
    words = [f"{key}={format_value(value)}" for key, value in given.items()]
    lengths = ["--lengths", f"{prompt},{answer}", "--group", str(sampling.group_size)]
    return FitRequest(("doctor", "--fit", settings.model.name, *lengths, "--json", *words), prompt + answer - 1)


def read_sizes(request: FitRequest, settings: Settings, card: Card) -> Sizes | None:
    """Return sizes from the cache; None if there are none, or if other programs use the card."""
    if card.free < FREE_SHARE * card.memory:
        return None
    with suppress(OSError, ValueError, KeyError, TypeError):
        return _read_result(json.loads(_find_cache_file(request, settings, card).read_bytes()), request)
    return None


def _read_result(found: dict[str, Any], request: FitRequest) -> Sizes:
    rows, sampled = int(found["learner"]["rows"]), int(found["sampler"]["rows"])
    tokens = min(MOST_TOKENS, max(1, rows) * request.row)
    return Sizes(tokens, min(MOST_ROWS, max(LEAST_ROWS, sampled)), "measured by qed doctor --fit")


def _find_cache_file(request: FitRequest, settings: Settings, card: Card) -> Path:
    """Return the cache file of a measurement, named by a hash of everything it depends on."""
    config = Path(settings.model.name) / "config.json"
    depends = {
        "arguments": request.arguments,
        "config": config.read_text(encoding="utf-8") if config.is_file() else "",
        "card": (card.name, card.capability, card.memory),
        "versions": [qed.__version__, *map(read_version, ("torch", "transformers"))],
    }
    key = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:16]
    return host.find_cache() / "fits" / f"{key}.json"
