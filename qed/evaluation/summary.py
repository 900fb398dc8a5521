"""Compute the figures of an evaluation from the rows of its answers.

A row is the result of `qed.runs.run.build_row` with the columns of `qed.evaluation.per_sample_metrics`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from qed.evaluation.endpoint.usage import is_answered, summarize_usage
from qed.evaluation.estimators import list_budgets
from qed.evaluation.intervals import MIN_PROBLEMS, compute_mean_intervals
from qed.evaluation.measures import ACCURACY, Row, measure_problems, read_votes
from qed.evaluation.votes import vote_majority
from qed.rewards.verdicts import CLASSES
from qed.types import UNGRADED

WAYS = ("strict", "flexible", "string")
BREAKDOWNS = {"subject": "subject", "level": "level", "source": "data_source"}


def group_by_problem(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group answers by problem, sorted by sample number; problems keep the order of their first rows."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row["group_id"]), []).append(row)
    return {
        problem: sorted(answers, key=lambda row: int(row.get("sample_id", 0))) for problem, answers in groups.items()
    }


def index_problems(rows: Sequence[Row]) -> dict[tuple[str, str], list[Row]]:
    """Group answers as `group_by_problem` does, but by id and gold, which identify a problem across evaluations."""
    groups = group_by_problem(rows)
    return {(problem, str(answers[0].get("gold"))): answers for problem, answers in groups.items()}


def summarize(rows: Sequence[Row], ties: str = "split") -> dict[str, Any]:
    """Compute all figures of one decoding of one task; `ties` is the tie rule of maj@k, see `vote_majority`.

    All problems have the same weight, whatever their number of answers. pass@k and maj@k go up to the smallest number
    of answers per problem, because they are undefined beyond it. `k` is the most common number of answers; if it varies
    between problems, `k_min` and `k_max` are added. `too_few` is set for fewer than 6 problems. The mean of sources is
    omitted if most have one problem: they are then not benchmarks but, for example, places in a book.
    """
    groups = list(group_by_problem(rows).values())
    counts = [len(group) for group in groups]
    measured = _compute_measures(groups, min(counts), ties)
    value = measured[ACCURACY]
    by = {name: _break_down(groups, column) for name, column in BREAKDOWNS.items() if _has(groups, column)}
    sources = list(by.get("source", {}).values())
    are_benchmarks = len(sources) > 1 and sum(source["n"] == 1 for source in sources) <= len(sources) / 2
    return {
        "n": len(groups),
        **_describe_counts(counts),
        "answers": len(rows),
        "accuracy": value["value"],
        "ci_lo": value["ci_lo"],
        "ci_hi": value["ci_hi"],
        **flag_too_few(len(groups)),
        "interval": "wilson" if max(counts) == 1 else "wilson, effective answers over problems",
        **{name: _pick(measured, f"{name}@") for name in ("pass", "maj")},
        **({"maj_ties": ties} if min(counts) > 1 else {}),
        "accuracy_by": {way: measured[way] for way in WAYS if way in measured},
        **_compute_averages(rows),
        **summarize_usage(rows),
        "by": by,
        **({"mean_of_sources": {"sources": len(sources), **_average(sources)}} if are_benchmarks else {}),
    }


def _compute_measures(groups: Sequence[Sequence[Row]], fewest: int, ties: str) -> dict[str, dict[str, float]]:
    """Compute the accuracy by each extraction mode, pass@k and maj@k, each with its interval."""
    columns = {ACCURACY: measure_problems(groups)}
    columns |= {way: [fmean(bool(row[way]) for row in own) for own in groups] for way in WAYS if way in groups[0][0]}
    budgets = list_budgets(fewest)
    columns |= {f"pass@{k}": measure_problems(groups, f"pass@{k}") for k in budgets}
    # One problem at a time, so that its answers are clustered only once.
    votes = [[vote_majority(own, k, ties) for k in budgets[1:]] for own in map(read_votes, groups)]
    columns |= {f"maj@{k}": list(own) for k, own in zip(budgets[1:], zip(*votes, strict=True), strict=True)}
    bounds = compute_mean_intervals(np.array(list(columns.values()), dtype=np.float64).T)
    return {
        name: {"value": fmean(own), "ci_lo": low, "ci_hi": high}
        for (name, own), (low, high) in zip(columns.items(), bounds, strict=True)
    }


def _describe_counts(counts: Sequence[int]) -> dict[str, int]:
    """Return the most common number of answers per problem (the larger one in a tie), and its range if it varies."""
    common = Counter(counts)
    most = max(common, key=lambda count: (common[count], count))
    return {"k": most} if len(common) == 1 else {"k": most, "k_min": min(counts), "k_max": max(counts)}


def flag_too_few(problems: int) -> dict[str, bool]:
    """Return a flag for figures over too few problems for a meaningful interval."""
    return {"too_few": True} if problems < MIN_PROBLEMS else {}


def _compute_averages(rows: Sequence[Row]) -> dict[str, Any]:
    """Compute means over answers: format, reward and its parts, lengths, and failures."""
    tokens = [row for row in rows if row.get("n_tokens")]
    wrong = [row for row in tokens if is_wrong(row)]
    parts = [row["parts"] for row in rows if row.get("parts") and row.get("reward", 0.0) is not None]
    names = sorted({name for own in parts for name in own})
    thoughts = [row["reasoning_chars"] for row in rows if row.get("reasoning_chars")]
    classes = [row["class"] for row in rows if row.get("class")]
    turns = [len(row.get("turns") or []) + 1 for row in rows]
    return {
        "format": fmean(bool(row.get("format_ok")) for row in rows),
        "classes": {name: classes.count(name) / len(classes) for name in CLASSES} if classes else {},
        # None marks an answer without a reward.
        "reward": _compute_mean([float(reward) for row in rows if (reward := row.get("reward", 0.0)) is not None]),
        "without_reward": sum(row.get("reward", 0.0) is None for row in rows),
        "parts": {name: fmean(own[name] for own in parts if name in own) for name in names},
        "mean_tokens": _compute_mean([row["n_tokens"] for row in tokens]),
        "right_tokens": _compute_mean([row["n_tokens"] for row in tokens if row["correct"]]),
        "wrong_tokens": _compute_mean([row["n_tokens"] for row in wrong]),
        **({"mean_turns": fmean(turns)} if max(turns) > 1 else {}),
        "mean_chars": fmean(len(str(row.get("text") or "")) for row in rows),
        "truncated_frac": fmean(row.get("stop_reason") == "length" for row in rows),
        "truncated_right": sum(row.get("stop_reason") == "length" and bool(row["correct"]) for row in rows),
        "no_answer_frac": fmean(row.get("extracted") is None for row in rows),
        "reasoning_frac": len(thoughts) / len(rows),
        "reasoning_chars": _compute_mean(thoughts),
        **{f"{tier}s": sum(row.get("tier") == tier and is_answered(row) for row in rows) for tier in UNGRADED},
    }


def is_wrong(row: Row) -> bool:
    """Return whether an answer was graded as wrong; answers on which the grader failed are excluded."""
    return not row["correct"] and row.get("tier") not in UNGRADED


def _break_down(groups: Sequence[Sequence[Row]], column: str) -> dict[str, dict[str, Any]]:
    """Compute the accuracy for each value of a column."""
    kinds: dict[str, list[Sequence[Row]]] = {}
    for group in groups:
        if group[0].get(column) is not None:
            kinds.setdefault(str(group[0][column]), []).append(group)
    return {kind: compute_accuracy(own) for kind, own in sorted(kinds.items())}


def compute_accuracy(groups: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Compute the mean over problems of the share of right answers, with its interval."""
    shares = measure_problems(groups)
    low, high = compute_mean_intervals(np.array(shares, dtype=np.float64)[:, None])[0]
    return {"n": len(shares), "accuracy": fmean(shares), "ci_lo": low, "ci_hi": high, **flag_too_few(len(shares))}


def average_tasks(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute the unweighted mean of the accuracies of several tasks with different problems, with its interval."""
    return {"tasks": len(summaries), **_average(summaries)}


def average_columns(columns: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Compute the unweighted mean of the accuracies of several columns of answers to the same problems.

    Columns share the problems and so are correlated: the interval is that of the problems' means over columns.

    Args:
        columns: the rows of each column; all have the same problems.
    """
    shares = [measure_problems(list(group_by_problem(rows).values())) for rows in columns]
    means = np.mean(np.array(shares, dtype=np.float64), axis=0)
    low, high = compute_mean_intervals(means[:, None])[0]
    return {"tasks": len(columns), "accuracy": float(means.mean()), "ci_lo": low, "ci_hi": high}


def _average(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compute the unweighted mean of the accuracies of tasks or sources.

    The interval combines the distances to the lower and to the upper bounds separately (MOVER: Zou and Donner 2008,
    "Construction of confidence limits about effect measures"), which keeps their asymmetry.
    """
    mean = fmean(each["accuracy"] for each in parts)
    down, up = (
        sum((each["accuracy"] - each[bound]) ** 2 for each in parts) ** 0.5 / len(parts) for bound in ("ci_lo", "ci_hi")
    )
    return {"accuracy": mean, "ci_lo": max(0.0, mean - down), "ci_hi": min(1.0, mean + up)}


def _pick(measured: Mapping[str, dict[str, float]], prefix: str) -> dict[str, dict[str, float]]:
    return {name.removeprefix(prefix): value for name, value in measured.items() if name.startswith(prefix)}


def _has(groups: Sequence[Sequence[Row]], column: str) -> bool:
    return any(group[0].get(column) is not None for group in groups)


def _compute_mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None without values, which a table shows as a dash."""
    return fmean(values) if values else None
