"""Measure the peak memory of a sampler and a learner at growing sizes, in a separate process.

The process is separate because freed memory stays with a process that has run other work before, and because the
system may kill a process that uses too much. Both share one process, because a run alternates between them too.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from qed import host
from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.doctor.rows import Lengths, Work
from qed.errors import ModelError, QedError, UsageError
from qed.guards.parents import build_code_command
from qed.models import threads

Role = Literal["sampler", "learner"]
ROLES: tuple[Role, ...] = ("sampler", "learner")
# The child ends with its parent.
BOOT = (
    "from qed.guards.parents import die_with_parent; "
    "die_with_parent(int(sys.argv[3]))(); from qed.doctor.trial import main; main(sys.argv[2])"
)
# Smaller differences between two peaks say little about a row: allocators round, and keep freed memory.
MIN_GROWTH = 64 << 20
LARGE_FACTOR = 8  # growth of the rows to the next size where a factor of 2 is too small
MAX_ROWS = 1 << 14


@dataclass(frozen=True)
class TrialRequest:
    """What to measure: a command line of `qed grpo`, the lengths of a row, and optionally a single size."""

    arguments: tuple[str, ...]
    prompt: int
    answer: int
    rows: int = 0


@dataclass(frozen=True)
class Peak:
    """The peak memory in bytes, weights included, of so many rows at once; None if memory ran out."""

    rows: int
    bytes: int | None


@dataclass(frozen=True)
class TrialResult:
    """Peaks by size, the device, and the bytes that were available (`room`)."""

    device: str
    room: int
    peaks: dict[Role, list[Peak]]


def resolve_trial_settings(arguments: Sequence[str]) -> Settings:
    """Return the settings of a command line of `qed grpo`."""
    settings = resolve_settings("grpo", arguments).settings
    assert isinstance(settings, Settings)
    return settings


def run_trial(request: TrialRequest) -> TrialResult:
    """Measure in a separate process.

    Raises:
        QedError: the model cannot be used, or not even one row can be computed.
    """
    command = build_code_command(BOOT, json.dumps(asdict(request)), str(os.getpid()))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if lines and "error" in lines[-1]:
        kinds = {kind.exit_code: kind for kind in (QedError, UsageError, ModelError)}
        raise kinds.get(lines[-1]["code"], QedError)(lines[-1]["error"])
    if not lines or done.returncode > 0:
        last = " ".join(done.stderr.split()[-40:])
        raise QedError(f"The memory could not be measured: the measuring process ended with {done.returncode}: {last}")
    peaks = {role: [Peak(**line[role]) for line in lines if role in line] for role in ROLES}
    if done.returncode < 0:  # killed by a signal, as the system does when memory runs out
        broken = next((role for role in reversed(ROLES) if peaks[role]), ROLES[0])
        for role in ROLES[ROLES.index(broken) :]:
            peaks[role].append(Peak(1 + max((peak.rows for peak in peaks[role]), default=0), None))
    return TrialResult(lines[0]["device"], lines[0]["room"], peaks)


def main(request: str) -> None:
    """Measure a request given as JSON, and write a line of JSON for each size."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # libraries may print to stdout, which is for the result

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
    # Gradients and the optimizer's state exist from the first update on, also during sampling.
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
        # Without a reset, the peak of loading may hide the first rise of the later ones.
        self.rises = 1 if self._reset_peak() else 2

    def measure_peak(self, action: Callable[[int], None], rows: int) -> Peak:
        """Return the peak memory of an action with so many rows."""
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
