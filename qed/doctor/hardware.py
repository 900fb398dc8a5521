"""Checks of the devices: which there are, their memory, what they compute in hardware, and how they attend."""

from __future__ import annotations

import importlib.util
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from qed import host
from qed.doctor.card import Finding
from qed.models import alignment

GIB = 2**30
BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16")  # of x86 processors, and the last of those of Arm
BFLOAT16_SINCE = 8  # the first generation of CUDA devices whose matrix units know bfloat16
KERNELS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def check_device() -> Finding:
    """The devices, the one that `auto` takes first, and their memory."""
    found = [_describe_cuda(number) for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append({"device": "mps", "name": "Apple GPU"})
    whole, free = host.read_memory()
    found.append({"device": "cpu", "name": _name_processor(), "memory_gib": whole / GIB, "free_gib": free / GIB})
    lines = [
        f"{one['device']}: {one['name']}"
        + (f", compute capability {one['capability']}" if "capability" in one else "")
        + (f", {one['memory_gib']:.1f} GiB, {one['free_gib']:.1f} free" if "memory_gib" in one else "")
        for one in found
    ]
    return Finding(tuple(lines), {"auto": choose_device(), "devices": found})


def check_dtypes() -> Finding:
    """Whether bfloat16 is computed by the device itself; it computes everything in float32 in any case."""
    there, why = _has_bfloat16()
    line = f"float32 in hardware; bfloat16 {'in hardware' if there else 'by software, slower than float32'} ({why})"
    advice = () if there else ("Leave model.precision at float32 on this device.",)
    return Finding((line,), {"device": choose_device(), "bfloat16_in_hardware": there, "why": why}, advice)


def check_attention() -> Finding:
    """Which of torch's attention kernels run on the device, tried with a small call each, and which others are
    there."""
    tried = {
        str(dtype).removeprefix("torch."): [name for name, kernel in KERNELS.items() if _runs(kernel, dtype)]
        for dtype in (torch.float32, torch.bfloat16)
    }
    others = {
        "flash_attn": importlib.util.find_spec("flash_attn") is not None,
        "flex": importlib.util.find_spec("torch.nn.attention.flex_attention") is not None,
    }
    lines = [f"sdpa in {dtype}: {', '.join(names) or 'none'}" for dtype, names in tried.items()]
    lines.append("; ".join(f"{name} {'is there' if there else 'is not installed'}" for name, there in others.items()))
    return Finding(tuple(lines), {"device": choose_device(), "sdpa": tried, **others})


def check_products() -> Finding:
    """What multiplies matrices on the processor, and whether the bits depend on where the operands lie in memory."""
    library, mode = "MKL" if alignment.has_mkl() else "no MKL", alignment.read_mkl_mode()
    matters = alignment.depends_on_alignment()
    line = f"{library}{f', {host.MKL_MODE}={mode}' if mode else ''}: the bits of a product of float32 matrices "
    line += "depend on memory alignment" if matters else "are the same at every memory alignment"
    facts = {"library": library, "mkl_cbwr": mode, "alignment_matters": matters}
    return Finding((line,), facts, (alignment.explain_alignment(),) if matters else ())


def choose_device() -> str:
    """The device that `model.device auto` takes."""
    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


def _describe_cuda(number: int) -> dict[str, Any]:
    free, whole = torch.cuda.mem_get_info(number)
    major, minor = torch.cuda.get_device_capability(number)
    return {
        "device": f"cuda:{number}",
        "name": torch.cuda.get_device_name(number),
        "capability": f"{major}.{minor}",
        "memory_gib": whole / GIB,
        "free_gib": free / GIB,
    }


def _has_bfloat16() -> tuple[bool, str]:
    if choose_device() == "cuda":
        major, minor = torch.cuda.get_device_capability()
        return major >= BFLOAT16_SINCE, f"compute capability {major}.{minor}, needed is {BFLOAT16_SINCE}"
    if choose_device() == "mps":
        return False, "Apple's devices do not say"
    known = sorted(read_cpu_flags() & set(BFLOAT16_FLAGS))
    return bool(known), ", ".join(known) or f"the processor has none of {', '.join(BFLOAT16_FLAGS)}"


def _runs(kernel: SDPBackend, dtype: torch.dtype) -> bool:
    row = torch.zeros(1, 2, 16, 64, dtype=dtype, device=choose_device())
    with suppress(RuntimeError), sdpa_kernel(kernel):
        torch.nn.functional.scaled_dot_product_attention(row, row, row, is_causal=True)
        return True
    return False


def _read_cpuinfo() -> list[tuple[str, str]]:
    """What Linux tells about the processors, as names and values; nothing elsewhere."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        return [(name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    return []


def _name_processor() -> str:
    names = [value for name, value in _read_cpuinfo() if name == "model name"]
    return names[0] if names else platform.processor() or platform.machine()


def read_cpu_flags() -> set[str]:
    """What the processor can do, in its maker's words; nothing where the system does not tell."""
    return {flag for name, value in _read_cpuinfo() if name in ("flags", "Features") for flag in value.split()}
