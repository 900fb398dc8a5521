"""Evaluate a model on benchmarks, outside of training: `qed evaluate --model …`.

Problems are sampled in chunks of similar prompt length. A chunk's answers are saved as soon as they are graded, and an
interrupted evaluation continues with the missing chunks. Random draws depend only on the problem, and a chunk always
has the same problems, so the result equals that of an uninterrupted evaluation.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGINT
from statistics import fmean
from typing import Any

from qed.config.callables import leave_out_missing
from qed.config.phases import Settings
from qed.console.live import Console
from qed.data.prompts.base import PromptTemplate
from qed.data.splits import load_prompt, resolve_prompt_name, resolve_reward_names
from qed.errors import DataError, Interrupted, UsageError
from qed.evaluation import benchmarks
from qed.evaluation.benchmarks import Benchmark
from qed.evaluation.outputs import write_outputs
from qed.evaluation.rows import build_rows
from qed.evaluation.store import Store
from qed.evaluation.summary import average_tasks, summarize
from qed.evaluation.table import show_summary
from qed.guards.redaction import redact
from qed.guards.signals import EXIT_CODES, watch_signals
from qed.guards.watchdog import HangReport, enter_stage, watch
from qed.models import threads
from qed.models.load import check_name, pick_device, read_window
from qed.randomness import derive_seed
from qed.rewards.grader import Grader
from qed.rollout.agreement import IN_EVALUATION, require_sampler
from qed.rollout.grader import load_evaluator, load_grader
from qed.rollout.policy import Policy, load_policy, report_handover
from qed.rollout.stages import flatten, grade, sample
from qed.runs.environment import describe_environment
from qed.runs.run import Row, name_step_folder
from qed.sampling.base import Sampling
from qed.types import Problem, Request

BATCHES_PER_CHUNK = 4  # when an answer ends early, the next one of the chunk takes its place in the batch
DEFAULT_TOKENS = 2_048
TOO_LONG = "prompts longer than the window"
Chunk = list[tuple[Problem, int]]  # problems that are sampled together, each with its number of answers


@dataclass(frozen=True)
class EvaluationRequest:
    """The request of an evaluation.

    Args:
        settings: settings of the model, prompt and reward, or of the evaluated run.
        tasks: names of tasks; empty uses the held-out problems of the run.
        sampling: sampling parameters; `max_tokens` 0 uses half of the window, at most 2,048.
        samples: answers per problem; 0 uses each benchmark's number.
        limit: number of problems of each task, from the start; 0 uses all.
        folder, step: where the answers are written.
        model: the model's name as given.
        overwrite: replace another evaluation in the folder.
        command: the command line.
        json: keep stdout for the result.
    """

    settings: Settings
    tasks: tuple[str, ...]
    sampling: Sampling
    samples: int
    limit: int
    folder: Path
    step: int
    model: str
    overwrite: bool = False
    command: tuple[str, ...] = ()
    json: bool = False

    @property
    def decoding(self) -> str:
        """Return the name of the decoding."""
        return "greedy" if self.sampling.temperature == 0 else "sampled"


@watch_signals()
@threads.restore_threads()
def run_evaluation(request: EvaluationRequest) -> dict[str, Any]:
    """Sample a model's answers to all problems, write answers and figures, and print the figures.

    Returns:
        the folder, the figures of `summarize` for each task, and their unweighted mean.
    """
    settings = request.settings
    check_name(settings.model.name)
    console = Console(request.json)
    request = _leave_out_missing(request, console)
    folder = request.folder
    hint = f"Finished problems are saved in {folder}; continue with the same command and --out {folder}"
    with watch(HangReport(folder / "hang.txt", hint, "--watchdog"), settings.run.watchdog):
        return _evaluate_model(request, console, f"{hint}.")


def _leave_out_missing(request: EvaluationRequest, console: Console) -> EvaluationRequest:
    """Return the request without those functions in the run's reward that only the program that trained has."""
    data = request.settings.data
    reward = leave_out_missing(data.reward)
    if reward == data.reward:
        return request
    data = replace(data, reward=reward, reward_options=data.reward_options if reward else ())
    data = data if reward else replace(data, reward=resolve_reward_names(replace(data, reward=("auto",))))
    console.say(
        f"The run's reward has a function that only its Python program has: answers are judged by "
        f"{', '.join(data.reward)}. Another reward is given with --reward, in Python with reward=FUNCTION."
    )
    return replace(request, settings=replace(request.settings, data=data))


def _evaluate_model(request: EvaluationRequest, console: Console, hint: str) -> dict[str, Any]:
    settings = request.settings
    try:
        threads.set_threads(settings.run.threads, settings.run.matmul_precision)
        loaded = benchmarks.load_benchmarks(settings, request.tasks, request.samples, request.limit)
        for bench in loaded:
            bench.report_problems(console)
        problems = [problem for bench in loaded for problem in bench.problems]
        policy = load_policy(replace(settings, data=loaded[0].data), problems, pick_device(settings.model.device), None)
        report_handover(policy.sampler, console.say)
        # By default half of the window is for the prompt.
        max_tokens = request.sampling.max_tokens or min(DEFAULT_TOKENS, read_window(policy.model) // 2)
        checks = {bench.label: _check_sampler(bench, request, policy, max_tokens, console) for bench in loaded}
        figures = {bench.label: _evaluate_benchmark(bench, request, policy, max_tokens, console) for bench in loaded}
    except (Interrupted, KeyboardInterrupt) as stopped:
        code = stopped.exit_code if isinstance(stopped, Interrupted) else EXIT_CODES[SIGINT]
        raise Interrupted(f"Interrupted. {hint}", code) from stopped
    finally:
        console.end_phase()
    summaries = {bench.label: figures[bench.label] for bench in loaded if bench.judged}
    outputs = {bench.label: figures[bench.label]["outputs"] for bench in loaded if not bench.judged}
    result: dict[str, Any] = {
        "folder": str(request.folder),
        "step": request.step,
        "tasks": summaries,
        "outputs": outputs,
    }
    result["sampler_check"] = checks
    if summaries:
        show_summary(console, summaries)
        result["overall"] = average_tasks(list(summaries.values()))
    console.say(f"Every answer is in {request.folder / name_step_folder(request.step)}.")
    return result


def _check_sampler(
    bench: Benchmark, request: EvaluationRequest, policy: Policy, max_tokens: int, console: Console
) -> Row:
    """Check that the sampler agrees with the model's forward pass, before anything is sampled or written."""
    enter_stage("preflight", request.step)
    template = PromptTemplate(load_prompt(bench.data), policy.tokenizer, (policy.template.end,))
    sampling = replace(request.sampling, max_tokens=max_tokens)
    return require_sampler(policy, template, bench.problems, sampling, request.settings, console, IN_EVALUATION)


def _evaluate_benchmark(
    bench: Benchmark, request: EvaluationRequest, policy: Policy, max_tokens: int, console: Console
) -> Row:
    """Evaluate a task, sampling only the missing answers, and return its figures."""
    stop = request.settings.sampling.stop
    template = PromptTemplate(load_prompt(bench.data), policy.tokenizer, (policy.template.end,), stop)
    policy = replace(policy, template=template)
    sampling = replace(request.sampling, max_tokens=max_tokens, stop=template.stop)
    ids = [problem.id for problem in bench.problems]
    lengths = dict(zip(ids, template.lengths(bench.problems), strict=True))
    kept = _drop_long_prompts(bench, lengths, policy.max_prompt_tokens(max_tokens), console)
    reward_grader = load_grader(bench.data, max_tokens)
    grader = load_evaluator(bench.data, max_tokens, reward_grader)
    description = _describe_request(bench, kept, request, sampling)
    if reward_grader.judge is None:
        description["judged_by"] = grader.judge
    store = Store(request.folder, request.step, bench.label, request.decoding, description, request.overwrite)
    if store.summary is not None:
        console.say(f"{bench.label}: already evaluated with these settings; nothing is sampled again.")
        return store.summary
    _write_environment(request, policy)
    # Batches of similar prompt length waste the least; the order does not depend on what is finished.
    chunks = _split_chunks(
        sorted(kept, key=lambda problem: lengths[problem.id]),
        bench,
        BATCHES_PER_CHUNK * request.settings.sampling.rows_per_batch,
    )
    console.say(bench.describe(kept, sampling, request.settings, description.get("judged_by")))
    _sample(chunks, store, request, sampling, policy, grader, console)
    left_out = {**bench.left_out, TOO_LONG: len(bench.problems) - len(kept)}
    rows = store.order([problem.id for problem in kept])
    if not bench.judged:
        return write_outputs(bench, store, request.model, console)
    figures = {"temperature": sampling.temperature, "judged_by": grader.judge, **summarize(rows)}
    return store.finish({**figures, "left_out": {why: count for why, count in left_out.items() if count}})


def _drop_long_prompts(bench: Benchmark, lengths: Mapping[str, int], limit: int, console: Console) -> list[Problem]:
    """Return the problems whose prompt has at most `limit` tokens; the others are counted and reported."""
    kept = [problem for problem in bench.problems if lengths[problem.id] <= limit]
    if not kept:
        raise DataError(
            f"No problem of {bench.label} fits: its shortest prompt has {min(lengths.values())} tokens, and besides "
            f"the longest answer the window has space for {max(0, limit)}. Use a smaller --max-tokens, or a model "
            "with a longer window."
        )
    if len(kept) < len(bench.problems):
        console.say(f"{bench.label}: left out {len(bench.problems) - len(kept)} {TOO_LONG} ({limit} tokens).")
    return kept


def _sample(
    chunks: Sequence[Chunk],
    store: Store,
    request: EvaluationRequest,
    sampling: Sampling,
    policy: Policy,
    grader: Grader,
    console: Console,
) -> None:
    """Sample the missing answers, chunk by chunk."""
    done = store.find_finished({problem.id: count for chunk in chunks for problem, count in chunk})
    remaining = [chunk for chunk in chunks if not all(problem.id in done for problem, _ in chunk)]
    total = sum(map(len, chunks))
    finished = total - sum(map(len, remaining))
    if finished:
        console.say(f"{finished} of {total} problems are already finished.")
    console.phase("", finished, "problem")
    address = (request.settings.run.seed, "evaluation", request.decoding)
    for chunk in remaining:
        enter_stage("evaluate", request.step)
        began = time.perf_counter()
        requests = [Request(problem, count) for problem, count in chunk]
        groups = sample(requests, policy.sampler, policy.template, sampling, address, version=request.step)
        grade(groups, grader)
        store.add(build_rows(groups, request.decoding, request.step, policy.template.thought_tags))
        finished += len(chunk)
        tokens = sum(len(rollout.output) for rollout in flatten(groups))
        speed = {"perf/tokens_per_s": tokens / (time.perf_counter() - began)}
        console.step(finished, total, {**_format_progress(store.rows), **speed})
    console.end_phase()


def _format_progress(rows: Sequence[Row]) -> dict[str, float]:
    return {
        "accuracy": fmean(row["correct"] for row in rows),
        "length/mean": fmean(row["n_tokens"] for row in rows),
        "length/truncated_frac": fmean(row["stop_reason"] == "length" for row in rows),
    }


def _split_chunks(problems: Sequence[Problem], bench: Benchmark, rows: int) -> list[Chunk]:
    """Split the problems into chunks of at most `rows` answers."""
    chunks: list[Chunk] = [[]]
    for problem in problems:
        if chunks[-1] and sum(count for _, count in chunks[-1]) + bench.samples_of(problem) > rows:
            chunks.append([])
        chunks[-1].append((problem, bench.samples_of(problem)))
    return chunks


def _describe_request(bench: Benchmark, kept: Sequence[Problem], request: EvaluationRequest, sampling: Sampling) -> Row:
    """Describe everything that determines the answers of a task."""
    settings = request.settings
    counts = [bench.samples_of(problem) for problem in kept]
    return {
        "model": request.model,
        "weights": hash_weights(Path(settings.model.name)),
        "revision": settings.model.revision,
        "precision": settings.model.precision,
        "task": bench.name,
        "problems": f"{derive_seed(*(f'{each.id} {each.question} {each.answer}' for each in kept)):016x}",
        "samples": max(counts) if len(set(counts)) == 1 else f"{derive_seed(*counts):016x}",
        "prompt": resolve_prompt_name(bench.data),
        "prompt_options": list(bench.data.prompt_options),
        # Only where it is given, so that evaluations of earlier versions go on.
        **({"system_prompt": bench.data.system_prompt} if bench.data.system_prompt else {}),
        "reward": list(resolve_reward_names(bench.data)),
        "reward_options": list(bench.data.reward_options),
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "max_tokens": sampling.max_tokens,
        "rows_per_batch": settings.sampling.rows_per_batch,
        "sampler": settings.sampling.sampler,
        "seed": settings.run.seed,
    }


def hash_weights(folder: Path) -> str:
    """Hash the names, sizes and times of a folder's weights: a rewritten checkpoint counts as another model."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    stats = [(file.name, file.stat()) for file in files]
    return f"{derive_seed(*(f'{name} {at.st_size} {at.st_mtime_ns}' for name, at in stats)):016x}" if stats else ""


def _write_environment(request: EvaluationRequest, policy: Policy) -> None:
    """Write the environment and the command to a folder of evaluations; a run's folder already has them."""
    folder = request.folder
    if (folder / "env.json").exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "env.json").write_text(
            json.dumps(describe_environment(policy.model.device, threads.describe_compute()), indent=1),
            encoding="utf-8",
        )
        (folder / "command.txt").write_text(redact(shlex.join(request.command)) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made or written: {error.strerror}.") from error
