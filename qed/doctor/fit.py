"""Find the largest micro-batch and sampler batch that fit into memory, from the peak memory at a few sizes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from qed.config.keys import list_values
from qed.config.resolve import resolve_settings
from qed.doctor.trial import ROLES, Lengths, Peak, Role, TrialRequest, TrialResult, run_trial
from qed.errors import ModelError

MARGIN = 0.1  # share of the memory to leave free for fragmentation, longer steps and other uses of the process
GIB = 2**30


@dataclass(frozen=True)
class Line:
    """Memory as a linear function of rows: `base` (weights, gradients, optimizer state, …) and bytes per `row`."""

    base: float
    row: float


def fit_line(peaks: Sequence[Peak]) -> Line:
    """Fit a line through the two largest measured sizes; with a single size, attribute all memory to the rows."""
    points = [(peak.rows, peak.bytes) for peak in peaks if peak.bytes is not None]
    if len(points) < 2:
        return Line(0.0, points[0][1] / points[0][0])
    (rows_1, bytes_1), (rows_2, bytes_2) = points[-2:]
    row = max(0, bytes_2 - bytes_1) / (rows_2 - rows_1)
    return Line(bytes_2 - row * rows_2, row)


def find_largest(peaks: Sequence[Peak], budget: float) -> int:
    """Return the largest number of rows within `budget` bytes; 0 if not even one row fits."""
    measured = [peak for peak in peaks if peak.bytes is not None]
    if not measured:
        return 0
    line = fit_line(peaks)
    # Measured peaks take precedence over the line, and sizes that ran out of memory are excluded.
    largest = max((peak.rows for peak in measured if peak.bytes is not None and peak.bytes <= budget), default=0)
    estimate = int((budget - line.base) / line.row) if line.row else largest
    bound = min((peak.rows - 1 for peak in peaks if peak.bytes is None), default=None)
    rows = max(largest, estimate, 0)
    return rows if bound is None else min(rows, bound)


@dataclass(frozen=True)
class Fit:
    """The largest sizes that fit, and the measurements behind them."""

    settings: dict[str, Any]  # for a YAML file, by full names
    rows: dict[Role, int]
    trial: TrialResult
    memory: int

    def text(self) -> str:
        """Format the measurements as comments, and the settings as a YAML fragment for `qed grpo`."""
        comments = [f"# {self.trial.device}, {self.memory / GIB:.2f} GiB, of which {MARGIN:.0%} are left free"]
        for role, rows in self.rows.items():
            line, peaks = fit_line(self.trial.peaks[role]), self.trial.peaks[role]
            sizes = " and ".join(str(peak.rows) for peak in peaks[-2:] if peak.bytes is not None)
            comments.append(
                f"# {role}: {line.base / GIB:.2f} GiB and {line.row / 2**20:.2f} MiB a row, measured at {sizes} "
                f"rows: up to {rows} rows at once"
            )
        return "\n".join([*comments, *(f"{key}: {json.dumps(value)}" for key, value in self.settings.items())])

    def as_object(self) -> dict[str, Any]:
        """Return the result for JSON."""
        lines = {role: fit_line(peaks) for role, peaks in self.trial.peaks.items()}
        return {
            "device": self.trial.device,
            "memory_gib": self.memory / GIB,
            "margin": MARGIN,
            **{
                role: {"rows": self.rows[role], "base_gib": lines[role].base / GIB, "row_mib": lines[role].row / 2**20}
                for role in ROLES
            },
            "settings": self.settings,
        }


def measure_fit(arguments: Sequence[str], lengths: Lengths, memory: float, say: Callable[[str], None]) -> Fit:
    """Measure a learner and a sampler, and estimate the largest sizes that fit.

    Args:
        arguments: a command line of `qed grpo`.
        lengths: prompt and answer lengths of a row.
        memory: memory in GiB; 0 uses the free memory of the device.
        say: prints progress.

    Raises:
        ModelError: not even one row fits.
    """
    say(f"Measuring a sampler and a learner, rows of {lengths.prompt} + {lengths.answer} tokens.")
    trial = run_trial(TrialRequest(tuple(arguments), lengths.prompt, lengths.answer))
    # The limit is capped at the available memory.
    limit = min(trial.room, int(memory * GIB)) if memory else trial.room
    rows = {role: find_largest(peaks, limit * (1 - MARGIN)) for role, peaks in trial.peaks.items()}
    for role in ROLES:
        if not rows[role]:
            raise ModelError(_explain_too_large(role, trial, limit, lengths))
    return Fit(_list_settings(arguments, lengths, rows), rows, trial, limit)


def _explain_too_large(role: Role, trial: TrialResult, limit: int, lengths: Lengths) -> str:
    first = trial.peaks[role][0].bytes
    took = "ran out of memory" if first is None else f"took {first / GIB:.2f} GiB"
    return (
        f"Not even one row of {lengths.prompt} + {lengths.answer} tokens fits {limit / GIB:.2f} GiB of {trial.device} "
        f"memory, of which {MARGIN:.0%} are left free: the {role} {took} for it, with weights, gradients and optimizer "
        "state. Use smaller --lengths, or model.gradient_checkpointing=true, model.precision=bfloat16, "
        "model.lora_rank=16 or learner.optimizer=adamw_offload."
    )


def _list_settings(arguments: Sequence[str], lengths: Lengths, rows: dict[Role, int]) -> dict[str, Any]:
    """Return the given and the measured settings, with at most the rows of a step, because more have no effect."""
    resolved = resolve_settings("grpo", arguments)
    values, sampling = list_values(resolved.settings), resolved.settings.sampling
    given = {key: values[key] for key in resolved.list_given()}
    step = sampling.problems_per_step * sampling.group_size
    return given | {
        "sampling.max_tokens": lengths.answer,
        "sampling.group_size": sampling.group_size,
        "sampling.rows_per_batch": min(rows["sampler"], step),
        "learner.tokens_per_microbatch": min(rows["learner"], step) * lengths.row,
    }
