"""Measure one model on benchmarks, outside of training: `qed evaluate --model …`.

Problems are asked in chunks of like length. A chunk's answers are on disk as soon as they are graded, and an
interrupted evaluation goes on with the chunks that are missing: every draw belongs to its problem, and a chunk always
has the same problems, so the result is that of an evaluation never interrupted.
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

from qed.config.phases import Settings
from qed.console.live import Console
from qed.data.prompts.base import PromptTemplate
from qed.data.splits import load_prompt, resolve_prompt_name, resolve_reward_names
from qed.errors import DataError, Interrupted, UsageError
from qed.evaluation import benchmarks
from qed.evaluation.benchmarks import Benchmark
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
from qed.runs.run import Row, name_step_folder, write_whole
from qed.sampling.base import Sampling
from qed.types import Problem, Request

BATCHES_A_CHUNK = 4  # an answer that ends early leaves its place to the next one of its chunk
USUAL_TOKENS = 2_048
TOO_LONG = "prompts longer than the window"
Chunk = list[tuple[Problem, int]]  # problems that are asked at once, each with its number of answers


@dataclass(frozen=True)
class EvaluationRequest:
    """What an evaluation is asked to do.

    Args:
        settings: of the model, its prompt and reward; of a run where one is evaluated.
        tasks: as named; none takes what the run held out.
        sampling: `max_tokens` 0 takes what the window allows, at most 2,048.
        samples: answers to each problem; 0 takes each benchmark's own number.
        limit: problems of each task, the first ones; 0 takes all.
        folder, step: where the answers are written.
        model: as it was named.
        overwrite: replace what another evaluation has left there.
        command: as it was typed.
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
        """How answers are drawn, in a word."""
        return "greedy" if self.sampling.temperature == 0 else "sampled"


@watch_signals()
@threads.restore_threads()
def run_evaluation(asked: EvaluationRequest) -> dict[str, Any]:
    """Ask a model every problem, write all answers and the figures, and show them.

    Returns:
        the folder, for each task the figures of `summarise`, and their unweighted mean.
    """
    settings = asked.settings
    check_name(settings.model.name)
    console = Console(asked.json)
    kept = f"Finished problems are kept in {asked.folder}; go on with the same command and --out {asked.folder}"
    with watch(HangReport(asked.folder / "hang.txt", kept, "--watchdog"), settings.run.watchdog):
        return _evaluate_model(asked, console, f"{kept}.")


def _evaluate_model(asked: EvaluationRequest, console: Console, kept: str) -> dict[str, Any]:
    settings = asked.settings
    try:
        threads.set_threads(settings.run.threads, settings.run.matmul_precision)
        found = benchmarks.load_benchmarks(settings, asked.tasks, asked.samples, asked.limit)
        for bench in found:
            bench.report_problems(console)
        problems = [problem for bench in found for problem in bench.problems]
        policy = load_policy(replace(settings, data=found[0].data), problems, pick_device(settings.model.device), None)
        report_handover(policy.sampler, console.say)
        # By default half of the window is left for the prompt.
        longest = asked.sampling.max_tokens or min(USUAL_TOKENS, read_window(policy.model) // 2)
        checks = {bench.label: _check_sampler(bench, asked, policy, longest, console) for bench in found}
        figures = {bench.label: _evaluate_benchmark(bench, asked, policy, longest, console) for bench in found}
    except (Interrupted, KeyboardInterrupt) as stopped:
        code = stopped.exit_code if isinstance(stopped, Interrupted) else EXIT_CODES[SIGINT]
        raise Interrupted(f"Interrupted. {kept}", code) from stopped
    finally:
        console.end_phase()
    summaries = {bench.label: figures[bench.label] for bench in found if bench.judged}
    outputs = {bench.label: figures[bench.label]["outputs"] for bench in found if not bench.judged}
    result: dict[str, Any] = {"folder": str(asked.folder), "step": asked.step, "tasks": summaries, "outputs": outputs}
    result["sampler_check"] = checks
    if summaries:
        show_summary(console, summaries)
        result["overall"] = average_tasks(list(summaries.values()))
    console.say(f"Every answer is in {asked.folder / name_step_folder(asked.step)}.")
    return result


def _check_sampler(bench: Benchmark, asked: EvaluationRequest, policy: Policy, longest: int, console: Console) -> Row:
    """Whether the sampler answers as the model would, before anything is sampled or written."""
    enter_stage("preflight", asked.step)
    template = PromptTemplate(load_prompt(bench.data), policy.tokenizer, (policy.template.end,))
    sampling = replace(asked.sampling, max_tokens=longest)
    return require_sampler(policy, template, bench.problems, sampling, asked.settings, console, IN_EVALUATION)


def _evaluate_benchmark(
    bench: Benchmark, asked: EvaluationRequest, policy: Policy, longest: int, console: Console
) -> Row:
    """The figures of one task, sampled as far as they are not there."""
    template = PromptTemplate(load_prompt(bench.data), policy.tokenizer, (policy.template.end,))
    policy = replace(policy, template=template)
    sampling = replace(asked.sampling, max_tokens=longest, stop=template.stop)
    ids = [problem.id for problem in bench.problems]
    lengths = dict(zip(ids, template.lengths(bench.problems), strict=True))
    kept = _drop_long_prompts(bench, lengths, policy.max_prompt_tokens(longest), console)
    chosen = load_grader(bench.data, longest)
    grader = load_evaluator(bench.data, longest, chosen)
    known = _describe_request(bench, kept, asked, sampling)
    if chosen.judge is None:
        known["judged_by"] = grader.judge
    store = Store(asked.folder, asked.step, bench.label, asked.decoding, known, asked.overwrite)
    if store.summary is not None:
        console.say(f"{bench.label}: already evaluated with these settings; nothing is sampled again.")
        return store.summary
    _announce(asked, policy)
    # Answers of like length side by side waste the least; the order is the same whatever has been done before.
    chunks = _split_chunks(
        sorted(kept, key=lambda problem: lengths[problem.id]),
        bench,
        BATCHES_A_CHUNK * asked.settings.sampling.rows_per_batch,
    )
    console.say(bench.describe(kept, sampling, asked.settings, known.get("judged_by")))
    _sample(chunks, store, asked, sampling, policy, grader, console)
    left_out = {**bench.left_out, TOO_LONG: len(bench.problems) - len(kept)}
    rows = store.order([problem.id for problem in kept])
    if not bench.judged:
        return _write_outputs(bench, store, asked, console)
    figures = {"temperature": sampling.temperature, "judged_by": grader.judge, **summarize(rows)}
    return store.finish({**figures, "left_out": {why: count for why, count in left_out.items() if count}})


def _write_outputs(bench: Benchmark, store: Store, asked: EvaluationRequest, console: Console) -> Row:
    """The first answer to each instruction, as the programs that compare outputs read them."""
    problems = {problem.id: problem for problem in bench.problems}
    path = store.home / f"{bench.label}.outputs.json"
    outputs = [
        {
            "instruction": row["question"],
            "output": str(row["text"]).strip(),
            "generator": asked.model,
            "dataset": problems[row["group_id"]].meta.get("dataset") or row.get("data_source") or bench.label,
        }
        for row in store.rows
        if row["sample_id"] == 0
    ]
    write_whole(path, json.dumps(outputs, indent=1).encode())
    store.part.unlink(missing_ok=True)
    console.say(f"{bench.label}: there are no right answers to compare with; its {len(outputs)} outputs are in {path}.")
    return {"outputs": str(path)}


def _drop_long_prompts(bench: Benchmark, lengths: Mapping[str, int], room: int, console: Console) -> list[Problem]:
    """The problems whose prompt leaves room for an answer; the others are counted and said."""
    kept = [problem for problem in bench.problems if lengths[problem.id] <= room]
    if not kept:
        raise DataError(
            f"No problem of {bench.label} fits: its shortest prompt has {min(lengths.values())} tokens, and beside the "
            f"longest answer the model's window has room for {max(0, room)}. Take a smaller --max-tokens, or a model "
            "with a longer window."
        )
    if len(kept) < len(bench.problems):
        console.say(f"{bench.label}: left out {len(bench.problems) - len(kept)} {TOO_LONG} ({room} tokens).")
    return kept


def _sample(
    chunks: Sequence[Chunk],
    store: Store,
    asked: EvaluationRequest,
    sampling: Sampling,
    policy: Policy,
    grader: Grader,
    console: Console,
) -> None:
    """Ask the problems whose answers are missing, chunk by chunk."""
    done = store.is_finished({problem.id: count for chunk in chunks for problem, count in chunk})
    going = [chunk for chunk in chunks if not all(problem.id in done for problem, _ in chunk)]
    total = sum(map(len, chunks))
    finished = total - sum(map(len, going))
    if finished:
        console.say(f"{finished} of {total} problems are there already.")
    console.phase("", finished, "problem")
    address = (asked.settings.run.seed, "evaluation", asked.decoding)
    for chunk in going:
        enter_stage("evaluate", asked.step)
        began = time.perf_counter()
        requests = [Request(problem, count) for problem, count in chunk]
        groups = sample(requests, policy.sampler, policy.template, sampling, address, version=asked.step)
        grade(groups, grader)
        store.add(build_rows(groups, asked.decoding, asked.step))
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
    """The problems with their numbers of answers, cut so that about so many answers are sampled at once."""
    chunks: list[Chunk] = [[]]
    for problem in problems:
        if chunks[-1] and sum(count for _, count in chunks[-1]) + bench.samples_of(problem) > rows:
            chunks.append([])
        chunks[-1].append((problem, bench.samples_of(problem)))
    return chunks


def _describe_request(bench: Benchmark, kept: Sequence[Problem], asked: EvaluationRequest, sampling: Sampling) -> Row:
    """Everything that decides the answers of a task."""
    settings = asked.settings
    counts = [bench.samples_of(problem) for problem in kept]
    return {
        "model": asked.model,
        "weights": _hash_weights(Path(settings.model.name)),
        "revision": settings.model.revision,
        "precision": settings.model.precision,
        "task": bench.name,
        "problems": f"{derive_seed(*(f'{each.id} {each.question} {each.answer}' for each in kept)):016x}",
        "samples": max(counts) if len(set(counts)) == 1 else f"{derive_seed(*counts):016x}",
        "prompt": resolve_prompt_name(bench.data),
        "prompt_options": list(bench.data.prompt_options),
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


def _hash_weights(folder: Path) -> str:
    """The names, sizes and times of a folder's weights: a checkpoint that was written anew is another model."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    told = [(file.name, file.stat()) for file in files]
    return f"{derive_seed(*(f'{name} {at.st_size} {at.st_mtime_ns}' for name, at in told)):016x}" if told else ""


def _announce(asked: EvaluationRequest, policy: Policy) -> None:
    """What made a folder of evaluations alone; a run has said so when it began."""
    folder = asked.folder
    if (folder / "env.json").exists():
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "env.json").write_text(
            json.dumps(describe_environment(policy.model.device, threads.describe_compute()), indent=1),
            encoding="utf-8",
        )
        (folder / "command.txt").write_text(redact(shlex.join(asked.command)) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"The folder {folder} cannot be made or written: {error.strerror}.") from error
