"""The compute settings of this process: its threads, and the precision of float32 matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from qed import host
from qed.config.phases import PipelineSettings, Settings
from qed.config.resolve import DEFAULT
from qed.console.live import Console
from qed.kernels.build import load_library, will_compile
from qed.kernels.functions import has_kernels
from qed.models import alignment, fast_float32
from qed.runs.environment import RECORD
from qed.runs.run import Launch, Run, read_json


def set_threads(threads: int, matmul_precision: str) -> None:
    """Set the threads and the precision of matrix products; 0 threads uses this process's physical cores.

    Also make products independent of memory alignment, unless MKL has already computed one, and keep freed memory.
    """
    host.make_products_reproducible()
    host.keep_freed_memory()
    torch.set_num_threads(threads or host.choose_threads())
    torch.set_float32_matmul_precision(matmul_precision)
    # qed does not run operators in parallel, so torch's second thread pool needs only one thread. Its size cannot be
    # changed once it has started.
    with suppress(RuntimeError):
        torch.set_num_interop_threads(1)


@contextmanager
def restore_threads() -> Iterator[None]:
    """Restore the compute settings on exit, so that the next run in this process starts with the same ones."""
    before = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        yield
    finally:
        set_threads(*before)


def restore_precision(
    settings: Settings | PipelineSettings, folder: Path, launch: Launch
) -> Settings | PipelineSettings:
    """Return the settings with the resumed run's matrix precision, unless the user sets another."""
    before = read_json(folder / RECORD, {}).get("matmul_precision") if launch.resume else None
    is_set = not launch.origins.get("run.matmul_precision", DEFAULT).startswith(DEFAULT)
    if is_set or before is None:
        return settings
    return replace(settings, run=replace(settings.run, matmul_precision=before))


def set_compute(
    settings: Settings | PipelineSettings, run: Run, launch: Launch, device: torch.device, console: Console, ranks: int
) -> None:
    """Apply the compute settings, or those of the resumed run; `ranks` ranks share this machine's cores.

    Record and print changes since the start of the run, and any dependence of products on memory alignment.
    """
    before = read_json(run.folder / RECORD, {}) if launch.resume else {}
    same = before.get("local_ranks", 1) == ranks
    threads = settings.run.threads or (before.get("threads", 0) if same else 0) or host.choose_threads(ranks=ranks)
    set_threads(threads, settings.run.matmul_precision)
    prepare_kernels(device, console.say)
    for name, now in read_kernel_settings(device).items():
        if name in before and before[name] != now:
            run.event(f"{name}_changed", before=before[name], now=now)
            console.say(
                f"This run started with {name} {before[name]} and continues with {now}: from here on it may differ in "
                "the last bits from an uninterrupted run."
            )
    if device.type == "cpu" and alignment.depends_on_alignment():
        run.event("alignment_matters", mkl_cbwr=alignment.read_mkl_mode())
        console.say(alignment.explain_alignment())


def prepare_kernels(device: torch.device, say: Callable[[str], None]) -> None:
    """Compile the C++ functions for a CPU if necessary; print that it happens, and what failed."""
    if device.type == "cpu" and will_compile():
        say("qed compiles functions in C++ for this CPU, once: this takes some seconds to more than a minute.")
    if device.type == "cpu" and (built := load_library()).advice:
        say(f"torch computes in place of functions in C++, more slowly: {built.reason}. {built.advice}")


def read_kernel_settings(device: torch.device) -> dict[str, Any]:
    """Read the settings that affect the last bits of a matrix product."""
    found: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "mkl_cbwr": alignment.read_mkl_mode(),
    }
    if device.type == "cpu":  # other devices do not need the C++ functions, which take time to compile
        found["float32_layers"] = "oneDNN" if fast_float32.is_faster() else "torch"
        found["kernels"] = "C++" if has_kernels() else "torch"
    return found


def describe_compute(device: torch.device) -> dict[str, Any]:
    """Return the kernel settings, and whether products depend on memory alignment."""
    return {**read_kernel_settings(device), "alignment_matters": alignment.depends_on_alignment()}
