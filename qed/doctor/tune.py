"""How products of matrices are fastest here: threads and precision, timed on a learner's step and a sampler's."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from qed import host
from qed.config.help import format_columns
from qed.config.phases import Settings
from qed.doctor.hardware import read_cpu_flags
from qed.doctor.rows import Lengths, Work
from qed.models import threads as kernel_threads

ROUNDS = 5
PROMPTS = 2  # whose groups are sampled and trained in a trial step
TOKENS = 16  # of an answer that are sampled in a trial; a longer one takes in proportion
HOPELESS = 2.0  # times the fastest in the first round: not tried again
TF32_FLAG = "amx_fp16"  # what oneDNN needs for TF32 on a processor
WORTH = 0.95  # of the time of what is exact and usual: from here on something else is proposed


@dataclass(frozen=True, order=True)
class ComputeMode:
    """A way to compute."""

    threads: int
    precision: str


@dataclass(frozen=True)
class Seconds:
    """What an update and the sampling before it took in one round, the sampling at its full length."""

    update: float
    sample: float

    @property
    def step(self) -> float:
        """Both."""
        return self.update + self.sample


@dataclass(frozen=True)
class TuneResult:
    """What was timed, and which way is proposed."""

    chosen: ComputeMode
    rounds: dict[ComputeMode, list[Seconds]]
    device: str

    @property
    def settings(self) -> dict[str, Any]:
        """To write down, by their full names."""
        return {"run.threads": self.chosen.threads, "run.matmul_precision": self.chosen.precision}

    def text(self) -> str:
        """For people: a table, and a YAML fragment."""
        rows = [["# threads", "precision", "products by", "update s", "sample s", "step s", "least to most", ""]]
        for way in sorted(self.rounds):
            taken = self.rounds[way]
            steps = [one.step for one in taken]
            parts = [median(one.update for one in taken), median(one.sample for one in taken), median(steps)]
            note = "proposed" if way == self.chosen else "given up after one round" if len(taken) < ROUNDS else ""
            rows.append(
                [f"# {way.threads}", way.precision, name_library(way.precision, self.device)]
                + [f"{seconds:.4f}" for seconds in parts]
                + [f"{min(steps):.4f} to {max(steps):.4f}", note]
            )
        return "\n".join([format_columns(rows), *(f"{key}: {value}" for key, value in self.settings.items())])

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        timed = [
            {
                "threads": way.threads,
                "matmul_precision": way.precision,
                "products_by": name_library(way.precision, self.device),
                "step_s": [one.step for one in taken],
                "update_s": [one.update for one in taken],
            }
            for way, taken in sorted(self.rounds.items())
        ]
        return {"device": self.device, "timed": timed, "settings": self.settings}


def name_library(precision: str, device: str) -> str:
    """Which library multiplies float32 matrices."""
    if device != "cpu":
        return {"cuda": "cuBLAS" if precision == "highest" else "cuBLAS, TF32"}.get(device, device)
    if precision == "highest":
        return "MKL" if torch.backends.mkl.is_available() else "torch"  # type: ignore[no-untyped-call]
    return "oneDNN" if torch.backends.mkldnn.is_available() else "torch"  # type: ignore[no-untyped-call]


def list_modes(device: str) -> list[ComputeMode]:
    """The ways to try that differ here: each precision with 1, 2, 4, … threads and all cores; a GPU asks for none."""
    cores = host.count_usable_cores()
    counts = {cores, host.choose_threads(), *(1 << power for power in range(cores.bit_length()) if 1 << power <= cores)}
    threads = sorted(counts) if device == "cpu" else [host.choose_threads()]
    return [ComputeMode(count, precision) for count in threads for precision in _list_precisions(device)]


def _list_precisions(device: str) -> tuple[str, ...]:
    """Those that compute differently: `medium` is `high` on a GPU, and `high` is `highest` on most processors."""
    if device != "cpu":
        return "highest", "high"
    return ("highest", "high", "medium") if TF32_FLAG in read_cpu_flags() else ("highest", "medium")


def choose_mode(rounds: dict[ComputeMode, list[Seconds]], usual: ComputeMode) -> ComputeMode:
    """The usual way unless an exact one is clearly faster, and an exact one unless another is."""
    taken = {way: median(one.step for one in each) for way, each in rounds.items()}
    exact = [way for way in taken if way.precision == "highest"]
    best = usual
    for some in (exact, list(taken)):
        fastest = min(some, key=taken.__getitem__)
        if taken[fastest] < WORTH * taken[best]:
            best = fastest
    return best


@kernel_threads.restore_threads()
def tune(settings: Settings, lengths: Lengths, say: Callable[[str], None]) -> TuneResult:
    """Time every way in turn, round after round, so that what else the machine does meets all of them alike."""
    work = Work(settings, lengths)
    device = work.policy.model.device.type
    usual = ComputeMode(host.choose_threads(), "highest")
    tried = list_modes(device)
    say(f"Timing {len(tried)} ways to compute, {ROUNDS} rounds of each that is not hopeless.")
    _time_round(work, tried)  # the first one pays for what is prepared once
    rounds: dict[ComputeMode, list[Seconds]] = defaultdict(list)
    for number in range(ROUNDS):
        for way, seconds in _time_round(work, tried).items():
            rounds[way].append(seconds)
        if number == 0:
            least = min(one.step for (one,) in rounds.values())
            tried = [way for way in tried if way == usual or rounds[way][0].step <= HOPELESS * least]
    return TuneResult(choose_mode(rounds, usual), dict(rounds), device)


def _time_round(work: Work, tried: Sequence[ComputeMode]) -> dict[ComputeMode, Seconds]:
    rows, tokens = PROMPTS * work.group, min(TOKENS, work.lengths.answer)
    found = {}
    for way in tried:
        kernel_threads.set_threads(way.threads, way.precision)
        sampling = _time_call(lambda: work.answer(rows, tokens))
        found[way] = Seconds(_time_call(lambda: work.update(rows, rows)), sampling * work.lengths.answer / tokens)
    return found


def _time_call(deed: Callable[[], object]) -> float:
    began = time.perf_counter()
    deed()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began
