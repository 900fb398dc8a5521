"""The best steps of a run on its validation split, read from its folder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from qed.config.settings import RunSettings
from qed.data.splits import VALIDATION
from qed.runs import manifest
from qed.runs.run import Run, read_evaluations, read_lines
from qed.training import checkpoints

PREFERRED = f"eval/{VALIDATION}/preferred"  # share of validation pairs ranked correctly, relative to the reference
LOSS = f"eval/{VALIDATION}/loss"  # mean negative log-prob of the validation demonstrations' tokens

PERPLEXITY = f"eval/{VALIDATION}/perplexity"  # exponential of the loss


def read_scores(folder: Path, first: int = 1) -> dict[int, float]:
    """Read the validation score after each evaluated step; the largest is the best.

    It is the accuracy; for preference pairs, the share ranked correctly; for demonstrations without an answer, the
    negative loss. A step whose score is NaN is skipped, because NaN cannot be compared.

    Args:
        folder: folder of the run.
        first: first step whose score is read; 0 includes the model before training.
    """
    evaluations = dict(read_evaluations(folder))
    scores = {
        step: parts[VALIDATION]["greedy"]["accuracy"]
        for step, parts in evaluations.items()
        if step >= first and VALIDATION in parts
    }
    rows = [] if scores else [row for row in read_lines(folder / "metrics.jsonl") if row["step"] >= first]
    preferred = {row["step"]: row[PREFERRED] for row in rows if PREFERRED in row}
    found = scores or preferred or {row["step"]: -row[LOSS] for row in rows if LOSS in row}
    return {step: score for step, score in found.items() if not math.isnan(score)}


def is_best(scores: Mapping[int, float], step: int) -> bool:
    """Return whether the score after a step is higher than after every earlier step."""
    return step in scores and all(score < scores[step] for earlier, score in scores.items() if earlier < step)


def keep_best(run: Run, settings: RunSettings, scores: Mapping[int, float], protected: frozenset[int]) -> None:
    """Delete checkpoints that are neither among the newest, nor among the best by score, nor protected.

    Of equal scores the earlier step ranks first.
    """
    ranked = sorted(scores.keys() & manifest.list_checkpoints(run.folder), key=lambda step: (-scores[step], step))
    checkpoints.delete_old(run, settings.keep_last, protected.union(ranked[: settings.keep_best]))
