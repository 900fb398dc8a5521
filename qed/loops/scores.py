"""Scores of a reward model: the positions they are read at, their ranking of held-out pairs, and their scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from qed.data.splits import VALIDATION
from qed.errors import DataError
from qed.evaluation.intervals import compute_wilson_interval
from qed.loops.metrics import Stats
from qed.loops.setup import Setup
from qed.models.scalar_head import Calibration, write_calibration
from qed.rollout.stages import flatten
from qed.training.best import PREFERRED
from qed.training.learner import Learner
from qed.types import Group, Problem, Rollout

CALIBRATION_PAIRS = 256  # whose scores set the scale; enough for a standard deviation within 5 %


def mark_scores(pairs: Sequence[Group], margin: float) -> list[Group]:
    """Return pairs whose only trained label follows the end token, so the value at the end token is the score.

    Args:
        pairs: pairs of a chosen and a rejected reply.
        margin: margin of pairs whose data has no column `margin`; becomes the advantage of the chosen reply.

    Raises:
        DataError: the margin of a pair is not a finite number.
    """
    return [[_mark(chosen, _read_margin(chosen.problem, margin)), _mark(rejected, 0.0)] for chosen, rejected in pairs]


def _read_margin(problem: Problem, default: float) -> float:
    """Return a pair's margin in the data, or else the default."""
    given = problem.meta.get("margin", "")
    if isinstance(given, str) and not given.strip():  # an empty cell of a csv file
        return default
    try:
        margin = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        margin = math.nan
    if not math.isfinite(margin):
        raise DataError(
            f"The column margin of the pair {problem.id} ({problem.question[:60]!r}) is {str(given)[:80]}. It must be "
            "a finite number, or empty to use algorithm.margin."
        )
    return margin


def _mark(rollout: Rollout, margin: float) -> Rollout:
    output = rollout.output
    mask = (False,) * len(output) + (True,)
    return replace(rollout, output=(*output, output[-1]), loss_mask=mask, advantage=margin)


def score_replies(learner: Learner, rollouts: Sequence[Rollout]) -> list[float]:
    """Compute the score of each marked reply."""
    batch = learner.collate(rollouts)
    values, _ = learner.forward_logps(learner.model, batch)
    scores: list[float] = (values * batch.mask).sum(1).tolist()
    return scores


def measure_ranking(learner: Learner, pairs: Sequence[Group]) -> Stats:
    """Return the share of pairs whose chosen reply scores higher, with its 95 % interval, and the mean margin."""
    scores = score_replies(learner, flatten(pairs))
    differences = [chosen - rejected for chosen, rejected in zip(scores[0::2], scores[1::2], strict=True)]
    right = sum(difference > 0 for difference in differences)
    low, high = compute_wilson_interval(right, len(differences))
    return {
        PREFERRED: right / len(differences),
        f"{PREFERRED}/ci_lo": low,
        f"{PREFERRED}/ci_hi": high,
        f"eval/{VALIDATION}/margin": fmean(differences),
    }


def calibrate(setup: Setup, learner: Learner, pairs: Sequence[Group]) -> None:
    """Write the mean and standard deviation of training pairs' scores into the model's config, to be saved with it."""
    scores = score_replies(learner, flatten(pairs[:CALIBRATION_PAIRS]))
    write_calibration(setup.model, Calibration(fmean(scores), pstdev(scores)))
