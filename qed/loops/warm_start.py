"""Warm start: the model name `sft:CONFIG` stands for the model that `qed sft CONFIG` trains.

The model is trained once, with the run's seed, in a folder next to the run's, and is reused by every other run with the
same warm start.
"""

from __future__ import annotations

import glob
import hashlib
import secrets
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from qed.config.changes import list_changes
from qed.config.keys import list_origins
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import resolve_settings
from qed.config.values import dump_settings
from qed.errors import DataError, Interrupted, UsageError
from qed.loops.resume import list_phases
from qed.loops.setup import open_run
from qed.loops.train import run_phases
from qed.models import load
from qed.report.model_card import write_card
from qed.report.write import write_report
from qed.runs.run import Launch
from qed.trackers.start import require_installed
from qed.training.joining import join_ranks

WARM_START = "sft:"
AnySettings = TypeVar("AnySettings", Settings, PipelineSettings)


def warm_start(settings: AnySettings, launch: Launch) -> AnySettings:
    """Train the model `sft:CONFIG` unless it exists, and return the settings with its folder as the model name.

    Settings with any other model are returned unchanged.

    Raises:
        UsageError: the config does not exist, or it has a warm start itself.
    """
    config = resolve_warm_start_config(settings)
    if not config:
        return settings
    require_installed(settings.run.trackers)
    start = resolve_warm_start_settings(settings, config)
    key = hashlib.sha256(dump_settings(start).encode()).hexdigest()[:8]
    home, name = Path(settings.run.out or "runs/run").parent, f"start--{Path(config).stem}"
    parallel = join_ranks(load.pick_device(settings.model.device), seconds=settings.run.watchdog)
    # Another run may finish the same model while the ranks look for it, so only the first rank looks.
    trained = parallel.run_on_first(lambda: _find_trained(home, name, start))
    folder = trained or home / f"{name}--{key}"
    model = folder / "final" / "hf"
    if trained is None and not parallel.run_on_first(model.is_dir):
        # If two runs need the same model at once, each trains its own, and the first to finish renames its folder.
        temporary = folder.with_name(parallel.run_on_first(lambda: f"{folder.name}.{secrets.token_hex(4)}"))
        resolved = resolve_settings("sft", [config])
        origins = list_origins(resolved.settings, resolved.origins)
        command = (*launch.command, "# start")
        sft_launch = replace(launch, resume=False, overwrite=False, command=command, origins=origins)
        try:
            with open_run(replace(start, run=replace(start.run, out=str(temporary))), sft_launch, "start") as setup:
                setup.console.say(f"Warm start first: qed sft {config}.")
                run_phases(setup, list_phases(setup.settings))
            parallel.run_on_first(lambda: _rename_unless(model, temporary, folder, setup.last))
            setup.console.say(f"The warm start is kept in {folder}; other runs here with the same one use it again.")
        except Interrupted as stopped:
            raise Interrupted(
                "Stopped during the warm start; the same command starts it again.", stopped.exit_code
            ) from stopped
        finally:
            if parallel.is_first:
                shutil.rmtree(temporary, ignore_errors=True)
    return replace(settings, model=replace(settings.model, name=str(model), revision=""))


def _rename_unless(model: Path, temporary: Path, folder: Path, step: int) -> None:
    """Rename the trained run's folder, also in its pages, unless another run has meanwhile trained the same model."""
    if not model.is_dir():
        temporary.rename(folder)
        write_card(folder, step)
        write_report([folder], folder / "report.html")


def _find_trained(home: Path, name: str, start: Settings) -> Path | None:
    """Return the folder of a warm start with the same settings; settings missing in its file count as defaults."""
    # Folders end with the eight digits of a key; a longer name is temporary, of a run that is still training it.
    for folder in sorted(home.glob(f"{glob.escape(name)}--{'[0-9a-f]' * 8}")):
        with suppress(DataError, OSError):
            if (folder / "final" / "hf").is_dir() and list_changes(folder / "settings.yaml", start) == ([], []):
                return folder
    return None


def resolve_warm_start_config(settings: Settings | PipelineSettings) -> str:
    """Return the warm start's config, or an empty string if the model is not a warm start."""
    name = settings.model.name
    return name.removeprefix(WARM_START) if name.startswith(WARM_START) else ""


def resolve_warm_start_settings(settings: Settings | PipelineSettings, config: str) -> Settings:
    """Return the config's settings with the seed, threads, matmul precision and device of this run.

    Raises:
        UsageError: the config cannot be read, or has a warm start itself.
    """
    start = resolve_settings("sft", [config]).settings
    assert isinstance(start, Settings)
    if resolve_warm_start_config(start):
        raise UsageError(f"{config} begins from {start.model.name}, but a warm start cannot have a warm start itself.")
    own = settings.run
    run = replace(start.run, out="", seed=own.seed, threads=own.threads, matmul_precision=own.matmul_precision)
    return replace(start, run=run, model=replace(start.model, device=settings.model.device))
