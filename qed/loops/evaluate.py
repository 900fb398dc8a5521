"""Evaluate a policy on held-out problems during training: with greedy decoding, and sampled as `evaluation.*` sets.

The prompt is always that of the run's last phase, so that all evaluations of a run are comparable.

Random numbers depend only on the run's seed and the problem, so two evaluations of a run differ only in the policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from qed.config.phases import Settings
from qed.data.prompts.base import PromptTemplate
from qed.evaluation.rows import build_rows, format_figures
from qed.evaluation.summary import summarize
from qed.guards.signals import check_signals
from qed.loops.setup import Setup
from qed.rewards.grader import Grader
from qed.rollout.stages import RequestBatch, grade, sample_batches
from qed.runs.run import Row
from qed.sampling.base import Sampler, Sampling, build_sampling, load_remote
from qed.types import Problem, Request

Summaries = dict[str, dict[str, Any]]  # the figures of `summarize` by decoding (`greedy`, `sampled`)


@dataclass(frozen=True)
class MeasuredTask:
    """The answers to a task, one row each, and their figures."""

    answers: list[Row]
    summaries: Summaries


def evaluate(
    setup: Setup, settings: Settings, step: int, benchmarks: Mapping[str, Sequence[Problem]]
) -> dict[str, Summaries]:
    """Answer held-out problems, write all answers and a summary into the run's folder, and print the figures.

    Returns:
        The figures of each task.
    """
    if setup.lend_sampler is None:
        load_remote(setup.sampler, setup.model, step)  # an offline phase sends its weights only here
    with setup.lend_sampler() if setup.lend_sampler is not None else nullcontext(setup.sampler) as sampler:
        return _evaluate_with(sampler, setup, settings, step, benchmarks)


def _evaluate_with(
    sampler: Sampler, setup: Setup, settings: Settings, step: int, benchmarks: Mapping[str, Sequence[Problem]]
) -> dict[str, Summaries]:
    """Evaluate with a sampler that has the policy's weights; see `evaluate`."""
    template = setup.materials[-1].template
    summaries: dict[str, Summaries] = {}
    for task, problems in benchmarks.items():
        measured = measure_task(problems, sampler, template, setup.evaluator, settings, step)
        record_task(setup, step, task, measured)
        summaries[task] = measured.summaries
    return summaries


def measure_task(
    problems: Sequence[Problem],
    sampler: Sampler,
    template: PromptTemplate,
    grader: Grader,
    settings: Settings,
    step: int,
) -> MeasuredTask:
    """Answer and grade the held-out problems of a task with each decoding; see `evaluate`."""
    decodings = list_decodings(settings, template.stop)
    requests = {name: [Request(problem, count) for problem in problems] for name, (_, count) in decodings.items()}
    batches = [
        RequestBatch(requests[name], sampling, (settings.run.seed, "evaluation", name))
        for name, (sampling, _) in decodings.items()
    ]
    sampled = sample_batches(batches, sampler, template, step, grader=grader)
    answers: list[Row] = []
    summaries: Summaries = {}
    for name, batch, groups in zip(decodings, batches, sampled, strict=True):
        check_signals("evaluate")
        grade(groups, grader)
        rows = build_rows(groups, name, step, template.tags)
        answers += rows
        how = {"temperature": batch.sampling.temperature, "judged_by": grader.judge}
        summaries[name] = {**how, **summarize(rows)}
    return MeasuredTask(answers, summaries)


def record_task(setup: Setup, step: int, task: str, measured: MeasuredTask) -> None:
    """Write all answers and a summary into the run's folder, and print the figures."""
    setup.run.evaluation(step, task, measured.answers, measured.summaries)
    setup.console.say(
        f"  step {step}, {task}: " + "; ".join(format_figures(d, s) for d, s in measured.summaries.items())
    )


def list_decodings(settings: Settings, stop: tuple[str, ...]) -> dict[str, tuple[Sampling, int]]:
    """Return the sampling settings and the number of answers per problem of each decoding, by its name."""
    evaluation = settings.evaluation
    training = replace(build_sampling(settings.sampling, stop), record=False)
    decodings = {"greedy": (replace(training, temperature=0.0, top_p=1.0, top_k=0, min_p=0.0), 1)}
    if evaluation.samples:
        given = {name: getattr(evaluation, name) for name in ("temperature", "top_p", "top_k", "min_p")}
        sampled = replace(training, **{name: value for name, value in given.items() if value is not None})
        decodings["sampled"] = (sampled, evaluation.samples)
    return decodings
