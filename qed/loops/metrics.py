"""Builds and writes the rows of metrics.jsonl, and prints alarms about them."""

from __future__ import annotations

import resource
import sys
from collections.abc import Mapping, Sequence
from statistics import fmean

import torch

from qed.evaluation.per_sample_metrics import extract_thought
from qed.grading.extraction.marks import Tags
from qed.guards.alarms import Alarms
from qed.loops.non_finite import SKIPPED
from qed.loops.setup import Setup
from qed.rollout.describe import describe_groups
from qed.rollout.stages import flatten
from qed.runs.run import Row
from qed.training.batch import COUNTS
from qed.types import Groups

Stats = dict[str, float]


class MetricsWriter:
    """Writes the metrics of a phase, and prints a warning for each new alarm.

    `pending` holds metrics to include in the next row, such as those of the preflight check.

    Args:
        setup: setup of the run.
        phase: name of the phase.
        recorded: the phase's existing rows if the run is resumed; their alarms are not repeated.
    """

    def __init__(self, setup: Setup, phase: str, recorded: Sequence[Row]) -> None:
        self.setup = setup
        self.phase = phase
        self.alarms = Alarms()
        self.pending: dict[str, float] = {}
        for row in recorded:
            self.alarms.check(row)

    def write(self, step: int, figures: Mapping[str, float]) -> Row:
        """Write a row with the pending metrics, warn of each alarm once, and return the row."""
        row: Row = {"step": step, "phase": self.phase, **self.pending, **figures}
        self.pending = {}
        self.setup.run.metrics(row)
        for alarm in self.alarms.check(row):
            self.setup.run.event("alarm", name=alarm.name, step=step, phase=self.phase, told=alarm.told)
            self.setup.console.say(f"Warning, step {step}: {alarm.told}")
        return row


def summarize_step(groups: Groups, counts: Stats, updates: Stats, times: Stats, setup: Setup, flops: int) -> Stats:
    """Return the metrics of a step; all ranks must call this.

    Args:
        groups: all sampled groups; empty in an offline phase.
        counts: metrics of rollout collection, such as `groups/rounds`.
        updates: merged statistics of the updates.
        times: seconds of each stage, including `time/step`.
        setup: setup of the run.
        flops: the fewest floating-point operations that the step needs, see `qed.training.flops`.
    """
    tokens = sum(rollout.trained_count for rollout in flatten(groups)) or updates["train/tokens"]
    speed = {"perf/tokens_per_s": tokens / times["time/step"], "perf/flops": float(flops)}
    if setup.peak_flops:
        speed["perf/mfu"] = flops / (times["time/step"] * setup.peak_flops)
    memory = measure_memory(setup.device)
    peak = setup.parallel.sum_metrics({"mem/peak_max": memory.get("mem/gpu_gb", memory["mem/rss_gb"])})
    memory["mem/peak"] = float(peak["mem/peak_max"])
    return {**describe_groups(groups), **counts, **updates, **times, **speed, **memory}


def measure_thoughts(groups: Groups, tags: Tags | None) -> Stats:
    """Return the share of sampled answers with reasoning before the answer, and its mean length in characters.

    Args:
        groups: all sampled groups.
        tags: tags that the prompt puts around the reasoning; None looks for the usual ones.
    """
    answers = [rollout for rollout in flatten(groups) if rollout.is_on_policy]
    lengths = [len(extract_thought(rollout.text, tags)) for rollout in answers]
    thoughts = [length for length in lengths if length]
    figures = {"reasoning/frac": len(thoughts) / len(lengths)} if lengths else {}
    return figures | ({"reasoning/chars": fmean(thoughts)} if thoughts else {})


def merge_updates(stats: Sequence[Stats]) -> Stats:
    """Merge the statistics of a step's updates: sum counts, take the maximum of `_max` ones, and average the rest."""
    names = dict.fromkeys(name for update in stats for name in update)
    values = {name: [update[name] for update in stats if name in update] for name in names}
    merges = {name: max if name.endswith("_max") else fmean for name in names} | dict.fromkeys((*COUNTS, SKIPPED), sum)
    return {name: merges[name](own) for name, own in values.items()}


def measure_memory(device: torch.device) -> Stats:
    """Return the peak memory of this process and of its device, in GiB."""
    # Linux counts in KiB, macOS in bytes.
    unit = 2**30 if sys.platform == "darwin" else 2**20
    memory = {"mem/rss_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
    if device.type == "cuda":
        memory["mem/gpu_gb"] = torch.cuda.max_memory_allocated(device) / 2**30
    return memory
