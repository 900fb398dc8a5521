"""Compute the figures of an evaluation from the rows of its answers.

A row is the result of `qed.runs.run.build_row` with the columns of `qed.evaluation.per_sample_metrics`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from qed.evaluation.endpoint.usage import summarize_usage
from qed.evaluation.estimators import compute_pass_at_k, list_budgets
from qed.evaluation.intervals import compute_wilson_interval
from qed.evaluation.resampling import bootstrap_intervals
from qed.evaluation.votes import Vote, vote_majority
from qed.rewards.verdicts import CLASSES
from qed.types import UNGRADED

Row = Mapping[str, Any]
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


def summarize(rows: Sequence[Row]) -> dict[str, Any]:
    """Compute all figures of one decoding of one task.

    All problems have the same weight, independent of their number of answers. pass@k and maj@k go up to the smallest
    number of answers per problem, because they are not defined beyond.
    """
    groups = list(group_by_problem(rows).values())
    counts = [len(group) for group in groups]
    measured = _compute_measures(groups, min(counts))
    value = measured["accuracy"]
    by = {name: _break_down(groups, column) for name, column in BREAKDOWNS.items() if _has(groups, column)}
    sources = list(by.get("source", {}).values())
    return {
        "n": len(groups),
        "k": max(counts),
        "answers": len(rows),
        "accuracy": value["value"],
        "ci_lo": value["ci_lo"],
        "ci_hi": value["ci_hi"],
        "interval": "wilson" if max(counts) == 1 else "bootstrap over problems",
        **{name: _pick(measured, f"{name}@") for name in ("pass", "maj")},
        "accuracy_by": {way: measured[way] for way in WAYS if way in measured},
        **_compute_averages(rows),
        **summarize_usage(rows),
        "by": by,
        **({"mean_of_sources": {"sources": len(sources), **_average(sources)}} if len(sources) > 1 else {}),
    }


def _compute_measures(groups: Sequence[Sequence[Row]], fewest: int) -> dict[str, dict[str, float]]:
    """Compute the accuracy by each mode, pass@k and maj@k, each with its interval."""
    columns = {"accuracy": [_compute_share(group, "correct") for group in groups]}
    columns |= {way: [_compute_share(group, way) for group in groups] for way in WAYS if way in groups[0][0]}
    votes = [[Vote(row.get("extracted"), bool(row["correct"])) for row in group] for group in groups]
    for k in list_budgets(fewest):
        columns[f"pass@{k}"] = [compute_pass_at_k(len(own), sum(vote.correct for vote in own), k) for own in votes]
        if k > 1:
            columns[f"maj@{k}"] = [vote_majority(own, k) for own in votes]
    values = np.array(list(columns.values()), dtype=np.float64).T
    once = all(len(group) == 1 for group in groups)
    bounds = (
        [compute_wilson_interval(round(sum(own)), len(own)) for own in columns.values()]
        if once
        else bootstrap_intervals(values)
    )
    return {
        name: {"value": fmean(own), "ci_lo": low, "ci_hi": high}
        for (name, own), (low, high) in zip(columns.items(), bounds, strict=True)
    }


def _compute_averages(rows: Sequence[Row]) -> dict[str, Any]:
    """Compute means over answers: format, reward and its parts, lengths, and failures."""
    tokens = [row for row in rows if row.get("n_tokens")]
    parts = sorted({name for row in rows for name in row.get("parts") or {}})
    thoughts = [row["reasoning_chars"] for row in rows if row.get("reasoning_chars")]
    classes = [row["class"] for row in rows if row.get("class")]
    return {
        "format": fmean(bool(row.get("format_ok")) for row in rows),
        "classes": {name: classes.count(name) / len(classes) for name in CLASSES} if classes else {},
        # The reward of an answer without one is None.
        "reward": _compute_mean([float(reward) for row in rows if (reward := row.get("reward", 0.0)) is not None]),
        "without_reward": sum(row.get("reward", 0.0) is None for row in rows),
        "parts": {
            name: fmean(row["parts"][name] for row in rows if name in (row.get("parts") or {})) for name in parts
        },
        "mean_tokens": _compute_mean([row["n_tokens"] for row in tokens]),
        "right_tokens": _compute_mean([row["n_tokens"] for row in tokens if row["correct"]]),
        "wrong_tokens": _compute_mean([row["n_tokens"] for row in tokens if not row["correct"]]),
        "mean_chars": fmean(len(str(row.get("text") or "")) for row in rows),
        "truncated_frac": fmean(row.get("stop_reason") == "length" for row in rows),
        "no_answer_frac": fmean(row.get("extracted") is None for row in rows),
        "reasoning_frac": len(thoughts) / len(rows),
        "reasoning_chars": _compute_mean(thoughts),
        **{f"{tier}s": sum(row.get("tier") == tier for row in rows) for tier in UNGRADED},
    }


def _break_down(groups: Sequence[Sequence[Row]], column: str) -> dict[str, dict[str, Any]]:
    """Compute the accuracy for each value of a column."""
    kinds: dict[str, list[Sequence[Row]]] = {}
    for group in groups:
        if group[0].get(column) is not None:
            kinds.setdefault(str(group[0][column]), []).append(group)
    return {kind: compute_accuracy(own) for kind, own in sorted(kinds.items())}


def compute_accuracy(groups: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """Compute the mean share of right answers over problems, with its interval."""
    shares = [_compute_share(group, "correct") for group in groups]
    once = all(len(group) == 1 for group in groups)
    values = np.array(shares, dtype=np.float64)[:, None]
    low, high = compute_wilson_interval(round(sum(shares)), len(shares)) if once else bootstrap_intervals(values)[0]
    return {"n": len(shares), "accuracy": fmean(shares), "ci_lo": low, "ci_hi": high}


def average_tasks(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute the unweighted mean of the accuracies of several tasks, with its interval."""
    return {"tasks": len(summaries), **_average(summaries)}


def _average(parts: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Compute the unweighted mean of the accuracies of tasks or sources.

    Its interval combines the distances of their lower and upper bounds separately (MOVER: Zou and Donner 2008,
    "Construction of confidence limits about effect measures"), so that it is as asymmetric as theirs.
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


def _compute_share(group: Sequence[Row], column: str) -> float:
    return fmean(bool(row[column]) for row in group)


def _compute_mean(values: Sequence[float]) -> float | None:
    """Return the mean, or None without values, which a table shows as a dash."""
    return fmean(values) if values else None
