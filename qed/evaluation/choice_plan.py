"""Plan an evaluation by log-likelihoods of choices: its model, its items, and the chunks of problems of each task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from qed.config import plugins
from qed.config.task_names import parse_task
from qed.console.live import Console
from qed.data import tasks
from qed.data.splits import choose_columns, parse_pairs
from qed.errors import UsageError
from qed.evaluation import benchmarks
from qed.evaluation.benchmarks import Benchmark
from qed.evaluation.choice_formats import MMLU_SHOTS, build_items, find_format, require_choices
from qed.evaluation.finish import TaskRecord
from qed.evaluation.likelihood import TIER, ChoicePolicy, ChoiceScorer
from qed.evaluation.plan import BATCHES_PER_CHUNK, Plan, TaskPlan
from qed.evaluation.request import EvaluationRequest
from qed.evaluation.weights import hash_weights
from qed.models import threads
from qed.models.load import pick_device, read_window
from qed.models.precision import read_precision
from qed.randomness import derive_seed
from qed.rollout.policy import load_policy
from qed.runs.run import Row
from qed.types import Problem


def plan_choices(request: EvaluationRequest, console: Console) -> Plan:
    """Load the model and the tasks, and write the contexts and choices of each question.

    Raises:
        UsageError: the model is only on a server, or a task is not multiple choice.
        DataError: a task lacks the requested few-shot examples.
    """
    settings = request.settings
    if request.endpoint is not None or settings.sampling.sampler == "server":
        raise UsageError(
            "--scoring likelihood needs the log-probs of given texts, which qed computes with a model that it loads "
            "here; servers and endpoints only sample. Name the model's folder with --model, without --sampler or --url."
        )
    threads.set_threads(settings.run.threads, settings.run.matmul_precision)
    loaded = benchmarks.load_benchmarks(settings, request.tasks, 1, (request.limit, request.subset_seed))
    for bench in loaded:
        bench.report_rows(console)
        require_choices(bench.name, bench.problems)
    problems = [problem for bench in loaded for problem in bench.problems]
    settings = replace(settings, data=loaded[0].data)
    policy = load_policy(settings, problems, pick_device(settings.model.device), None)
    policy.model.requires_grad_(False)
    precision, rows = read_precision(settings.model), settings.sampling.rows_per_batch
    scorer = ChoiceScorer(policy.model, policy.tokenizer, read_window(policy.model), precision, rows)
    return Plan(request, [_plan_task(bench, request, scorer) for bench in loaded], policy, {})


def _plan_task(bench: Benchmark, request: EvaluationRequest, scorer: ChoiceScorer) -> TaskPlan:
    examples = _load_examples(bench.name, request) if request.shots else []
    items = build_items(bench.name, bench.problems, examples, request.shots or 0)
    form = find_format(bench.name).name
    about = f"{bench.label}: {len(items)} problems by the log-likelihood of their choices, format {form}"
    about += f", {request.shots} worked examples" if request.shots else ""
    own = ChoicePolicy(scorer, {item.problem.id: item for item in items}, about)
    # Contexts of similar length need the least padding; the order does not depend on what is finished.
    by_length = sorted(items, key=lambda item: len(item.context))
    size = BATCHES_PER_CHUNK * request.settings.sampling.rows_per_batch
    chunks = [[(item.problem, 1) for item in by_length[at : at + size]] for at in range(0, len(items), size)]
    ids = [problem.id for problem in bench.problems]
    asked = _describe_request(bench, request, [item.context for item in items])
    record = TaskRecord(bench.label, request.decoding, True, asked, ids, {"judged_by": TIER}, {**bench.left_out}, {})
    return TaskPlan(record, bench, bench.problems, chunks, request.sampling, own, None)


def _load_examples(name: str, request: EvaluationRequest) -> list[Problem]:
    """Load the few-shot examples of a task: the split `dev` of the same source."""
    task, data = parse_task(name), request.settings.data
    splits = getattr(plugins.load_leaf("tasks", task.leaf), "SPLITS", ())
    if MMLU_SHOTS not in splits:
        raise UsageError(f"--shots with --scoring likelihood needs a split {MMLU_SHOTS}, which {name} does not have.")
    other = f"{task.leaf}:{MMLU_SHOTS}" + (f"@{task.path}" if task.path else "")
    mapping = choose_columns(data.map, other, evaluated=True)
    return tasks.load_task(other, MMLU_SHOTS, mapping, Counter(), parse_pairs(data.revisions, "data.revisions"))


def _describe_request(bench: Benchmark, request: EvaluationRequest, contexts: Sequence[str]) -> Row:
    """Describe everything that determines the scores of a task."""
    settings = request.settings
    golds = (f"{each.id} {each.answer}" for each in bench.problems)
    return {
        "model": request.model,
        "weights": hash_weights(Path(settings.model.name)),
        "revision": settings.model.revision,
        "precision": settings.model.precision,
        "task": bench.name,
        "problems": f"{derive_seed(*golds, *contexts):016x}",
        "samples": 1,
        "scoring": request.scoring,
        "format": find_format(bench.name).name,
        "shots": request.shots or 0,
        "rows_per_batch": settings.sampling.rows_per_batch,
        "seed": settings.run.seed,
    }
