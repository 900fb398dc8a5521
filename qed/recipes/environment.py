"""What a run stands on, versions, commit and hardware, and how it computes: recorded, and reused on resume."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from qed import kernels
from qed.configuration.resolve import DEFAULT
from qed.console import Console
from qed.phases import PipelineSettings, Settings
from qed.runs import Launch, Run, read_json

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "peft", "numpy")
RECORD = "env.json"


def environment(device: torch.device) -> dict[str, Any]:
    """What the run stands on: versions, commit, hardware."""
    return {
        "qed": version("qed"),
        "python": sys.version.split()[0],
        **{name: version(name) for name in LIBRARIES},
        "commit": _commit(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        **_kernels(),
        "alignment_matters": kernels.alignment_matters(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def as_begun(settings: Settings | PipelineSettings, folder: Path, launch: Launch) -> Settings | PipelineSettings:
    """The settings of a resumed run with the precision of products that it began with, where no other is given."""
    before = read_json(folder / RECORD, {}).get("matmul_precision") if launch.resume else None
    given = not launch.origins.get("run.matmul_precision", DEFAULT).startswith(DEFAULT)
    if given or before is None:
        return settings
    return replace(settings, run=replace(settings.run, matmul_precision=before))


def set_kernels(
    settings: Settings | PipelineSettings, run: Run, launch: Launch, device: torch.device, console: Console
) -> None:
    """Compute as the settings say, or as the run did before it was resumed; record and say what has changed since, and
    that the bits of products on a CPU depend on memory alignment."""
    before = read_json(run.folder / RECORD, {}) if launch.resume else {}
    kernels.use(settings.run.threads or before.get("threads", 0), settings.run.matmul_precision)
    for name, now in _kernels().items():
        if name in before and before[name] != now:
            run.event(f"{name}_changed", before=before[name], now=now)
            console.say(
                f"This run began with {name} {before[name]} and goes on with {now}: from here on it may differ in the "
                "last bits from a run that was not interrupted."
            )
    if device.type == "cpu" and kernels.alignment_matters():
        run.event("alignment_matters", mkl_cbwr=kernels.mkl_mode())
        console.say(kernels.explain_alignment())


def _kernels() -> dict[str, Any]:
    """What decides the last bits of a product of matrices, on this machine."""
    return {
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkl_cbwr": kernels.mkl_mode(),
    }


def _commit() -> str | None:
    """The commit of qed's own checkout, `-dirty` behind it where files differ; None where there is no checkout or no
    git."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return told.stdout.strip() or None
