"""Compare the evaluations of two arms on the same problems, task by task: `qed compare A B`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from qed.console.live import Console
from qed.errors import DataError, UsageError
from qed.evaluation import stored
from qed.evaluation.arms import compare_arms
from qed.evaluation.cautions import count_truncated
from qed.evaluation.compared_runs import Arm, load_arm
from qed.evaluation.compared_table import Result, show_results
from qed.evaluation.compared_tasks import TaskPair, list_left_out, list_unmatched, pair_tasks
from qed.evaluation.detectable import describe_power
from qed.evaluation.intervals import adjust_holm
from qed.evaluation.measures import ACCURACY, parse_measure
from qed.evaluation.paired import compare_paired


def compare(
    before: str, after: str, scoring: stored.Scoring, console: Console, measure: str = ACCURACY, power: bool = False
) -> dict[str, Any]:
    """Print the paired tests of two arms.

    Args:
        before: a run, an evaluation's folder or a file; a pattern, or several of these separated by commas, is an arm
            of several runs with different seeds.
        after: the other side, in the same form.
        scoring: how files of answers are read.
        console: for the output.
        measure: `accuracy`, `pass@K` or `maj@K`.
        power: also print the smallest difference that these problems and answers can detect.

    Returns:
        the figures of each task's test, with its Holm-adjusted p-value, warnings, and counts of answers cut off.

    Raises:
        DataError: an arm contains no evaluation, or they have no problem in common.
        UsageError: there is no such measure.
    """
    parse_measure(measure)
    arms = load_arm(before, scoring), load_arm(after, scoring)
    _require_other_runs(*arms)
    apart = (
        f"{before} and {after} have no problem in common, so there is nothing to compare: problems are the same if "
        "their ids and golds are equal; parts drawn with another --limit or --seed may share none."
    )
    results, left_out = _compare_pairs(list(pair_tasks(*arms)), measure, apart)
    if not results:
        raise DataError(left_out[0])
    adjusted = adjust_holm([test.p_value for _, test in results])
    figures = {
        pair.name: {
            **asdict(test),
            "difference": test.difference,
            "measure": measure,
            "p_holm": p_holm,
            "warnings": pair.warnings,
            "truncated": {"before": count_truncated(pair.before), "after": count_truncated(pair.after)},
            **({"power": describe_power(pair, test)} if power else {}),
        }
        for (pair, test), p_holm in zip(results, adjusted, strict=True)
    }
    show_results(console, results, figures, measure)
    missing = [line for arm in arms for line in list_left_out(arm)] + list_unmatched(*arms)
    for line in dict.fromkeys([*left_out, *missing]):
        console.say(line)
    return figures


def _compare_pairs(pairs: Sequence[TaskPair], measure: str, apart: str) -> tuple[list[Result], list[str]]:
    """Compute the paired tests of all tasks, and list the tasks that have none.

    These have too few answers for the measure, or no problem in common (`apart` is that message).
    """
    results: list[Result] = []
    left_out = []
    for pair in pairs:
        before, after = ([part.rows for part in side] for side in (pair.before, pair.after))
        try:
            single = pair.is_single
            test = compare_paired(before[0], after[0], measure) if single else compare_arms(before, after, measure)
        except UsageError as error:
            left_out.append(f"{pair.name}: {error}")
            continue
        if test:
            results.append((pair, test))
        else:
            left_out.append(f"{pair.name}: {apart}")
    return results, left_out


def _require_other_runs(before: Arm, after: Arm) -> None:
    """Raise if a run is in both arms, unless a single run is compared with itself."""
    others = {place.resolve() for place in after.places}
    shared = [place for place in before.places if place.resolve() in others]
    if shared and len(before.places) + len(after.places) > 2:
        raise DataError(f"{shared[0]} is in both arms, {before.name} and {after.name}. Leave it out of one of them.")
