"""Find the fastest number of threads and precision of matrix products, by timing a learner's and a sampler's step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from qed import host
from qed.config.phases import Settings
from qed.config.screens import format_columns
from qed.doctor.hardware import read_cpu_flags
from qed.doctor.rows import Work
from qed.doctor.trial import Lengths
from qed.models import threads as kernel_threads

ROUNDS = 5
PROMPTS = 2  # prompts of a trial step; each has a full group
TOKENS = 16  # tokens sampled per answer in a trial; the time is scaled to the full length
DROP_RATIO = 2.0  # modes slower than this ratio to the fastest in the first round are not timed again
TF32_FLAG = "amx_fp16"  # CPU flag that oneDNN needs for TF32
MIN_GAIN = 0.95  # time ratio below which another mode replaces the default or an exact one


@dataclass(frozen=True, order=True)
class ComputeMode:
    """A number of threads and a precision of matrix products."""

    threads: int
    precision: str


@dataclass(frozen=True)
class Seconds:
    """The times of an update and of sampling in one round, with sampling scaled to the full length."""

    update: float
    sample: float

    @property
    def step(self) -> float:
        """Return the sum of both."""
        return self.update + self.sample


@dataclass(frozen=True)
class TuneResult:
    """The measured times, and the proposed mode."""

    chosen: ComputeMode
    rounds: dict[ComputeMode, list[Seconds]]
    device: str

    @property
    def settings(self) -> dict[str, Any]:
        """Return the settings for a YAML file, by full names."""
        return {"run.threads": self.chosen.threads, "run.matmul_precision": self.chosen.precision}

    def text(self) -> str:
        """Format a table as comments, and the settings as a YAML fragment."""
        rows = [["# threads", "precision", "products by", "update s", "sample s", "step s", "min to max", ""]]
        for mode in sorted(self.rounds):
            times = self.rounds[mode]
            steps = [seconds.step for seconds in times]
            parts = [median(s.update for s in times), median(s.sample for s in times), median(steps)]
            note = "proposed" if mode == self.chosen else "dropped after one round" if len(times) < ROUNDS else ""
            rows.append(
                [f"# {mode.threads}", mode.precision, name_library(mode.precision, self.device)]
                + [f"{seconds:.4f}" for seconds in parts]
                + [f"{min(steps):.4f} to {max(steps):.4f}", note]
            )
        return "\n".join([format_columns(rows), *(f"{key}: {value}" for key, value in self.settings.items())])

    def as_object(self) -> dict[str, Any]:
        """Return the result for JSON."""
        timed = [
            {
                "threads": mode.threads,
                "matmul_precision": mode.precision,
                "products_by": name_library(mode.precision, self.device),
                "step_s": [seconds.step for seconds in times],
                "update_s": [seconds.update for seconds in times],
            }
            for mode, times in sorted(self.rounds.items())
        ]
        return {"device": self.device, "timed": timed, "settings": self.settings}


def name_library(precision: str, device: str) -> str:
    """Return the library that multiplies float32 matrices."""
    if device != "cpu":
        return {"cuda": "cuBLAS" if precision == "highest" else "cuBLAS, TF32"}.get(device, device)
    if precision == "highest":
        return "MKL" if torch.backends.mkl.is_available() else "torch"  # type: ignore[no-untyped-call]
    return "oneDNN" if torch.backends.mkldnn.is_available() else "torch"  # type: ignore[no-untyped-call]


def list_modes(device: str) -> list[ComputeMode]:
    """List the modes to time: each precision with 1, 2, 4, … threads and all cores; on a GPU only the default."""
    cores = host.count_usable_cores()
    counts = {cores, host.choose_threads(), *(1 << power for power in range(cores.bit_length()) if 1 << power <= cores)}
    threads = sorted(counts) if device == "cpu" else [host.choose_threads()]
    return [ComputeMode(count, precision) for count in threads for precision in _list_precisions(device)]


def _list_precisions(device: str) -> tuple[str, ...]:
    """Return the distinct precisions: `medium` equals `high` on a GPU, and `high` equals `highest` on most CPUs."""
    if device != "cpu":
        return "highest", "high"
    return ("highest", "high", "medium") if TF32_FLAG in read_cpu_flags() else ("highest", "medium")


def choose_mode(rounds: dict[ComputeMode, list[Seconds]], default: ComputeMode) -> ComputeMode:
    """Return the default mode, an exact mode if clearly faster, or an inexact mode if clearly faster than that."""
    times = {mode: median(seconds.step for seconds in each) for mode, each in rounds.items()}
    exact = [mode for mode in times if mode.precision == "highest"]
    best = default
    for candidates in (exact, list(times)):
        fastest = min(candidates, key=times.__getitem__)
        if times[fastest] < MIN_GAIN * times[best]:
            best = fastest
    return best


@kernel_threads.restore_threads()
def tune(settings: Settings, lengths: Lengths, say: Callable[[str], None]) -> TuneResult:
    """Time all modes in turn for several rounds, so that other load on the machine affects all equally."""
    work = Work(settings, lengths)
    device = work.policy.model.device.type
    default = ComputeMode(host.choose_threads(), "highest")
    modes = list_modes(device)
    say(f"Timing {len(modes)} modes, up to {ROUNDS} rounds each.")
    _time_round(work, modes)  # a warm-up, which is not counted
    rounds: dict[ComputeMode, list[Seconds]] = defaultdict(list)
    for number in range(ROUNDS):
        for mode, seconds in _time_round(work, modes).items():
            rounds[mode].append(seconds)
        if number == 0:
            fastest = min(seconds.step for (seconds,) in rounds.values())
            modes = [mode for mode in modes if mode == default or rounds[mode][0].step <= DROP_RATIO * fastest]
    return TuneResult(choose_mode(rounds, default), dict(rounds), device)


def _time_round(work: Work, modes: Sequence[ComputeMode]) -> dict[ComputeMode, Seconds]:
    rows, tokens = PROMPTS * work.group, min(TOKENS, work.lengths.answer)
    times = {}
    for mode in modes:
        kernel_threads.set_threads(mode.threads, mode.precision)
        sampling = _time_call(lambda: work.answer(rows, tokens))
        times[mode] = Seconds(_time_call(lambda: work.update(rows, rows)), sampling * work.lengths.answer / tokens)
    return times


def _time_call(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
