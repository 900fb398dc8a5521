"""Report which difference a comparison can detect: between evaluations or arms, or before the other side exists."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from qed.console.live import Console
from qed.errors import DataError, UsageError
from qed.evaluation import stored
from qed.evaluation.arms import ArmsTest
from qed.evaluation.compared_runs import load_arm
from qed.evaluation.compared_tasks import TaskPair, find_tasks, name_decoding
from qed.evaluation.measures import ACCURACY, parse_measure
from qed.evaluation.paired import PairedTest
from qed.evaluation.power import POWER, Power, compute_detectable_difference

# For normal errors: the sum of the 97.5 % and 80 % quantiles over the 97.5 % one, which gives half of an interval.
OVER_HALF = (1.959964 + 0.841621) / 1.959964


def describe_power(pair: TaskPair, test: PairedTest | ArmsTest) -> dict[str, Any]:
    """Return the smallest true difference that a comparison like this one detects, with a sentence about it.

    For two arms it follows from the width of their interval, which is over problems and seeds.
    """
    if isinstance(test, ArmsTest):
        difference = OVER_HALF * (test.ci_hi - test.ci_lo) / 2
        known = difference if difference <= 1 and test.p_value is not None else None
        what = f"With these {test.n:,} problems, and {test.seeds[0]} and {test.seeds[1]} runs,"
        return {"difference": known, "power": POWER, "text": _describe(what, known)}
    return build_power(compute_detectable_difference(pair.before[0].rows, pair.after[0].rows, test.measure))


def build_power(power: Power | None) -> dict[str, Any]:
    """Return the fields of a computed power, with a sentence about it; empty for None."""
    if power is None:
        return {}
    answers = "1 answer" if power.k == 1 else f"{power.k} answers"
    return {**asdict(power), "text": _describe(f"With {power.n:,} problems and {answers} to each", power.difference)}


def show_power(name: str, scoring: stored.Scoring, console: Console, measure: str = ACCURACY) -> dict[str, Any]:
    """Print the smallest difference that a second evaluation of the same problems can show.

    Args:
        name: a run, an evaluation's folder or a file.
        scoring: how files of answers are read.
        console: for the output.
        measure: `accuracy`, `pass@K` or `maj@K`.

    Returns:
        the figures of each task, each with a sentence.

    Raises:
        DataError: there is no evaluation with enough answers.
        UsageError: there is no such measure.
    """
    parse_measure(measure)
    found, left_out = {}, []
    for task, decodings in find_tasks(load_arm(name, scoring)).items():
        for decoding, parts in decodings.items():
            try:
                found[name_decoding(task, decoding)] = build_power(
                    compute_detectable_difference(parts[0].rows, measure=measure)
                )
            except UsageError as error:
                left_out.append(f"{name_decoding(task, decoding)}: {error}")
    if not found:
        raise DataError(left_out[0])
    for task, power in found.items():
        console.say(f"{task}: {power['text']}")
    for line in left_out:
        console.say(line)
    return found


def _describe(what: str, difference: float | None) -> str:
    if difference is None:
        return f"{what} no true difference is found in {100 * POWER:.0f} % of comparisons: these are too few."
    return (
        f"{what} a true difference of {100 * difference:.1f} points is found in {100 * POWER:.0f} % of comparisons; "
        "smaller ones are missed more often."
    )
