"""A device's peak FLOP/s in matrix products: from the manufacturer's data sheet, otherwise measured."""

from __future__ import annotations

import time
from functools import cache

import torch

from qed.models.precision import compute_in

# Dense matrix products with bfloat16, TF32 and float32 inputs in 10^12 FLOP/s, by part of the card's name; from the
# manufacturers' data sheets, without sparsity. The first part that a name contains is used.
CARDS = {
    "B200": (2250.0, 1125.0, 75.0),
    "H200 NVL": (835.5, 417.5, 60.0),
    "H200": (989.4, 494.7, 66.9),
    "GH200": (989.4, 494.7, 66.9),
    "H100 PCIe": (756.0, 378.0, 51.2),
    "H100 NVL": (835.5, 417.5, 60.0),
    "H100": (989.4, 494.7, 66.9),
    "H800": (989.4, 494.7, 66.9),
    "A100": (312.0, 156.0, 19.5),
    "A800": (312.0, 156.0, 19.5),
    "A40": (149.7, 74.8, 37.4),
    "A30": (165.0, 82.0, 10.3),
    "L40S": (362.0, 183.0, 91.6),
    "L40": (181.0, 90.5, 90.5),
    "L4": (121.0, 60.0, 30.3),
    "RTX 4090": (165.2, 82.6, 82.6),
    "RTX 3090": (71.0, 35.6, 35.6),
    "MI300X": (1307.4, 653.7, 163.4),
}
SLICE = "MIG"  # a partition of a card, which the table does not cover
SIZE = {"cpu": 512}  # size of the measured square matrices
LARGE = 4096
SECONDS = 0.05  # duration of a measurement


def find_peak_flops(device: torch.device, precision: torch.dtype) -> float:
    """Return the peak of a device in FLOP/s, for the precision of the computation.

    A known card has its manufacturer's value, for float32 by `torch.get_float32_matmul_precision`. Any other device,
    such as a CPU with this process's threads, has the best of several matrix products, measured once for 50 ms. Other
    programs that use the device at that time lower it.
    """
    if device.type == "cuda":
        known = look_up_card(torch.cuda.get_device_name(device), precision)
        if known is not None:
            return known
    return _measure(device, precision, torch.get_num_threads())


def look_up_card(name: str, precision: torch.dtype) -> float | None:
    """Return the peak of a card in FLOP/s by its name; None if it is not in the table."""
    if SLICE in name or precision not in (torch.bfloat16, torch.float16, torch.float32):
        return None
    words = name.replace("-", " ").replace("_", " ")
    for part, (half, tf32, single) in CARDS.items():
        if f" {part} " in f" {words} ":
            exact = torch.get_float32_matmul_precision() == "highest"
            return 1e12 * (half if precision != torch.float32 else single if exact else tf32)
    return None


@cache
def _measure(device: torch.device, precision: torch.dtype, threads: int) -> float:
    """Return the FLOP/s of the fastest product within `SECONDS`."""
    size = SIZE.get(device.type, LARGE)
    # A separate generator, because the run's random numbers must not depend on a measurement.
    generator = torch.Generator(device).manual_seed(0)
    left, right = (
        torch.randn(size, size, device=device, generator=generator, dtype=torch.float32).to(precision) for _ in range(2)
    )
    best, end = float("inf"), time.perf_counter() + SECONDS
    with compute_in(device.type, precision):
        left @ right  # warms up
        while time.perf_counter() < end:
            began = time.perf_counter()
            float((left @ right)[0, 0])  # waits for the device
            best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best if best < float("inf") else 0.0
