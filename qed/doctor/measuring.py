"""Measure the peak memory of a sampler and a learner at growing sizes; runs in the process of `qed.doctor.trial`."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import torch

from qed import host
from qed.doctor.rows import Work
from qed.doctor.trial import Lengths, Peak, Role, TrialRequest, resolve_trial_settings
from qed.errors import QedError, UsageError
from qed.models import threads

# Smaller differences between two peaks say little about a row, because allocators round and keep freed memory.
MIN_GROWTH = 64 << 20
LARGE_FACTOR = 8  # growth of the rows to the next size if a factor of 2 is too small
MAX_ROWS = 1 << 14


def main(request: str) -> None:
    """Measure a request given as JSON, and print a JSON line for each size."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # libraries may print to stdout, which is reserved for the result

        def emit(line: object) -> None:
            print(json.dumps(line), file=out, flush=True)

        try:
            _measure(TrialRequest(**json.loads(request)), emit)
        except QedError as error:
            emit({"error": str(error), "code": error.exit_code})


def _measure(request: TrialRequest, emit: Callable[[object], None]) -> None:
    settings = resolve_trial_settings(request.arguments)
    threads.set_threads(settings.run.threads, settings.run.matmul_precision)
    work = Work(settings, Lengths(request.prompt, request.answer))
    meter = Meter(work.policy.model.device)
    emit({"device": meter.device.type, "room": meter.room})
    # After the first update, gradients and optimizer state exist also during sampling.
    fits = _fits(lambda: work.update(1, 1))
    actions: dict[Role, Callable[[int], None]] = {
        "sampler": work.answer_and_refill,
        "learner": lambda rows: work.update(2 * rows, rows),
    }
    for role, action in actions.items():
        for peak in _measure_growing(action, meter, request.rows) if fits else [Peak(1, None)]:
            emit({role: asdict(peak)})


def _measure_growing(action: Callable[[int], None], meter: Meter, rows: int) -> Iterator[Peak]:
    """Measure the given size, or growing sizes until the last two differ clearly or memory runs out."""
    if rows:
        yield meter.measure_peak(action, rows)
        return
    peaks = [meter.measure_peak(action, 1)]
    yield peaks[-1]
    rises = 0
    while (last := peaks[-1].bytes) is not None and rises < meter.rises and peaks[-1].rows < MAX_ROWS:
        growth = last - (peaks[-2].bytes or 0) if len(peaks) > 1 else 0
        if last + LARGE_FACTOR * growth > meter.room:
            return
        # Grow faster if rows cost almost nothing, or if the memory is several times larger than the first peak.
        factor = (
            LARGE_FACTOR
            if (LARGE_FACTOR * last <= meter.room if len(peaks) == 1 else LARGE_FACTOR * growth <= MIN_GROWTH)
            else 2
        )
        peaks.append(meter.measure_peak(action, factor * peaks[-1].rows))
        yield peaks[-1]
        rises += int((peaks[-1].bytes or 0) - last >= MIN_GROWTH)


def _fits(action: Callable[[], None]) -> bool:
    with suppress(torch.OutOfMemoryError, MemoryError):
        action()
        return True
    return False


class Meter:
    """The peak memory of this process: torch's allocations on a CUDA device, resident memory on a CPU.

    Raises:
        UsageError: the device reports no peak memory.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"--fit measures cpu and cuda; {device.type} reports no peak memory. Try smaller sizes.")
        self.device = device
        if device.type == "cuda":
            self.room = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        else:
            self.room = host.read_memory()[1] + _read_status("VmRSS")
        # Without a reset, the peak of loading may hide the first increases.
        self.rises = 1 if self._reset_peak() else 2

    def measure_peak(self, action: Callable[[int], None], rows: int) -> Peak:
        """Return the peak memory of an action with `rows` rows."""
        self._reset_peak()
        return Peak(rows, self._read_peak() if _fits(lambda: action(rows)) else None)

    def _reset_peak(self) -> bool:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return True
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            return True
        return False

    def _read_peak(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with suppress(OSError):
            return _read_status("VmHWM")
        # macOS counts in bytes, other systems in kibibytes; this peak cannot be reset.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _read_status(name: str) -> int:
    """Read a memory figure of this process in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
