"""The peaks of memory of a sampler and a learner at growing sizes, measured in a process of their own.

Of their own, because memory that was freed stays with a process that has run other things before, and because the
system may end one that takes too much. One for both, because a run alternates between them too.
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
from qed.models import threads

Role = Literal["sampler", "learner"]
ROLES: tuple[Role, ...] = ("sampler", "learner")
# The child finds the same packages as its parent, whatever way the parent found them, and ends with it.
BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from qed.guards.parents import die_with_parent; "
    "die_with_parent(int(sys.argv[3]))(); from qed.doctor.trial import main; main(sys.argv[2])"
)
# Two peaks that differ by less say little about a row: allocators round, and keep what is freed.
CLEAR = 64 << 20
FEW = 8  # times as many rows in the next trial, where two times are too timid
MOST_ROWS = 1 << 14


@dataclass(frozen=True)
class TrialRequest:
    """What to measure: a command line of `qed grpo`, the lengths of a row, and, in place of growing sizes, one."""

    arguments: tuple[str, ...]
    prompt: int
    answer: int
    rows: int = 0


@dataclass(frozen=True)
class Peak:
    """The most memory, in bytes, that so many rows at once have taken, weights and all; None where it ran out."""

    rows: int
    bytes: int | None


@dataclass(frozen=True)
class TrialResult:
    """Peaks by size, the device that they are of, and the bytes that it had for all of this."""

    device: str
    room: int
    peaks: dict[Role, list[Peak]]


def resolve_trial_settings(arguments: Sequence[str]) -> Settings:
    """The settings of a command line of `qed grpo`."""
    settings = resolve_settings("grpo", arguments).settings
    assert isinstance(settings, Settings)
    return settings


def run_trial(asked: TrialRequest) -> TrialResult:
    """Measure in a process of its own.

    Raises:
        QedError: the model cannot be used, or not even one row can be computed.
    """
    command = [sys.executable, "-c", BOOT, json.dumps(sys.path), json.dumps(asdict(asked)), str(os.getpid())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    if told and "error" in told[-1]:
        kinds = {kind.exit_code: kind for kind in (QedError, UsageError, ModelError)}
        raise kinds.get(told[-1]["code"], QedError)(told[-1]["error"])
    if not told or done.returncode > 0:
        last = " ".join(done.stderr.split()[-40:])
        raise QedError(f"The memory could not be measured: the process that does ended with {done.returncode}: {last}")
    peaks = {role: [Peak(**line[role]) for line in told if role in line] for role in ROLES}
    if done.returncode < 0:  # the system has ended it, as it does where memory runs out
        broken = next((role for role in reversed(ROLES) if peaks[role]), ROLES[0])
        for role in ROLES[ROLES.index(broken) :]:
            peaks[role].append(Peak(1 + max((peak.rows for peak in peaks[role]), default=0), None))
    return TrialResult(told[0]["device"], told[0]["room"], peaks)


def main(asked: str) -> None:
    """Measure what is asked for, and write a line of JSON for each size."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)  # what libraries print is no result

        def tell(line: object) -> None:
            print(json.dumps(line), file=out, flush=True)

        try:
            told = json.loads(asked)
            _measure(TrialRequest(**told), tell)
        except QedError as error:
            tell({"error": str(error), "code": error.exit_code})


def _measure(asked: TrialRequest, tell: Callable[[object], None]) -> None:
    settings = resolve_trial_settings(asked.arguments)
    threads.set_threads(settings.run.threads, settings.run.matmul_precision)
    work = Work(settings, Lengths(asked.prompt, asked.answer))
    meter = Meter(work.policy.model.device)
    tell({"device": meter.device.type, "room": meter.room})
    # Gradients and the optimizer's state are there from the first update on, also while answers are sampled.
    there = _fits(lambda: work.update(1, 1))
    deeds: dict[Role, Callable[[int], None]] = {
        "sampler": work.answer_and_refill,
        "learner": lambda rows: work.update(2 * rows, rows),
    }
    for role, deed in deeds.items():
        for peak in _measure_growing(deed, meter, asked.rows) if there else [Peak(1, None)]:
            tell({role: asdict(peak)})


def _measure_growing(deed: Callable[[int], None], meter: Meter, rows: int) -> Iterator[Peak]:
    """The peak of the size given, or of growing ones until the last two differ clearly or memory comes to its end."""
    if rows:
        yield meter.peak(deed, rows)
        return
    peaks = [meter.peak(deed, 1)]
    yield peaks[-1]
    rises = 0
    while (last := peaks[-1].bytes) is not None and rises < meter.rises and peaks[-1].rows < MOST_ROWS:
        growth = last - (peaks[-2].bytes or 0) if len(peaks) > 1 else 0
        if last + FEW * growth > meter.room:
            return
        # Many more rows at once where they cost next to nothing, or where all of this would fit so many times.
        more = FEW if (FEW * last <= meter.room if len(peaks) == 1 else FEW * growth <= CLEAR) else 2
        peaks.append(meter.peak(deed, more * peaks[-1].rows))
        yield peaks[-1]
        rises += int((peaks[-1].bytes or 0) - last >= CLEAR)


def _fits(deed: Callable[[], None]) -> bool:
    with suppress(torch.OutOfMemoryError, MemoryError):
        deed()
        return True
    return False


class Meter:
    """The highest memory of this process: what torch has allocated on a CUDA device, all that is resident elsewhere.

    Raises:
        UsageError: the device does not tell.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type not in ("cpu", "cuda"):
            raise UsageError(f"--fit measures cpu and cuda; {device.type} does not tell its peak. Try smaller sizes.")
        self.device = device
        if device.type == "cuda":
            self.room = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
        else:
            self.room = host.read_memory()[1] + _read_status("VmRSS")
        # Where the peak cannot be forgotten, that of loading may hide the first rise of those that follow.
        self.rises = 1 if self._forget() else 2

    def peak(self, deed: Callable[[int], None], rows: int) -> Peak:
        """The highest memory while something is done with so many rows."""
        self._forget()
        return Peak(rows, self._highest() if _fits(lambda: deed(rows)) else None)

    def _forget(self) -> bool:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return True
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            return True
        return False

    def _highest(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        with suppress(OSError):
            return _read_status("VmHWM")
        # Apple counts in bytes, everybody else in kibibytes; and there is no way to forget.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _read_status(name: str) -> int:
    """A figure of this process's memory in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    (line,) = (line for line in lines if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
