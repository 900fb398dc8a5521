"""How this process computes: its threads, and the precision of products of float32 matrices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qed import host
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import DEFAULT
from qed.console.live import Console
from qed.models import alignment
from qed.runs.environment import RECORD
from qed.runs.run import Launch, Run, read_json


def set_threads(threads: int, matmul_precision: str) -> None:
    """Compute in this way from now on; 0 threads stand for the physical cores that this process may use.

    Products do not depend on memory alignment from now on, unless MKL has computed one before.
    """
    host.make_products_reproducible()
    torch.set_num_threads(threads or host.choose_threads())
    torch.set_float32_matmul_precision(matmul_precision)
    # Operators are not run beside each other here, so a second pool of threads would only be in the way. Once work has
    # begun in it, its size is what it is.
    with suppress(RuntimeError):
        torch.set_num_interop_threads(1)


@contextmanager
def restore_threads() -> Iterator[None]:
    """Compute afterwards as before, so that the next run of this process begins as this one did."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        set_threads(*before)


def restore_precision(
    settings: Settings | PipelineSettings, folder: Path, launch: Launch
) -> Settings | PipelineSettings:
    """The settings of a resumed run with the precision of products that it began with, where no other is given."""
    before = read_json(folder / RECORD, {}).get("matmul_precision") if launch.resume else None
    given = not launch.origins.get("run.matmul_precision", DEFAULT).startswith(DEFAULT)
    if given or before is None:
        return settings
    return replace(settings, run=replace(settings.run, matmul_precision=before))


def set_compute(
    settings: Settings | PipelineSettings, run: Run, launch: Launch, device: torch.device, console: Console
) -> None:
    """Compute as the settings say, or as the run did before it was resumed; record and say what has changed since, and
    that the bits of products on a CPU depend on memory alignment."""
    before = read_json(run.folder / RECORD, {}) if launch.resume else {}
    set_threads(settings.run.threads or before.get("threads", 0), settings.run.matmul_precision)
    for name, now in read_kernel_settings().items():
        if name in before and before[name] != now:
            run.event(f"{name}_changed", before=before[name], now=now)
            console.say(
                f"This run began with {name} {before[name]} and goes on with {now}: from here on it may differ in the "
                "last bits from a run that was not interrupted."
            )
    if device.type == "cpu" and alignment.depends_on_alignment():
        run.event("alignment_matters", mkl_cbwr=alignment.read_mkl_mode())
        console.say(alignment.explain_alignment())


def read_kernel_settings() -> dict[str, Any]:
    """What decides the last bits of a product of matrices, on this machine."""
    return {
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkl_cbwr": alignment.read_mkl_mode(),
    }


def describe_compute() -> dict[str, Any]:
    """Return the kernel settings, and whether products depend on memory alignment."""
    return {**read_kernel_settings(), "alignment_matters": alignment.depends_on_alignment()}
