"""Evaluate a model on benchmarks, outside of training: `qed evaluate --model …`.

Problems are sampled in chunks of similar prompt length. A chunk's answers are saved as soon as they are graded, and an
interrupted evaluation continues with the missing chunks. Random draws depend only on the problem, and a chunk always
has the same problems, so resuming, or merging shards, gives the same result as one uninterrupted evaluation.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from qed.console.live import Console
from qed.errors import Interrupted, UsageError, find_exit_code
from qed.evaluation.choice_plan import plan_choices
from qed.evaluation.endpoint.ask import EndpointPolicy, ask_endpoint
from qed.evaluation.finish import ENVIRONMENT, TaskRecord, build_result, finish_task, write_environment
from qed.evaluation.likelihood import ChoicePolicy
from qed.evaluation.outputs import require_own_outputs
from qed.evaluation.plan import Chunk, Plan, TaskPlan, leave_out_functions, plan_evaluation
from qed.evaluation.request import EvaluationRequest
from qed.evaluation.rows import build_rows
from qed.evaluation.shards import Shard, ShardFile, find_shard_folder
from qed.evaluation.store import Store, find_stored, has_answers
from qed.evaluation.verdicts import add_verdicts
from qed.grading.policy import find_policy
from qed.guards.signals import watch_signals
from qed.guards.watchdog import HangReport, enter_stage, watch
from qed.models import threads
from qed.models.load import check_name
from qed.rollout.stages import assign_grades, flatten, grade, sample
from qed.runs.run import Row, name_step_folder
from qed.types import Group, Groups, Request

PLANNERS = {"sampled": plan_evaluation, "likelihood": plan_choices}


@watch_signals()
@threads.restore_threads()
def run_evaluation(request: EvaluationRequest, shard: Shard | None = None) -> dict[str, Any]:
    """Sample a model's answers to all problems, write answers and figures, and print the figures.

    Args:
        request: what is evaluated.
        shard: sample only this share of the problems, and write it for `qed merge`.

    Returns:
        the folder, the figures of `summarize` for each task, and their unweighted mean; for a shard, its file.
    """
    check_name(request.settings.model.name)
    console = Console(request.json)
    request = leave_out_functions(request, console)
    with _explain_stops(request, console):
        plan = PLANNERS[request.scoring](request, console)
        if shard is not None:
            return _evaluate_shard(plan, shard, console)
        figures = {task.record.label: _evaluate_task(plan, task, console) for task in plan.tasks}
    records = {task.record.label: task.record for task in plan.tasks}
    return build_result(request.folder, request.step, records, figures, plan.checks, console)


@contextmanager
def _explain_stops(request: EvaluationRequest, console: Console) -> Iterator[None]:
    """Explain how to resume the evaluation after an interruption or a hang."""
    hint = f"Finished problems are saved in {request.folder}; continue with the same command and --out {request.folder}"
    try:
        with watch(HangReport(request.folder / "hang.txt", hint, "--watchdog"), request.settings.run.watchdog):
            yield
    except (Interrupted, KeyboardInterrupt) as stopped:
        raise Interrupted(f"Interrupted. {hint}.", find_exit_code(stopped)) from stopped
    finally:
        console.end_phase()


def _evaluate_task(plan: Plan, task: TaskPlan, console: Console) -> Row:
    """Evaluate a task, sampling only the missing answers, and return its figures."""
    request, record = plan.request, task.record
    if not record.judged and not request.overwrite:
        require_own_outputs(request.folder / name_step_folder(request.step), record.label, request.model)
    store = Store(request.folder, request.step, record.label, record.decoding, record.settings, request.overwrite)
    if store.summary is not None:
        console.say(f"{record.label}: already evaluated with these settings; nothing is sampled again.")
        return _read_figures(store, store.summary, record, request.model, console)
    if store.lost:
        console.say(
            f"{record.label}: was evaluated with these settings, but its answers are gone: sampling them again."
        )
    if not (request.folder / ENVIRONMENT).exists():
        write_environment(request.folder, plan.about["environment"], [plan.about["command"]])
    _announce(task, request, console)
    done = store.find_finished({problem.id: task.bench.samples_of(problem) for problem in task.kept})
    chunks = dict(enumerate(task.chunks))
    missing = {number for number, chunk in chunks.items() if not all(problem.id in done for problem, _ in chunk)}
    _sample(task, request, chunks, missing, store.rows, lambda _, rows: store.add(rows), console)
    return finish_task(store, record, request.model, console)


def _read_figures(store: Store, summary: Row, record: TaskRecord, model: str, console: Console) -> Row:
    """Return the figures of a finished evaluation; recount maj@k if the tie rule is different."""
    if summary.get("maj_ties", record.ties) == record.ties:
        return summary
    store.rows = store.read_finished()
    if len(store.rows) != summary.get("answers"):
        console.say(
            f"{record.label}: --ties {record.ties} is not applied, because not all answers are in the folder any more."
        )
        return summary
    return finish_task(store, record, model, console)


def _evaluate_shard(plan: Plan, shard: Shard, console: Console) -> Row:
    """Evaluate a shard, unless the evaluation is already finished in its folder, and return the shard's path."""
    request = plan.request
    result: Row = {"folder": str(request.folder), "step": request.step, "shard": None, "tasks": {}, "outputs": {}}
    if not request.overwrite and find_figures(plan) is not None:
        console.say("This evaluation is already finished in this folder; nothing is sampled again.")
        return result
    file = make_shard(plan, shard, console)
    console.say(f"Shard {shard} is in {file.path}; `qed merge {request.folder}` joins all of them.")
    return {**result, "shard": str(file.path)}


def make_shard(plan: Plan, shard: Shard, console: Console, alone: bool = False) -> ShardFile:
    """Sample a shard's chunks of all tasks, and write them for `qed merge`; `alone` is that of `ShardFile`.

    Chunks are numbered across tasks, so that shards are of similar size even with many small tasks.
    """
    request, first = plan.request, 0
    file = ShardFile(find_step_shards(request), shard, plan.whole, request.overwrite, alone)
    for task in plan.tasks:
        own = {number: chunk for number, chunk in enumerate(task.chunks, first) if shard.has(number)}
        first += len(task.chunks)
        console.say(
            f"Shard {shard} of {task.record.label}: {sum(map(len, own.values()))} of {len(task.kept)} problems, "
            f"{len(own)} of {len(task.chunks)} chunks."
        )
        if missing := own.keys() - file.units.keys():
            _announce(task, request, console)
            rows = [row for number in own for row in file.units.get(number, ())]
            _sample(task, request, own, missing, rows, lambda number, rows: file.add({number: rows}), console)
    if not file.is_finished:
        file.finish(first, plan.about)
    return file


def find_step_shards(request: EvaluationRequest) -> Path:
    """Return the folder for the shards of an evaluation."""
    name = f"{Path(name_step_folder(request.step)).name}-{request.decoding}"
    return find_shard_folder(request.folder, is_file=False) / name


def find_figures(plan: Plan) -> dict[str, Row] | None:
    """Return the figures of all tasks if all are finished in the folder.

    Raises:
        UsageError: one is finished with other settings, so shards could not be merged there, or all are finished with
            another tie rule.
    """
    home = plan.request.folder / name_step_folder(plan.request.step)
    figures = {}
    for record in (task.record for task in plan.tasks):
        asked = json.loads(json.dumps(record.settings))
        summary = find_stored(home, record.label, record.decoding, asked)
        if summary is not None and has_answers(home, record.label, record.decoding):
            figures[record.label] = summary
    if len(figures) < len(plan.tasks):
        return None
    for record in (task.record for task in plan.tasks):
        counted = figures[record.label].get("maj_ties", record.ties)
        if counted != record.ties:
            raise UsageError(
                f"{record.label} is already evaluated in this folder with --ties {counted}. The same command without "
                f"--shard and --cluster counts its votes with --ties {record.ties} and samples nothing."
            )
    return figures


def _announce(task: TaskPlan, request: EvaluationRequest, console: Console) -> None:
    if isinstance(task.policy, ChoicePolicy):
        console.say(task.policy.about)
        return
    judge = task.record.settings.get("judged_by")
    console.say(task.bench.describe(task.kept, task.sampling, request.settings.run.seed, judge))


def _sample(
    task: TaskPlan,
    request: EvaluationRequest,
    chunks: Mapping[int, Chunk],
    missing: set[int],
    rows: Sequence[Row],
    add: Callable[[int, list[Row]], None],
    console: Console,
) -> None:
    """Sample the chunks in `missing`, saving each with `add`; `rows` are the answers of the finished chunks."""
    counts = _count(rows)
    total = sum(map(len, chunks.values()))
    finished = total - sum(len(chunks[number]) for number in missing)
    if finished:
        console.say(f"{finished} of {total} problems are already finished.")
    console.phase("", finished, "problem")
    began, tokens = time.perf_counter(), 0
    with closing(_answer_chunks(task, request, {number: chunks[number] for number in sorted(missing)})) as answered:
        for number, groups in answered:
            _grade(groups, task)
            policy = find_policy(request.policy)
            tags = () if isinstance(task.policy, ChoicePolicy) else task.policy.template.tags
            own = build_rows(groups, request.decoding, request.step, tags, policy)
            add_verdicts(own, groups, task.also)
            add(number, own)
            counts.update(_count(own))
            finished += len(groups)
            tokens += sum(rollout.trained_count for rollout in flatten(groups))
            speed = {"perf/tokens_per_s": tokens / (time.perf_counter() - began)}
            console.step(finished, total, {**_format_progress(counts, task.record.judged), **speed})
    console.end_phase()


def _grade(groups: Groups, task: TaskPlan) -> None:
    """Grade the answers of a chunk; refusals by an endpoint are already graded."""
    if task.grader is None:
        return
    if not isinstance(task.policy, EndpointPolicy):
        grade(groups, task.grader)
        return
    ungraded = [[rollout for rollout in group if rollout.grade is None] for group in groups]
    assign_grades([group for group in ungraded if group], task.grader)


def _answer_chunks(
    task: TaskPlan, request: EvaluationRequest, chunks: Mapping[int, Chunk]
) -> Generator[tuple[int, list[Group]]]:
    """Yield the answers of each chunk as soon as they are ready."""
    address = (request.settings.run.seed, "evaluation", request.decoding)
    policy = task.policy
    enter_stage("evaluate", request.step)
    if isinstance(policy, EndpointPolicy):
        yield from ask_endpoint(policy, chunks, task.sampling, address, request.step)
        return
    if isinstance(policy, ChoicePolicy):
        for number, chunk in chunks.items():
            yield number, policy.answer([problem for problem, _ in chunk], request.step)
            enter_stage("evaluate", request.step)
        return
    for number, chunk in chunks.items():
        requests = [Request(problem, count) for problem, count in chunk]
        # An environment may call the grader between two turns.
        yield (
            number,
            sample(
                requests,
                policy.sampler,
                policy.template,
                task.sampling,
                address,
                request.step,
                grader=task.grader,
            ),
        )
        enter_stage("evaluate", request.step)


def _count(rows: Sequence[Row]) -> Counter[str]:
    """Count answers, and sum the values that the progress line shows."""
    return Counter(
        {
            "answers": len(rows),
            "measured": sum(bool(row["n_tokens"]) for row in rows),
            "accuracy": sum(bool(row["correct"]) for row in rows),
            "length/mean": sum(row["n_tokens"] or 0 for row in rows),
            "length/truncated_frac": sum(row["stop_reason"] == "length" for row in rows),
        }
    )


def _format_progress(counts: Counter[str], judged: bool) -> dict[str, float]:
    shown = {name: counts[name] / counts["answers"] for name in ("length/truncated_frac", *(["accuracy"] * judged))}
    return shown | ({"length/mean": counts["length/mean"] / counts["measured"]} if counts["measured"] else {})
