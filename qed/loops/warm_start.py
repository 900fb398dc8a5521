"""A start that is taught first: the model `sft:CONFIG` is what `qed sft CONFIG` makes.

It is made once, with the run's own seed, in a folder beside the run's, and found there by every other run that wants
the same start.
"""

from __future__ import annotations

import hashlib
import secrets
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import resolve_settings
from qed.config.values import dump_settings
from qed.errors import Interrupted, UsageError
from qed.loops.setup import open_run
from qed.loops.train import run_phases
from qed.runs.run import Launch

TAUGHT = "sft:"
Some = TypeVar("Some", Settings, PipelineSettings)


def warm_start(settings: Some, launch: Launch) -> Some:
    """The settings with the start's folder in the place of `sft:CONFIG`, once it is there.

    Raises:
        UsageError: there is no such config, or it asks for a start of its own.
    """
    config = resolve_warm_start_config(settings)
    if not config:
        return settings
    start = resolve_warm_start_settings(settings, config)
    key = hashlib.sha256(dump_settings(start).encode()).hexdigest()[:8]
    folder = Path(settings.run.out or "runs/run").parent / f"start--{Path(config).stem}--{key}"
    made = folder / "final" / "hf"
    if not made.is_dir():
        # Two runs may want the same start at once: each makes its own, and the first to end gives it the name.
        beside = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}")
        first = replace(launch, resume=False, overwrite=False, command=(*launch.command, "# start"))
        try:
            with open_run(replace(start, run=replace(start.run, out=str(beside))), first, "start") as setup:
                setup.console.say(f"The start comes first: qed sft {config}.")
                run_phases(setup, [start])
            if not made.is_dir():
                beside.rename(folder)
        except Interrupted as stopped:
            raise Interrupted(
                "Stopped while the start was made; the same command makes it again.", stopped.exit_code
            ) from stopped
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return replace(settings, model=replace(settings.model, name=str(made), revision=""))


def resolve_warm_start_config(settings: Settings | PipelineSettings) -> str:
    """The config of the start, or nothing where the model is another one."""
    name = settings.model.name
    return name.removeprefix(TAUGHT) if name.startswith(TAUGHT) else ""


def resolve_warm_start_settings(settings: Settings | PipelineSettings, config: str) -> Settings:
    """The settings of the run that makes the start: the config's, with the seed, kernels and device of this run.

    Raises:
        UsageError: it asks for a start of its own, or cannot be read.
    """
    start = resolve_settings("sft", [config]).settings
    assert isinstance(start, Settings)
    if resolve_warm_start_config(start):
        raise UsageError(f"{config} begins from {start.model.name}, but a start must not want a start of its own.")
    ours = settings.run
    run = replace(start.run, out="", seed=ours.seed, threads=ours.threads, matmul_precision=ours.matmul_precision)
    return replace(start, run=run, model=replace(start.model, device=settings.model.device))
