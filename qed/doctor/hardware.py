"""Check the devices: memory, hardware precisions, attention kernels, matrix products and C++ kernels."""

from __future__ import annotations

import importlib.util
import platform
import warnings
from contextlib import suppress
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from qed import host
from qed.doctor.card import Finding
from qed.kernels.build import load_library
from qed.models import alignment

GIB = 2**30
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # CPU flags; the last one is Arm's
BFLOAT16_SINCE = 8  # the first major compute capability with bfloat16 in hardware
KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def check_device() -> Finding:
    """Check which devices exist, with the default one first, and their memory."""
    devices = [_describe_cuda(number) for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        devices.append({"device": "mps", "name": "Apple GPU"})
    total, free = host.read_memory()
    devices.append({"device": "cpu", "name": _read_cpu_name(), "memory_gib": total / GIB, "free_gib": free / GIB})
    lines = [
        f"{device['device']}: {device['name']}"
        + (f", compute capability {device['capability']}" if "capability" in device else "")
        + (f", {device['memory_gib']:.1f} GiB, {device['free_gib']:.1f} free" if "memory_gib" in device else "")
        for device in devices
    ]
    return Finding(tuple(lines), {"auto": choose_device(), "devices": devices})


def check_dtypes() -> Finding:
    """Check whether the device computes bfloat16 in hardware."""
    supported, why = _has_bfloat16()
    line = f"float32 in hardware; bfloat16 {'in hardware' if supported else 'by software, slower than float32'} ({why})"
    advice = () if supported else ("Leave model.precision at float32 on this device.",)
    return Finding((line,), {"device": choose_device(), "bfloat16_in_hardware": supported, "why": why}, advice)


def check_attention() -> Finding:
    """Check which of torch's attention kernels run on the device, with a small call each, and which others exist."""
    kernels = {
        str(dtype).removeprefix("torch."): [name for name, kernel in KERNELS.items() if _can_run(kernel, dtype)]
        for dtype in (torch.float32, torch.bfloat16)
    }
    others = {
        "flash_attn": importlib.util.find_spec("flash_attn") is not None,
        "triton": importlib.util.find_spec("triton") is not None,
    }
    lines = [f"sdpa in {dtype}: {', '.join(names) or 'none'}" for dtype, names in kernels.items()]
    lines.append(
        "; ".join(f"{name} {'is available' if found else 'is not installed'}" for name, found in others.items())
    )
    return Finding(tuple(lines), {"device": choose_device(), "sdpa": kernels, **others})


def check_products() -> Finding:
    """Check the CPU's matrix product library, and whether results depend on the operands' memory alignment."""
    library, mode = "MKL" if alignment.has_mkl() else "no MKL", alignment.read_mkl_mode()
    matters = alignment.depends_on_alignment()
    line = f"{library}{f', {host.MKL_MODE}={mode}' if mode else ''}: the bits of a product of float32 matrices "
    line += "depend on memory alignment" if matters else "are the same at every memory alignment"
    facts = {"library": library, "mkl_cbwr": mode, "alignment_matters": matters}
    return Finding((line,), facts, (alignment.explain_alignment(),) if matters else ())


def check_kernels() -> Finding:
    """Check whether the C++ kernels for decoding steps and updates on the CPU are available."""
    library, reason, mending = load_library()
    if library is not None:
        return Finding(("in C++, compiled for this CPU",), {"compiled": True, "reason": ""})
    faster = "With a C++ compiler (g++) sampling and updates on the CPU are faster."
    advice = (f"{faster} {mending}".rstrip(),) if platform.system() == "Linux" else ()
    return Finding((f"none in C++: {reason}",), {"compiled": False, "reason": reason}, advice)


def choose_device() -> str:
    """Return the device that `model.device auto` uses."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def _describe_cuda(number: int) -> dict[str, Any]:
    free, total = torch.cuda.mem_get_info(number)
    major, minor = torch.cuda.get_device_capability(number)
    return {
        "device": f"cuda:{number}",
        "name": torch.cuda.get_device_name(number),
        "capability": f"{major}.{minor}",
        "memory_gib": total / GIB,
        "free_gib": free / GIB,
    }


def _has_bfloat16() -> tuple[bool, str]:
    if choose_device() == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return major >= BFLOAT16_SINCE, f"compute capability {major}.{minor}, {BFLOAT16_SINCE} is needed"
    if choose_device() == "mps":
        return False, "Apple's devices do not report it"
    flags = sorted(read_cpu_flags() & set(BFLOAT16_FLAGS))
    return bool(flags), ", ".join(flags) or f"the CPU has none of {', '.join(BFLOAT16_FLAGS)}"


def _can_run(kernel: SDPBackend, dtype: torch.dtype) -> bool:
    row = torch.zeros(1, 2, 16, 64, dtype=dtype, device=choose_device())
    # A kernel that cannot run prints warnings with its reasons, several lines each.
    with suppress(RuntimeError), sdpa_kernel(kernel), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.nn.functional.scaled_dot_product_attention(row, row, row, is_causal=True)
        return True
    return False


def _read_cpu_name() -> str:
    names = [value for name, value in host.read_cpuinfo() if name == "model name"]
    return names[0] if names else platform.processor() or platform.machine()


def read_cpu_flags() -> set[str]:
    """Return the CPU's feature flags; empty if the system does not provide them."""
    return {flag for name, value in host.read_cpuinfo() if name in ("flags", "Features") for flag in value.split()}
