"""What a run stands on, versions, commit and hardware, and how it computes: recorded, and reused on resume."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "peft", "numpy")
RECORD = "env.json"


def describe_environment(device: torch.device, compute: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what the run stands on: versions, commit, hardware, and how it computes."""
    return {
        "qed": version("qed"),
        "python": sys.version.split()[0],
        **{name: version(name) for name in LIBRARIES},
        "commit": _read_commit(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        **compute,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def _read_commit() -> str | None:
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
