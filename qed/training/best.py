"""Which steps of a run answered its held-out problems best, by what its folder tells."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from qed.config.settings import RunSettings
from qed.data.splits import VALIDATION
from qed.runs import manifest
from qed.runs.run import Run, read_evaluations, read_lines
from qed.training import checkpoints

VALIDATED = f"eval/{VALIDATION}/preferred"  # the share of held-out pairs whose chosen answer the policy has raised more


def read_scores(folder: Path) -> dict[int, float]:
    """How well the validation part was answered after each evaluated step; without answers, the pairs ranked."""
    told = dict(read_evaluations(folder))
    found = {at: told[at][VALIDATION]["greedy"]["accuracy"] for at in told if at > 0 and VALIDATION in told[at]}
    rows = [] if found else read_lines(folder / "metrics.jsonl")
    return found or {row["step"]: row[VALIDATED] for row in rows if row["step"] > 0 and VALIDATED in row}


def is_best(found: Mapping[int, float], step: int) -> bool:
    """Whether by these scores the validation part was answered better after a step than after any before it."""
    return step in found and all(score < found[step] for at, score in found.items() if at < step)


def keep_best(run: Run, kept: RunSettings, found: Mapping[int, float], spared: frozenset[int]) -> None:
    """Delete the checkpoints that are neither among the newest, nor by their scores among the best, nor spared; of two
    that are equally good the earlier one is better."""
    ranked = sorted(found.keys() & manifest.list_checkpoints(run.folder), key=lambda step: (-found[step], step))
    checkpoints.delete_old(run, kept.keep_last, spared.union(ranked[: kept.keep_best]))
