"""Evaluate a model on a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qed import host
from qed.cluster.chunks import Slot, Tasks, enter_folder, explain_stops, make_shards, prepare
from qed.cluster.ray_session import Session, connect, load_ray
from qed.config.phases import Settings
from qed.console.live import Console
from qed.errors import DataError
from qed.evaluation.finish import TaskRecord, build_result
from qed.evaluation.merge import merge
from qed.evaluation.plan import Plan, leave_out_functions
from qed.evaluation.request import EvaluationRequest
from qed.evaluation.run import PLANNERS, find_figures, find_step_shards, make_shard
from qed.evaluation.shards import Shard, compare_wholes
from qed.guards.watchdog import HangReport, watch
from qed.models.load import check_name
from qed.runs.run import Row


def evaluate_on_cluster(request: EvaluationRequest, address: str) -> dict[str, Any]:
    """Evaluate as `qed.evaluation.run.run_evaluation` does, with a task for every chunk of problems.

    Args:
        request: what to evaluate; its folder must be on storage that all nodes share.
        address: the address of the cluster, see `qed.cluster.ray_session.connect`.
    """
    check_name(request.settings.model.name)
    console = Console(request.json)
    request = leave_out_functions(request, console)
    folder = find_step_shards(request)
    with connect(address) as session, explain_stops(folder, console):
        prepare(folder, session, request.overwrite, console)
        slot = _choose_slot(session, request.settings)
        run = request.settings.run
        settings = replace(request.settings, run=replace(run, threads=run.threads or int(slot.cpus)))
        # The driver has already deleted what is overwritten; a restarted task must not delete more.
        asked = replace(request, settings=settings, overwrite=False)
        tasks = Tasks(slot)
        planned = tasks.run(_plan_task, (asked, os.getcwd(), request.overwrite))
        for line in planned["lines"]:
            console.say(line)
        whole = planned["whole"]
        if planned["figures"] is not None:
            console.say("This evaluation is already finished in this folder; nothing is sampled again.")
            records = {label: TaskRecord(**fields) for label, fields in whole["tasks"].items()}
            return build_result(request.folder, request.step, records, planned["figures"], planned["checks"], console)
        count = sum(whole["chunks"].values())
        arguments = (asked, os.getcwd(), whole)
        files = make_shards(tasks, _sample_task, count, lambda _: arguments, whole, folder, console)
    return merge(request.folder, files, request.overwrite, console)


def _choose_slot(session: Session, settings: Settings) -> Slot:
    """Return the slot of a task: a GPU if the cluster has some, else as many CPUs as one process would use here."""
    if session.gpus and settings.model.device.partition(":")[0] in ("auto", "cuda"):
        return Slot(1.0, 1.0)
    largest = max(node["Resources"].get("CPU", 0.0) for node in load_ray().nodes() if node["Alive"])
    return Slot(float(max(1, min(settings.run.threads or host.choose_threads(), int(largest)))))


# The plan of this worker process with its model, kept for the next task, and what planning has printed.
_plans: list[tuple[EvaluationRequest, Plan, list[str]]] = []


def _plan_task(request: EvaluationRequest, cwd: str, overwrite: bool) -> Row:
    """Describe the complete evaluation for the driver, and check the folder."""
    plan, lines = _load_plan(request, cwd)
    return {
        "whole": plan.whole,
        "lines": lines,
        "checks": plan.checks,
        "figures": None if overwrite else find_figures(plan),
    }


def _sample_task(shards: Sequence[Shard], request: EvaluationRequest, cwd: str, whole: Row) -> Row:
    """Sample and grade chunks, write their shards, and return counts."""
    plan, _ = _load_plan(request, cwd)
    if plan.whole != whole:
        raise DataError(
            f"A node would evaluate something else than the first one: {compare_wholes(whole, plan.whole)}. All nodes "
            "need the same model and data under the same names."
        )
    report = HangReport(request.folder / "hang.txt", "Ray starts the chunk again", "--watchdog")
    with watch(report, request.settings.run.watchdog):
        files = [make_shard(plan, shard, Console(json=True), alone=True) for shard in shards]
    rows = [row for file in files for own in file.units.values() for row in own]
    correct = sum(bool(row["correct"]) for row in rows)
    return {"answers": len(rows), "correct": correct, "tokens": sum(row["n_tokens"] or 0 for row in rows)}


def _load_plan(request: EvaluationRequest, cwd: str) -> tuple[Plan, list[str]]:
    """Return the plan of an evaluation in this process, and what planning has printed."""
    enter_folder(cwd)
    if not _plans or _plans[0][0] != request:
        _plans.clear()  # frees the memory of another model
        console, lines = Console(json=True), list[str]()
        console.log = lines.append
        _plans.append((request, PLANNERS[request.scoring](request, console), lines))
    return _plans[0][1:]
