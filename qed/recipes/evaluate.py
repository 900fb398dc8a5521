"""Measure a policy on held-out problems while it is trained: greedy, and sampled as in training.

The draws of an evaluation belong to the run's seed and the problem alone, so two evaluations of a run differ by the
policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qed.evaluation.marks import marks
from qed.evaluation.summary import summarise
from qed.guards.signals import poll
from qed.phases import Settings
from qed.recipes.setup import Setup
from qed.rollouts import flat, grade, sample
from qed.runs import Row, as_row
from qed.samplers.base import Sampling
from qed.types import Groups, Problem, Request

# What metrics.jsonl says of one decoding; the rest stands in summary.json.
METRICS = {
    "ci_lo": "ci_lo",
    "ci_hi": "ci_hi",
    "format": "format",
    "reward": "reward",
    "mean_tokens": "length/mean",
    "right_tokens": "length/right_mean",
    "wrong_tokens": "length/wrong_mean",
    "truncated_frac": "length/truncated_frac",
}


def evaluate(
    setup: Setup, settings: Settings, step: int, benches: Mapping[str, Sequence[Problem]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Ask held-out problems, write all answers and a summary into the run's folder, and say the outcome.

    Returns:
        for each task and decoding (`greedy`, `sampled`) the figures of `summarise`.
    """
    summaries: dict[str, dict[str, dict[str, Any]]] = {}
    for task, problems in benches.items():
        decodings = {"greedy": (0.0, 1)}
        if settings.evaluation.samples:
            decodings["sampled"] = (settings.sampling.temperature, settings.evaluation.samples)
        answered: list[Row] = []
        summaries[task] = {}
        for decoding, (temperature, count) in decodings.items():
            poll("evaluate")
            sampling = Sampling(temperature, settings.sampling.max_tokens, setup.template.stop)
            address = (settings.run.seed, "evaluation", decoding)
            asked = [Request(problem, count) for problem in problems]
            groups = sample(asked, setup.sampler, setup.template, sampling, address, version=step)
            grade(groups, setup.evaluator)
            rows = as_rows(groups, decoding, step)
            answered += rows
            judged_by = setup.evaluator.judge
            summaries[task][decoding] = {"temperature": temperature, "judged_by": judged_by, **summarise(rows)}
        setup.run.evaluation(step, task, answered, summaries[task])
        setup.console.say(f"  step {step}, {task}: " + "; ".join(say(d, s) for d, s in summaries[task].items()))
    return summaries


def as_rows(groups: Groups, decoding: str, step: int) -> list[Row]:
    """Graded answers as the rows of an evaluation."""
    return [{"decoding": decoding, **as_row(rollout, step), **marks(rollout)} for rollout in flat(groups)]


def as_metrics(summaries: dict[str, dict[str, dict[str, Any]]]) -> dict[str, float]:
    """Summaries as entries of metrics.jsonl."""
    return {
        f"eval/{task}/{decoding}/{name}": value
        for task, decodings in summaries.items()
        for decoding, figures in decodings.items()
        for name, value in _entries(figures).items()
        if value is not None
    }


def _entries(figures: dict[str, Any]) -> dict[str, Any]:
    several = figures["k"] > 1
    estimates = {f"{name}@{k}": each["value"] for name in ("pass", "maj") for k, each in figures[name].items()}
    kinds = {
        f"{name}/{kind}": each["accuracy"]
        for name in ("subject", "level")
        for kind, each in figures["by"].get(name, {}).items()
    }
    return {
        f"avg@{figures['k']}": figures["accuracy"],
        **{shown: figures[name] for name, shown in METRICS.items()},
        **(estimates if several else {}),
        **figures["classes"],
        **kinds,
    }


def say(decoding: str, figures: dict[str, Any]) -> str:
    """One decoding's figures in a few words."""
    return (
        f"{decoding} {figures['accuracy']:.1%} [{figures['ci_lo']:.1%}, {figures['ci_hi']:.1%}] right, "
        f"{figures['format']:.1%} in format, {figures['mean_tokens'] or 0:.1f} tokens"
    )
