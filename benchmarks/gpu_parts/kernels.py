"""The device kernels that take the most time in a stage."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from gpu_parts.ceilings import wait_for
from gpu_parts.report import Figures

MOST = 25  # maximum kernels to list
LONGEST_NAME = 160  # characters


def list_kernels(work: Callable[[], Any], device: torch.device) -> Figures:
    """List the kernels that take the most time during some work; on a CPU, the operations.

    Returns:
        `wall_s`, `busy_s` of all kernels together, and `kernels`: name, milliseconds and number of calls of each.
    """
    cuda = device.type == "cuda"
    wait_for(device)
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as found:
        began = time.perf_counter()
        work()
        wait_for(device)
        wall = time.perf_counter() - began
    rows = [
        (one.self_device_time_total if cuda else one.self_cpu_time_total, one.count, one.key)
        for one in found.key_averages()
    ]
    rows.sort(reverse=True)
    listed = [[key[:LONGEST_NAME], round(time_us / 1e3, 3), count] for time_us, count, key in rows[:MOST]]
    return {"wall_s": wall, "busy_s": sum(time_us for time_us, _, _ in rows) / 1e6, "kernels": listed}
