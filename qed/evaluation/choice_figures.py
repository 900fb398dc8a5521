"""Summarize questions that were scored by the log-likelihoods of their choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qed.console.live import Console
from qed.evaluation.summary import compute_accuracy, group_by_problem
from qed.evaluation.table import format_interval

# Additional accuracies and their columns: log-likelihoods normalized by characters and by bytes of the choices.
FIGURES = {"acc_norm": "correct_norm", "acc_bytes": "correct_bytes"}


def summarize_choices(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute the figures specific to log-likelihood scoring; empty for other rows.

    `acc_norm` and `acc_bytes` are the accuracies, with intervals, of the choice that is most likely per character and
    per byte; `greedy` is the share of questions whose right choice greedy decoding would write; `cut` counts contexts
    that were truncated at the start.
    """
    if not rows or "choice_logps" not in rows[0]:
        return {}
    figures: dict[str, Any] = {}
    for name, column in FIGURES.items():
        groups = group_by_problem([{**row, "correct": row[column]} for row in rows])
        figures[name] = {key: value for key, value in compute_accuracy(list(groups.values())).items() if key != "n"}
    greedy = sum(row["choice_greedy"][row["gold_choice"]] for row in rows)
    return {**figures, "greedy": greedy / len(rows), "cut": sum(row["cut_tokens"] > 0 for row in rows)}


def show_choices(console: Console, summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures specific to log-likelihood scoring."""
    rows = [
        (task, *(format_interval(figures[name]) for name in FIGURES), f"{100 * figures['greedy']:.1f}")
        for task, figures in summaries.items()
        if "acc_norm" in figures
    ]
    if rows:
        title = (
            "Right by log-likelihood per character and per byte of a choice; greedy decoding writes the right one, %"
        )
        console.table(title, ("task", "acc_norm [95 %]", "acc_bytes [95 %]", "greedy"), rows)
    for task, figures in summaries.items():
        if figures.get("cut"):
            console.say(f"{task}: {figures['cut']:,} contexts exceed the context window and were cut at the start.")
