"""Plan an evaluation before sampling: load the model and the tasks, and split each task into chunks of problems.

A chunk is a unit of work that depends neither on what is already finished nor on the number of processes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch

from qed.config.callables import leave_out_missing
from qed.console.live import Console
from qed.data.prompts.base import PromptTemplate
from qed.data.splits import load_prompt, resolve_reward_names
from qed.errors import DataError
from qed.evaluation import benchmarks
from qed.evaluation.benchmarks import Benchmark
from qed.evaluation.endpoint.ask import EndpointPolicy
from qed.evaluation.endpoint.model import EndpointSettings
from qed.evaluation.endpoint.prompts import EndpointTemplate
from qed.evaluation.few_shot import parse_shots
from qed.evaluation.finish import TaskRecord
from qed.evaluation.likelihood import ChoicePolicy
from qed.evaluation.outputs import list_references
from qed.evaluation.request import EvaluationRequest, describe_request
from qed.evaluation.served import describe_servers, is_served, list_urls, read_precision, require_one_version
from qed.evaluation.verdicts import SecondGrader, load_second_graders
from qed.evaluation.weights import hash_parameters
from qed.grading import symbolic
from qed.guards.redaction import redact
from qed.guards.watchdog import enter_stage
from qed.models import threads
from qed.models.load import pick_device, read_window
from qed.rewards.grader import Grader
from qed.rollout.agreement import IN_EVALUATION, require_sampler
from qed.rollout.grader import load_evaluator, load_grader
from qed.rollout.policy import Policy, load_policy, load_remote_policy, report_handover
from qed.runs.environment import describe_environment
from qed.runs.run import Row
from qed.sampling.base import Sampling
from qed.types import Problem

BATCHES_PER_CHUNK = 4  # an answer that ends early is replaced in the batch by the chunk's next one
DEFAULT_TOKENS = 2_048
TOO_LONG = "prompts longer than the window"
Chunk = list[tuple[Problem, int]]  # problems sampled together, each with its number of samples


@dataclass(frozen=True)
class TaskPlan:
    """A task that is ready to be sampled; `policy` includes the task's prompt, `also` lists additional graders."""

    record: TaskRecord
    bench: Benchmark
    kept: list[Problem]
    chunks: list[Chunk]
    sampling: Sampling
    policy: Policy | EndpointPolicy | ChoicePolicy
    grader: Grader | None  # None for choices
    also: tuple[SecondGrader, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The tasks of an evaluation, the model, and the results of the sampler check by task."""

    request: EvaluationRequest
    tasks: list[TaskPlan]
    policy: Policy | None  # None for an endpoint
    checks: Row

    @cached_property
    def whole(self) -> Row:
        """What all shards must have in common. Weights are compared by content, because copies differ in file times."""
        records = {task.record.label: asdict(task.record) for task in self.tasks}
        for record in records.values():
            record["settings"]["weights"] = ""
            record["figures"].pop("urls", None)  # shards may use different servers
        about = {
            "step": self.request.step,
            "model": self.request.model,
            "parameters": "" if self._model is None else hash_parameters(self._model),
        }
        chunks = {task.record.label: len(task.chunks) for task in self.tasks}
        whole: Row = json.loads(json.dumps({"kind": "evaluation", **about, "chunks": chunks, "tasks": records}))
        return whole

    @cached_property
    def about(self) -> Row:
        """What describes this process only, and may differ between shards."""
        device = torch.device("cpu") if self._model is None else self._model.device
        return {
            "command": redact(shlex.join(self.request.command)),
            "environment": describe_environment(device, threads.describe_compute(device)),
            "weights": {task.record.label: task.record.settings["weights"] for task in self.tasks},
            "checks": self.checks,
        }

    @property
    def _model(self) -> Any:
        """The loaded model; None if an endpoint or servers generate the answers."""
        return None if self.policy is None or is_served(self.policy) else self.policy.model


def plan_evaluation(request: EvaluationRequest, console: Console) -> Plan:
    """Load the model and the tasks, check the sampler, and split the problems into chunks."""
    settings = request.settings
    threads.set_threads(settings.run.threads, settings.run.matmul_precision)
    shots = parse_shots(request.exemplars, request.shots)
    drawn = request.limit, request.subset_seed
    loaded = benchmarks.load_benchmarks(settings, request.tasks, request.samples, drawn, shots)
    loaded = [bench.with_policy(request.policy) for bench in loaded]
    for bench in loaded:
        bench.report_problems(console)
    if request.endpoint is not None:
        tasks = [_plan_endpoint_task(bench, request, request.endpoint) for bench in loaded]
        return Plan(request, tasks, None, {})
    problems = [problem for bench in loaded for problem in bench.problems]
    settings = replace(settings, data=loaded[0].data)
    if settings.sampling.sampler == "server":
        policy = load_remote_policy(settings)
        require_one_version(policy, settings.model.name, console)
    else:
        device = pick_device(settings.model.device)
        threads.prepare_kernels(device, console.say)
        policy = load_policy(settings, problems, device, None)
    report_handover(policy.sampler, console.say)
    lengths = {bench.label: _choose_max_tokens(bench, request, policy) for bench in loaded}
    checks = {bench.label: _check_sampler(bench, request, policy, lengths[bench.label], console) for bench in loaded}
    planned = [_plan_task(bench, request, policy, lengths[bench.label], console) for bench in loaded]
    return Plan(request, planned, policy, checks)


def _choose_max_tokens(bench: Benchmark, request: EvaluationRequest, policy: Policy) -> int:
    """Return the token limit of an answer: as requested, else the benchmark's default, capped by the context window."""
    if request.sampling.max_tokens:
        return request.sampling.max_tokens
    window = read_window(policy.model)
    default = min(DEFAULT_TOKENS, window // 2)  # the other half is for the prompt
    usual = benchmarks.find_usual_tokens(bench.name)
    if usual <= default:
        return default
    template = PromptTemplate(load_prompt(bench.data), policy.tokenizer, policy.template.ends)
    longest = max(template.lengths(bench.problems))
    return max(default, min(usual, policy.max_prompt_tokens(0) - longest))


def leave_out_functions(request: EvaluationRequest, console: Console) -> EvaluationRequest:
    """Return the request without reward functions that were passed from Python and exist only in that program."""
    data = request.settings.data
    reward = leave_out_missing(data.reward)
    if reward == data.reward:
        return request
    data = replace(data, reward=reward or ("auto",), reward_options=data.reward_options if reward else ())
    data = data if reward else replace(data, reward=resolve_reward_names(data))
    console.say(
        f"The run's reward includes a function that exists only in its Python program, so answers are graded by "
        f"{', '.join(data.reward)}. To use another reward, give --reward, or in Python reward=FUNCTION."
    )
    return replace(request, settings=replace(request.settings, data=data))


def _check_sampler(
    bench: Benchmark, request: EvaluationRequest, policy: Policy, max_tokens: int, console: Console
) -> Row:
    """Check that the sampler's log-probs match the model's forward pass, before anything is sampled or written."""
    enter_stage("preflight", request.step)
    if is_served(policy):
        return {}
    template = PromptTemplate(load_prompt(bench.data), policy.tokenizer, policy.template.ends)
    sampling = replace(request.sampling, max_tokens=max_tokens)
    return require_sampler(policy, template, bench.problems, sampling, request.settings, console, IN_EVALUATION)


def _plan_task(
    bench: Benchmark, request: EvaluationRequest, policy: Policy, max_tokens: int, console: Console
) -> TaskPlan:
    settings = request.settings
    stop = (*settings.sampling.stop, *bench.stop)
    template = PromptTemplate(load_prompt(bench.data), policy.tokenizer, policy.template.ends, stop)
    policy = replace(policy, template=template)
    sampling = replace(request.sampling, max_tokens=max_tokens, stop=template.stop)
    ids = [problem.id for problem in bench.problems]
    lengths = dict(zip(ids, template.lengths(bench.problems), strict=True))
    kept = _drop_long_prompts(bench, lengths, policy.max_prompt_tokens(max_tokens), console)
    grader, record = _describe_task(bench, kept, request, sampling, policy)
    # Batches of similar prompt length need the least padding; the order does not depend on what is finished.
    by_length = sorted(kept, key=lambda problem: lengths[problem.id])
    chunks = _split_chunks(by_length, bench, BATCHES_PER_CHUNK * settings.sampling.rows_per_batch)
    return TaskPlan(record, bench, kept, chunks, sampling, policy, grader, _load_also(bench, request, sampling))


def _plan_endpoint_task(bench: Benchmark, request: EvaluationRequest, endpoint: EndpointSettings) -> TaskPlan:
    """Plan a task for an endpoint: each problem is a chunk, and the endpoint rejects prompts that are too long."""
    template = EndpointTemplate(load_prompt(bench.data), endpoint.api, (*request.settings.sampling.stop, *bench.stop))
    max_tokens = request.sampling.max_tokens or max(DEFAULT_TOKENS, benchmarks.find_usual_tokens(bench.name))
    sampling = replace(request.sampling, max_tokens=max_tokens, stop=template.stop)
    grader, record = _describe_task(bench, bench.problems, request, sampling, None)
    chunks = _split_chunks(bench.problems, bench, 1)
    policy, also = EndpointPolicy(endpoint, template), _load_also(bench, request, sampling)
    return TaskPlan(record, bench, bench.problems, chunks, sampling, policy, grader, also)


def _load_also(bench: Benchmark, request: EvaluationRequest, sampling: Sampling) -> tuple[SecondGrader, ...]:
    """Load the additional graders of a task; none if it has no gold answers."""
    names = request.also if bench.judged else ()
    return load_second_graders(names, sampling.max_tokens, load_prompt(bench.data).CHAT)


def _describe_task(
    bench: Benchmark, kept: list[Problem], request: EvaluationRequest, sampling: Sampling, policy: Policy | None
) -> tuple[Grader, TaskRecord]:
    """Return the grader of a task, and the record that its files hold besides the answers."""
    reward_grader = load_grader(bench.data, sampling.max_tokens)
    grader = load_evaluator(bench.data, sampling.max_tokens, reward_grader)
    symbolic.start_for(problem.answer for problem in kept)  # loads while the first answers are sampled
    asked = describe_request(bench, kept, request, sampling)
    figures: Row = {"temperature": sampling.temperature, "judged_by": grader.judge}
    if bench.subset:
        figures["subset"] = bench.subset
    if request.ties != "split":
        figures["maj_ties"] = request.ties
    if policy is not None and is_served(policy):
        asked |= {"precision": read_precision(policy), "server": describe_servers(policy)}
        figures["urls"] = list_urls(policy)
    if reward_grader.judge is None:
        asked["judged_by"] = grader.judge
    left_out = {**bench.left_out, TOO_LONG: len(bench.problems) - len(kept)}
    return grader, TaskRecord(
        bench.label,
        request.decoding,
        bench.judged,
        asked,
        [problem.id for problem in kept],
        figures,
        {why: count for why, count in left_out.items() if count},
        {} if bench.judged else list_references(bench),
    )


def _drop_long_prompts(bench: Benchmark, lengths: Mapping[str, int], limit: int, console: Console) -> list[Problem]:
    """Return the problems whose prompts have at most `limit` tokens; report how many are skipped."""
    kept = [problem for problem in bench.problems if lengths[problem.id] <= limit]
    if not kept:
        raise DataError(
            f"No problem of {bench.label} fits: its shortest prompt has {min(lengths.values())} tokens, and the "
            f"context window leaves {max(0, limit)} besides the longest answer. Use a smaller --max-tokens, or a model "
            "with a longer window."
        )
    if len(kept) < len(bench.problems):
        console.say(f"{bench.label}: left out {len(bench.problems) - len(kept)} {TOO_LONG} ({limit} tokens).")
    return kept


def _split_chunks(problems: Sequence[Problem], bench: Benchmark, rows: int) -> list[Chunk]:
    """Split the problems into chunks of at most `rows` answers."""
    chunks: list[Chunk] = [[]]
    for problem in problems:
        if chunks[-1] and sum(count for _, count in chunks[-1]) + bench.samples_of(problem) > rows:
            chunks.append([])
        chunks[-1].append((problem, bench.samples_of(problem)))
    return chunks
