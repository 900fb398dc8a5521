"""Evaluate a policy on held-out problems during training: greedy, and sampled as `evaluation.*` says.

The prompt is that of the run's last phase, also before that phase, so that all evaluations of a run compare.

Random numbers depend only on the run's seed and the problem, so two evaluations of a run differ only by the policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from qed.config.phases import Settings
from qed.evaluation.rows import build_rows, format_figures
from qed.evaluation.summary import summarize
from qed.guards.signals import check_signals
from qed.loops.setup import Setup
from qed.rollout.stages import grade, sample
from qed.runs.run import Row
from qed.sampling.base import Sampler, Sampling, build_sampling, load_remote
from qed.types import Problem, Request


def evaluate(
    setup: Setup, settings: Settings, step: int, benchmarks: Mapping[str, Sequence[Problem]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Answer held-out problems, write all answers and a summary into the run's folder, and print the figures.

    Returns:
        for each task and decoding (`greedy`, `sampled`) the figures of `summarize`.
    """
    if setup.lend_sampler is None:
        load_remote(setup.sampler, setup.model, step)  # an offline phase does so only here
    with setup.lend_sampler() if setup.lend_sampler is not None else nullcontext(setup.sampler) as sampler:
        return _evaluate_with(sampler, setup, settings, step, benchmarks)


def _evaluate_with(
    sampler: Sampler, setup: Setup, settings: Settings, step: int, benchmarks: Mapping[str, Sequence[Problem]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Evaluate with a sampler that has the policy's weights; see `evaluate`."""
    summaries: dict[str, dict[str, dict[str, Any]]] = {}
    template = setup.materials[-1].template
    decodings = list_decodings(settings, template.stop)
    for task, problems in benchmarks.items():
        answers: list[Row] = []
        summaries[task] = {}
        for decoding, (sampling, count) in decodings.items():
            check_signals("evaluate")
            address = (settings.run.seed, "evaluation", decoding)
            requests = [Request(problem, count) for problem in problems]
            groups = sample(requests, sampler, template, sampling, address, version=step)
            grade(groups, setup.evaluator)
            rows = build_rows(groups, decoding, step, template.thought_tags)
            answers += rows
            how = {"temperature": sampling.temperature, "judged_by": setup.evaluator.judge}
            summaries[task][decoding] = {**how, **summarize(rows)}
        setup.run.evaluation(step, task, answers, summaries[task])
        setup.console.say(
            f"  step {step}, {task}: " + "; ".join(format_figures(d, s) for d, s in summaries[task].items())
        )
    return summaries


def list_decodings(settings: Settings, stop: tuple[str, ...]) -> dict[str, tuple[Sampling, int]]:
    """Return how held-out problems are answered, and the number of answers to each, by the name of the decoding."""
    evaluation = settings.evaluation
    training = replace(build_sampling(settings.sampling, stop), record=False)
    decodings = {"greedy": (replace(training, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0), 1)}
    if evaluation.samples:
        given = {name: getattr(evaluation, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        sampled = replace(training, **{name: value for name, value in given.items() if value is not None})
        decodings["sampled"] = (sampled, evaluation.samples)
    return decodings
