"""Evaluate a policy on held-out problems during training: greedy, and sampled as in training.

Random numbers depend only on the run's seed and the problem, so two evaluations of a run differ only by the policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from qed.config.phases import Settings
from qed.evaluation.rows import build_rows, format_figures
from qed.evaluation.summary import summarize
from qed.guards.signals import check_signals
from qed.loops.setup import Setup
from qed.rollout.stages import grade, sample
from qed.runs.run import Row
from qed.sampling.base import Sampling
from qed.types import Problem, Request


def evaluate(
    setup: Setup, settings: Settings, step: int, benchmarks: Mapping[str, Sequence[Problem]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Answer held-out problems, write all answers and a summary into the run's folder, and print the figures.

    Returns:
        for each task and decoding (`greedy`, `sampled`) the figures of `summarize`.
    """
    summaries: dict[str, dict[str, dict[str, Any]]] = {}
    for task, problems in benchmarks.items():
        decodings = {"greedy": (0.0, 1)}
        if settings.evaluation.samples:
            decodings["sampled"] = (settings.sampling.temperature, settings.evaluation.samples)
        answers: list[Row] = []
        summaries[task] = {}
        for decoding, (temperature, count) in decodings.items():
            check_signals("evaluate")
            sampling = Sampling(temperature, settings.sampling.max_tokens, setup.template.stop)
            address = (settings.run.seed, "evaluation", decoding)
            requests = [Request(problem, count) for problem in problems]
            groups = sample(requests, setup.sampler, setup.template, sampling, address, version=step)
            grade(groups, setup.evaluator)
            rows = build_rows(groups, decoding, step)
            answers += rows
            judged_by = setup.evaluator.judge
            summaries[task][decoding] = {"temperature": temperature, "judged_by": judged_by, **summarize(rows)}
        setup.run.evaluation(step, task, answers, summaries[task])
        setup.console.say(
            f"  step {step}, {task}: " + "; ".join(format_figures(d, s) for d, s in summaries[task].items())
        )
    return summaries
