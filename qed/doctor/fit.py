"""The largest micro-batch and the most answers side by side that fit a memory, from the peaks of a few sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qed.config.keys import list_values
from qed.config.resolve import DEFAULT, resolve_settings
from qed.doctor.rows import Lengths
from qed.doctor.trial import ROLES, Peak, Role, TrialRequest, TrialResult, resolve_trial_settings, run_trial
from qed.errors import ModelError

MARGIN = 0.1  # of the memory that is left free: fragments, longer steps, whatever else the process holds
GIB = 2**30


@dataclass(frozen=True)
class Line:
    """Memory by rows: what is there anyway, weights, gradients and optimizer state among it, and what a row adds."""

    base: float
    row: float


def fit_line(peaks: Sequence[Peak]) -> Line:
    """The line through the two largest sizes that could be computed; through one, a row is taken to cost all of it."""
    known = [(peak.rows, peak.bytes) for peak in peaks if peak.bytes is not None]
    if len(known) < 2:
        return Line(0.0, known[0][1] / known[0][0])
    (fewer, less), (more, much) = known[-2:]
    row = max(0, much - less) / (more - fewer)
    return Line(much - row * more, row)


def find_largest(peaks: Sequence[Peak], budget: float) -> int:
    """The most rows that stay within so many bytes; 0 where not even one does."""
    known = [peak for peak in peaks if peak.bytes is not None]
    if not known:
        return 0
    along = fit_line(peaks)
    # A peak that was measured counts for more than the line, and what ran out of memory does so again.
    seen = max((peak.rows for peak in known if peak.bytes is not None and peak.bytes <= budget), default=0)
    reckoned = int((budget - along.base) / along.row) if along.row else seen
    bound = min((peak.rows - 1 for peak in peaks if peak.bytes is None), default=None)
    rows = max(seen, reckoned, 0)
    return rows if bound is None else min(rows, bound)


@dataclass(frozen=True)
class Fit:
    """What fits, and what it was reckoned from."""

    settings: dict[str, Any]  # to write down, by their full names
    rows: dict[Role, int]
    found: TrialResult
    memory: int

    def text(self) -> str:
        """For people: what was measured, and a YAML fragment that `qed grpo` takes."""
        told = [f"# {self.found.device}, {self.memory / GIB:.2f} GiB, of which {MARGIN:.0%} are left free"]
        for role, rows in self.rows.items():
            along, peaks = fit_line(self.found.peaks[role]), self.found.peaks[role]
            sizes = " and ".join(str(peak.rows) for peak in peaks[-2:] if peak.bytes is not None)
            told.append(
                f"# {role}: {along.base / GIB:.2f} GiB and {along.row / 2**20:.2f} MiB a row, measured at {sizes} "
                f"rows: up to {rows} rows at once"
            )
        return "\n".join([*told, *(f"{key}: {json.dumps(value)}" for key, value in self.settings.items())])

    def as_object(self) -> dict[str, Any]:
        """For programs."""
        lines = {role: fit_line(peaks) for role, peaks in self.found.peaks.items()}
        return {
            "device": self.found.device,
            "memory_gib": self.memory / GIB,
            "margin": MARGIN,
            **{
                role: {"rows": self.rows[role], "base_gib": lines[role].base / GIB, "row_mib": lines[role].row / 2**20}
                for role in ROLES
            },
            "settings": self.settings,
        }


def measure_fit(arguments: Sequence[str], lengths: Lengths, memory: float, say: Callable[[str], None]) -> Fit:
    """Measure a learner and a sampler, and reckon what fits.

    Args:
        arguments: a command line of `qed grpo`.
        lengths: of a row.
        memory: in GiB; 0 takes what the device has free.
        say: tells what is being done.

    Raises:
        ModelError: not even one row fits.
    """
    say(f"Measuring a sampler and a learner, rows of {lengths.prompt} + {lengths.answer} tokens.")
    found = run_trial(TrialRequest(tuple(arguments), lengths.prompt, lengths.answer))
    # A limit above what there is would promise what nobody can hold.
    limit = min(found.room, int(memory * GIB)) if memory else found.room
    rows = {role: find_largest(peaks, limit * (1 - MARGIN)) for role, peaks in found.peaks.items()}
    for role in ROLES:
        if not rows[role]:
            raise ModelError(_explain_too_large(role, found, limit, lengths))
    return Fit(_list_settings(arguments, lengths, rows), rows, found, limit)


def _explain_too_large(role: Role, one: TrialResult, limit: int, lengths: Lengths) -> str:
    first = one.peaks[role][0].bytes
    took = "ran out of memory" if first is None else f"took {first / GIB:.2f} GiB"
    return (
        f"Not even one row of {lengths.prompt} + {lengths.answer} tokens fits {limit / GIB:.2f} GiB of {one.device} "
        f"memory, of which {MARGIN:.0%} are left free: the {role} {took} for it, with weights, gradients and optimizer "
        "state. Ask with smaller --lengths, or with model.gradient_checkpointing=true, model.precision=bfloat16, "
        "model.lora_rank=16 or learner.optimizer=adamw_offload."
    )


def _list_settings(arguments: Sequence[str], lengths: Lengths, rows: dict[Role, int]) -> dict[str, Any]:
    """What was asked with and what was found; no more rows than a step has, because more would change nothing."""
    settings = resolve_trial_settings(arguments)
    origins, values = resolve_settings("grpo", arguments).origins, list_values(settings)
    given = {key: values[key] for key, origin in origins.items() if not origin.startswith(DEFAULT)}
    step = settings.sampling.problems_per_step * settings.sampling.group_size
    return given | {
        "sampling.max_tokens": lengths.answer,
        "sampling.group_size": settings.sampling.group_size,
        "sampling.rows_per_batch": min(rows["sampler"], step),
        "learner.tokens_per_microbatch": min(rows["learner"], step) * lengths.row,
    }
