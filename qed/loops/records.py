"""Writes how a run was started: its settings with their origins, command, environment and tokenizer."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import torch

from qed.config.phases import PipelineSettings, Settings
from qed.config.values import dump_settings
from qed.guards.redaction import redact
from qed.models import threads
from qed.models.token_text import NAME, encode_tokenizer
from qed.runs.environment import describe_environment
from qed.runs.run import Launch, Run
from qed.training.parallel import Parallel


def write_settings(
    settings: Settings | PipelineSettings,
    run: Run,
    launch: Launch,
    device: torch.device,
    parallel: Parallel,
    peak: float,
) -> None:
    """Write a run's settings, command and environment into its folder, so that it can be repeated.

    Args:
        settings: settings of the run, with the defaults for the device.
        run: the run, whose folder is written.
        launch: how the run was started.
        device: device of the model.
        parallel: the ranks.
        peak: peak floating-point operations per second of all ranks together.
    """
    ranks = {"ranks": parallel.world, "local_ranks": parallel.local_world, "peak_flops": peak}
    compute = {**threads.describe_compute(device), **ranks}
    # Leave out the folder's name, so that `qed METHOD settings.yaml` repeats the run in a new folder.
    files = {
        "settings.yaml": dump_settings(replace(settings, run=replace(settings.run, out=""))),
        "settings.origin.json": json.dumps(dict(launch.origins), indent=1),
        "env.json": json.dumps(describe_environment(device, compute), indent=1),
        "command.txt": _list_commands(run, launch),
    }
    for name, text in files.items():
        run.write(name, redact(text).encode())


def _list_commands(run: Run, launch: Launch) -> str:
    """Return the commands that began and resumed the run, each once, as the lines of a file."""
    path, command = run.folder / "command.txt", redact(shlex.join(launch.command)) + "\n"
    earlier = path.read_text(encoding="utf-8", errors="replace") if launch.resume and path.is_file() else ""
    return earlier if f"\n{command}" in f"\n{earlier}" else earlier + command


def write_tokenizer(tokenizer: Any, run: Run) -> None:
    """Write a fast tokenizer into a run's folder, to decode single tokens; leave an identical file untouched."""
    content, path = encode_tokenizer(tokenizer), run.folder / NAME
    if content is not None and not (path.is_file() and path.read_bytes() == content):
        run.write(NAME, content)
