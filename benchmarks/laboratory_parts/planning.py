"""The order of the study: models, pilots, learning rates, final runs; finished runs are not repeated."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from laboratory_parts import runs
from laboratory_parts.methods import METHODS, PILOT_RATE, RATES, Method
from laboratory_parts.runs import Job, Summary

BUDGET = 300e9  # multiply-adds of a run
TOLERANCE = 0.05  # if a run's compute is further off, its steps are corrected
COARSE = 0.25  # the same for a run that only chooses the learning rate
SINGLE = 0.1  # the same for a single seed of the final runs, whose answers may get longer earlier or later than others'
CORRECTIONS = 5
PILOT_STEPS = 8
MOST_GROWTH = 17.0  # maximum factor on the steps at once: pilots with short answers are cheap, but answers get longer
MOST_STEPS = 1000  # maximum steps of a phase, however cheap they are
PILOT_SEED = 1000  # seeds of the final runs start from 0
PRELOADED = ["qed.api.training", "qed.api.sampler", "qed.loops.online", "qed.loops.sft", "qed.rewards.base"]


@dataclass(frozen=True)
class Plan:
    """The part of the study to make: its folder, seeds, budget, and a process pool with `submit`."""

    home: Path
    seeds: int
    budget: float
    submit: Callable[[Job], Future[Summary]]

    def make(self, *jobs: Job) -> list[Summary]:
        """Make runs concurrently, one per process of the pool."""
        return [future.result() for future in [self.submit(job) for job in jobs]]


def open_pool(jobs: int) -> ProcessPoolExecutor:
    """Return a pool whose processes make one run each; they are forked after everything is imported."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return ProcessPoolExecutor(jobs, context, max_tasks_per_child=1)


def make_models(plan: Plan, tasks: Sequence[str]) -> None:
    """Train the start and the teacher of each task."""
    starts = [Job(plan.home, task, "start", "model") for task in tasks]
    plan.make(*starts)
    plan.make(*(replace(job, method="teacher") for job in starts))


def study(plan: Plan, task: str, method: Method) -> Summary:
    """Make all runs of a method on a task, and return their summaries for the page."""
    job = Job(plan.home, task, method.name, "rate", seed=PILOT_SEED)
    pilot = replace(job, stage="pilot", rate=PILOT_RATE, steps=dict.fromkeys(method.shares, PILOT_STEPS))
    guess = correct(method, plan.budget, plan.make(pilot))
    guess = settle(plan, method, replace(job, rate=PILOT_RATE, steps=guess), TOLERANCE)[-1]["steps"]
    tried = settle_all(plan, method, [replace(job, rate=rate, steps=guess) for rate in RATES], COARSE)
    best = max(tried, key=lambda made: rank_rate(plan.budget, made[-1]))
    # Keep the steps of the chosen rate's last run if its compute is close enough to the budget.
    steps = correct(method, plan.budget, best) if not is_equal(plan.budget, best[-1]) else best[-1]["steps"]
    final = replace(job, stage="final", rate=best[-1]["rate"], steps=steps, seed=0)
    first = plan.make(final)[0]
    if not is_equal(plan.budget, first):
        final = replace(final, steps=correct(method, plan.budget, [*best, first]))
    finals = settle_all(plan, method, [replace(final, seed=seed) for seed in range(plan.seeds)], SINGLE)
    scores = {f"{last['rate']:g}": score(last) for *_, last in tried}
    return {"rate": final.rate, "validation": scores, "runs": [last for *_, last in finals]}


def rank_rate(budget: float, run: Summary) -> tuple[bool, bool, float, float]:
    """Return the sort key that chooses between the last runs of several rates; the largest wins.

    A rate without a run near the budget is chosen only if no other has one, and one that diverges only if all do.
    """
    return "compute" in run, is_equal(budget, run, COARSE), score(run), -run["rate"]


def settle_all(plan: Plan, method: Method, jobs: Sequence[Job], tolerance: float) -> list[list[Summary]]:
    """Settle several runs concurrently."""
    with ThreadPoolExecutor(len(jobs)) as threads:
        return list(threads.map(lambda job: settle(plan, method, job, tolerance), jobs))


def settle(plan: Plan, method: Method, job: Job, tolerance: float) -> list[Summary]:
    """Make a run, and repeat it with corrected steps until it uses the budget; return all runs, the closest last."""
    made = plan.make(job)
    for _ in range(CORRECTIONS):
        if is_equal(plan.budget, made[-1], tolerance):
            return made
        steps = correct(method, plan.budget, made)
        if any(run["steps"] == steps for run in made):
            break
        made += plan.make(replace(job, steps=steps))
    return sorted(made, key=lambda run: -measure_distance(plan.budget, run))


def correct(method: Method, budget: float, made: Sequence[Summary]) -> dict[str, int]:
    """Return the steps with which each phase uses its share of the budget, estimated from runs at the same rate."""
    known = [run for run in made if "compute" in run]
    if not known:  # all have diverged
        return dict(made[-1]["steps"])
    steps = {}
    for number, (phase, share) in enumerate(method.shares.items()):
        points = [(run["steps"][phase], list(run["compute"].values())[number]) for run in known]
        steps[phase] = max(1, min(MOST_STEPS, find_steps(points, share * budget)))
    return steps


def find_steps(points: Sequence[tuple[int, float]], target: float) -> int:
    """Return the number of steps that would need the target compute, estimated from runs of (steps, compute).

    Runs with equal steps are averaged. Between the two runs around the target, compute is interpolated as a power of
    steps, because answers may get longer during a run. If all runs are on one side, it is taken as proportional to the
    steps, which grow by a factor of at most `MOST_GROWTH`.
    """
    points = [(steps, fmean(used for known, used in points if known == steps)) for steps, _ in points]
    below = max((point for point in points if point[1] <= target), default=None, key=lambda point: point[1])
    above = min((point for point in points if point[1] > target), default=None, key=lambda point: point[1])
    if below is None or above is None or below[0] >= above[0]:
        steps, compute = above or below or points[-1]
        return round(steps * min(MOST_GROWTH, target / compute))
    power = math.log(target / below[1]) / math.log(above[1] / below[1])
    return round(below[0] * math.pow(above[0] / below[0], power))


def is_equal(budget: float, run: Summary, tolerance: float = TOLERANCE) -> bool:
    """Return whether a run used the budget within the tolerance; a diverged run counts as equal."""
    return measure_distance(budget, run) <= tolerance


def measure_distance(budget: float, run: Summary) -> float:
    """Return how far a run's compute is from the budget, as a share of it; 0 for a run that diverged."""
    return abs(sum(run["compute"].values()) / budget - 1) if "compute" in run else 0.0


def score(run: Summary) -> float:
    """Return the share of the sampled answers to validation problems that is right; -1 for a run that diverged."""
    return -1.0 if "error" in run else round(fmean(runs.read_sampled(run["parts"]["validation"])), 4)


def run_study(home: Path, out: Path, tasks: Sequence[str], methods: Sequence[Method], seeds: int, jobs: int) -> None:
    """Make the study, and write the summary of each task to `out` whenever one of its methods is done.

    An interrupt waits for runs in progress, and starts no others.
    """
    from qed.config import plugins  # noqa: PLC0415

    shelf = plugins.list_leaves("algorithms")
    missing = sorted({name for method in methods for name in method.needs if name not in shelf})
    print(f"Skipped, because this qed does not have them: {', '.join(missing) or 'none'}", file=sys.stderr, flush=True)
    chosen = [method for method in methods if not set(method.needs) & set(missing)]
    with open_pool(jobs) as pool, ThreadPoolExecutor(jobs + 2) as threads:
        plan = Plan(home, seeds, BUDGET, lambda job: pool.submit(runs.make, job))
        try:
            make_models(plan, tasks)
            studies = {
                threads.submit(study, plan, task, method): (task, method.name) for method in chosen for task in tasks
            }
            found: dict[str, dict[str, Summary]] = {task: {} for task in tasks}
            for done in as_completed(studies):
                task, name = studies[done]
                if error := done.exception():  # the other methods continue
                    print(f"{task}, {name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    continue
                print(f"{task}: {name} is done", file=sys.stderr, flush=True)
                found[task][name] = done.result()
                write_task(out / f"{task}.json", describe(home, task, found[task]))
        except BaseException:
            for executor in (threads, pool):
                executor.shutdown(wait=False, cancel_futures=True)
            raise


def describe(home: Path, task: str, found: Mapping[str, Summary]) -> Summary:
    """Return the summary of a task: its start and teacher, and its methods in the order of the tables."""
    models = {name: runs.make(Job(home, task, name, "model")) for name in ("start", "teacher")}
    methods = {method.name: found[method.name] for method in METHODS if method.name in found}
    return {"task": task, "budget": BUDGET, **models, "methods": methods}


def write_task(file: Path, summary: Summary) -> None:
    """Write the summary of a task with a line per run, so that a change of one run changes one line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(format_json(summary) + "\n", encoding="utf-8")


def format_json(value: object, depth: int = 0) -> str:
    """Format JSON with a line for each entry down to the level of runs."""
    inner, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict) and depth < 3 and value:
        rows = [f"{json.dumps(key, ensure_ascii=False)}: {format_json(each, depth + 1)}" for key, each in value.items()]
        return "{" + inner + f",{inner}".join(rows) + end + "}"
    if isinstance(value, list) and depth < 5 and any(isinstance(each, dict) for each in value):
        return "[" + inner + f",{inner}".join(json.dumps(each) for each in value) + end + "]"
    return json.dumps(value, ensure_ascii=False)
