"""Convert graded answers to rows of an evaluation, and its figures to metrics and to one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qed.evaluation.endpoint.ask import EndpointRollout
from qed.evaluation.likelihood import ChoiceRollout
from qed.evaluation.per_sample_metrics import compute_sample_metrics
from qed.evaluation.stored_problems import write_count
from qed.grading.policy import MATH, Policy
from qed.rollout.stages import flatten
from qed.runs.run import Row, build_row
from qed.types import Groups, Rollout

# The entries of a decoding in metrics.jsonl; the rest is in summary.json.
METRICS = {
    "ci_lo": "ci_lo",
    "ci_hi": "ci_hi",
    "format": "format",
    "reward": "reward",
    "mean_tokens": "length/mean",
    "mean_turns": "turns/mean",
    "right_tokens": "length/right_mean",
    "wrong_tokens": "length/wrong_mean",
    "truncated_frac": "length/truncated_frac",
    "reasoning_frac": "reasoning/frac",
    "reasoning_chars": "reasoning/chars",
}


def build_rows(groups: Groups, decoding: str, step: int, tags: Sequence[str] = (), policy: Policy = MATH) -> list[Row]:
    """Build the rows of an evaluation from graded answers.

    `tags` are those of the prompt, see `compute_sample_metrics`; `policy` is the grading policy of the final answer's
    columns.
    """
    return [
        {
            "decoding": decoding,
            **build_row(rollout, step),
            **(rollout.describe() if isinstance(rollout, EndpointRollout) else {}),
            **_measure(rollout, tags, policy),
        }
        for rollout in flatten(groups)
    ]


def _measure(rollout: Rollout, tags: Sequence[str], policy: Policy) -> Row:
    """Compute the columns besides the grade: those of the choices, or those of a written answer."""
    return rollout.describe() if isinstance(rollout, ChoiceRollout) else compute_sample_metrics(rollout, tags, policy)


def build_metrics(summaries: dict[str, dict[str, dict[str, Any]]]) -> dict[str, float]:
    """Convert summaries to entries of metrics.jsonl."""
    return {
        f"eval/{task}/{decoding}/{name}": value
        for task, decodings in summaries.items()
        for decoding, figures in decodings.items()
        for name, value in _list_entries(figures).items()
        if value is not None
    }


def _list_entries(figures: dict[str, Any]) -> dict[str, Any]:
    several = figures["k"] > 1
    estimates = {f"{name}@{k}": each["value"] for name in ("pass", "maj") for k, each in figures[name].items()}
    kinds = {
        f"{name}/{kind}": each["accuracy"]
        for name in ("subject", "level")
        for kind, each in figures["by"].get(name, {}).items()
    }
    return {
        f"avg@{figures['k']}": figures["accuracy"],
        **{shown: figures.get(name) for name, shown in METRICS.items()},
        **(estimates if several else {}),
        **figures["classes"],
        **kinds,
    }


def format_figures(decoding: str, figures: dict[str, Any]) -> str:
    """Format the main figures of a decoding."""
    turns = f", {figures['mean_turns']:.2f} turns" if "mean_turns" in figures else ""
    failed = sum(figures.get(name, 0) for name in ("errors", "timeouts"))
    failures = f", the grader or the reward failed on {write_count(failed, 'answer')}" if failed else ""
    return (
        f"{decoding} {figures['accuracy']:.1%} [{figures['ci_lo']:.1%}, {figures['ci_hi']:.1%}] right, "
        f"{figures['format']:.1%} in format, {figures['mean_tokens'] or 0:.1f} tokens{turns}{failures}"
    )
