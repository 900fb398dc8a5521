"""What figures depend on besides the code: the CPU, the libraries, their kernels and their threads."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from grading_parts.card import machine

LIBRARIES = ("torch", "transformers", "trl", "lm-eval", "vllm", "math-verify", "numpy")
# Instruction sets that determine how fast matrices are multiplied.
INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "bf16", "sve")
KERNELS = re.compile(r"(Math Kernel Library Version [\d.]+|MKL-DNN v[\d.]+|oneDNN v[\d.]+|OpenBLAS [\d.]+)")
VARIABLES = ("OMP_", "MKL_", "ONEDNN_", "DNNL_", "KMP_", "GOMP_", "ATEN_", "TORCH_", "OPENBLAS_")


def describe_machine() -> dict[str, Any]:
    """Describe the CPU, versions, numeric kernels, and the variables and threads that configure them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "machine": machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": find_versions(),
        "cores": cores,
        "instructions": _find_instructions(),
        "kernels": {
            "capability": torch.backends.cpu.get_cpu_capability(),
            "libraries": sorted(set(KERNELS.findall(torch.__config__.show()))),
            "mkl": torch.backends.mkl.is_available(),
            "onednn": torch.backends.mkldnn.is_available(),
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
        },
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)},
    }


def find_versions() -> dict[str, str]:
    """Return the versions of the installed libraries."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _find_instructions() -> list[str]:
    file = Path("/proc/cpuinfo")
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    flags = next((line for line in text.splitlines() if line.lower().startswith(("flags", "features"))), "")
    return [name for name in INSTRUCTIONS if name in flags.split()]
