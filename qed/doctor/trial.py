"""Measure the peak memory of a sampler and a learner at growing sizes, in a separate process.

The process is separate because a process that has run other work keeps freed memory, and because the system may kill a
process that uses too much. Sampler and learner share it, because a run also alternates between them. The parent process
only waits and needs no torch.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from qed.config.phases import Settings
from qed.config.resolve import resolve_settings
from qed.errors import ModelError, QedError, UsageError
from qed.guards.parents import build_code_command

Role = Literal["sampler", "learner"]
ROLES: tuple[Role, ...] = ("sampler", "learner")
# The child process ends with its parent.
BOOT = (
    "from qed.guards.parents import die_with_parent; "
    "die_with_parent(int(sys.argv[3]))(); from qed.doctor.measuring import main; main(sys.argv[2])"
)


@dataclass(frozen=True)
class Lengths:
    """The number of tokens of a prompt and of its answer."""

    prompt: int
    answer: int

    @property
    def row(self) -> int:
        """Return the tokens of a row as the learner counts them, without the last token, which is only a label."""
        return self.prompt + self.answer - 1


@dataclass(frozen=True)
class TrialRequest:
    """What to measure: a command line of `qed grpo`, the lengths of a row, and optionally a single size."""

    arguments: tuple[str, ...]
    prompt: int
    answer: int
    rows: int = 0


@dataclass(frozen=True)
class Peak:
    """The peak memory in bytes, including weights, of `rows` rows in one batch; None if memory ran out."""

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
    if done.returncode < 0:  # killed by a signal, as by the system when memory runs out
        broken = next((role for role in reversed(ROLES) if peaks[role]), ROLES[0])
        for role in ROLES[ROLES.index(broken) :]:
            peaks[role].append(Peak(1 + max((peak.rows for peak in peaks[role]), default=0), None))
    return TrialResult(lines[0]["device"], lines[0]["room"], peaks)
