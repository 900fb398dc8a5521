"""Records the environment of a run: versions, commit, hardware and compute settings."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import qed

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "datasets", "peft", "numpy")
RECORD = "env.json"


def describe_environment(device: torch.device, compute: Mapping[str, Any]) -> dict[str, Any]:
    """Return versions, commit, hardware and the given compute settings, for env.json."""
    return {
        "qed": qed.__version__,
        "python": sys.version.split()[0],
        **{name: read_version(name) for name in LIBRARIES},
        "commit": _read_commit(),
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
        **compute,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


@cache
def read_version(name: str) -> str | None:
    """Return the version of a package; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _read_commit() -> str | None:
    """Return the commit of qed's git checkout, with `-dirty` if files are modified; None without checkout or git."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() or None
