"""The laboratory: its problems, how it plans runs of equal compute, and that its page is what the summaries give."""

from __future__ import annotations

import argparse
from concurrent.futures import Future
from pathlib import Path
from statistics import fmean
from typing import Any
from xml.etree import ElementTree

import laboratory
import numpy as np
import pytest
from laboratory_parts import planning, runs, tasks
from laboratory_parts.analysis import Arm, compare, compute_seed_interval, read_studies
from laboratory_parts.methods import METHODS, RATES, SHARED
from laboratory_parts.page import FIGURE, render_page
from laboratory_parts.runs import Job, Summary

from qed.config.plugins import list_leaves

DOCS = Path(__file__).parents[2] / "docs"
BUDGET = 1e9


def test_the_committed_page_is_what_the_summaries_give() -> None:
    text, figure = render_page(DOCS / "laboratory")
    assert text == (DOCS / "laboratory.md").read_text(encoding="utf-8")
    assert figure == (DOCS / "laboratory" / FIGURE).read_text(encoding="utf-8")
    ElementTree.fromstring(figure)


def test_the_committed_runs_kept_to_their_limits() -> None:
    """At least five seeds, a minute of one core each, and the compute of the budget, on average over the seeds."""
    for study in read_studies(DOCS / "laboratory"):
        for arm in study.arms:
            assert len({run["seed"] for run in arm.runs}) >= 5
            assert max(run["cpu_seconds"] for run in arm.runs) <= 60
            needed = fmean(sum(run["compute"].values()) for run in arm.runs if "compute" in run)
            assert needed == pytest.approx(study.budget, rel=0.1), (study.task, arm.name)


@pytest.mark.parametrize("task", tasks.TASKS)
def test_the_parts_of_a_task_share_no_problem(task: str) -> None:
    parts = [{problem.question for problem in tasks.load(f"{task}-{part}")} for part in tasks.PARTS]
    assert sum(map(len, parts)) == len(set.union(*parts))


def test_only_the_steps_of_foreign_demonstrations_are_wrong() -> None:
    own, foreign = tasks.load("little-teacher"), tasks.load("foreign-teacher")
    wrong = 0
    for one, other in zip(own, foreign, strict=True):
        assert (one.question, one.answer) == (other.question, other.answer)
        assert other.solution.endswith(f" is {other.answer}")
        wrong += one.solution.partition("=")[2].partition(",")[0] != other.solution.split(" is ")[1].partition(",")[0]
    assert wrong / len(own) == pytest.approx(tasks.NOISE, abs=0.03)


def test_every_method_is_on_the_shelf() -> None:
    assert {leaf for method in METHODS for leaf in method.needs} <= set(list_leaves("algorithms"))


def test_right_answers_are_packed_and_read_again() -> None:
    right = [0, 0, 1, 0, 1, 1, 0]
    assert runs.read_greedy({"greedy": runs.pack(right), "n": 7}) == right
    assert runs.read_sampled({"sampled": "041"}) == [0.0, 1.0, 0.25]


class Laboratory:
    """Makes up runs: a step of SFT costs 10 million, one of RL 20 million, and twice that above a rate of 1e-3."""

    def __init__(self, tmp_path: Path) -> None:
        self.made: list[Job] = []
        self.plan = planning.Plan(tmp_path, 3, BUDGET, self.submit)

    def submit(self, job: Job) -> Future[Summary]:
        self.made.append(job)
        costs = {"sft": 1e7, "rl": 2e7, "": 2e7}
        compute = {phase: steps * costs[phase] * (2 if job.rate > 1e-3 else 1) for phase, steps in job.steps.items()}
        right = {1e-4: "1", 3e-4: "2", 1e-3: "2", 3e-3: "4"}[job.rate]
        done: Future[Summary] = Future()
        parts = {"validation": {"n": 4, "sampled": right * 4}}
        done.set_result({"rate": job.rate, "seed": job.seed, "steps": job.steps, "compute": compute, "parts": parts})
        return done


def test_runs_have_the_compute_of_the_budget(tmp_path: Path) -> None:
    """The best rate makes answers longer here, so the steps of its final runs are corrected once more."""
    laboratory = Laboratory(tmp_path)
    method = next(method for method in METHODS if method.leaf == "pipeline")
    found = planning.study(laboratory.plan, "little", method)
    assert found["rate"] == 3e-3
    assert found["validation"] == {"0.0001": 0.25, "0.0003": 0.5, "0.001": 0.5, "0.003": 1.0}
    assert [run["compute"] for run in found["runs"]] == [{"sft": 0.24e9, "rl": 0.76e9}] * 3
    assert {job.rate for job in laboratory.made if job.stage == "rate"} == set(RATES)
    rates, finals = ({job.seed for job in laboratory.made if job.stage == stage} for stage in ("rate", "final"))
    assert rates.isdisjoint(finals)


def test_a_run_that_diverged_is_never_the_best_and_changes_no_steps() -> None:
    diverged: Summary = {"rate": 1e-3, "error": "loss is not finite"}
    assert planning.score(diverged) < 0
    assert planning.is_equal(BUDGET, diverged)
    assert planning.correct(METHODS[0], BUDGET, [{**diverged, "steps": {"": 7}}]) == {"": 7}


def test_a_rate_that_diverged_is_taken_only_if_all_did() -> None:
    diverged: Summary = {"rate": 3e-3, "error": "loss is not finite"}
    part = {"validation": {"sampled": "4400"}}
    off: Summary = {"rate": 1e-3, "compute": {"": 3 * BUDGET}, "parts": part}
    near: Summary = {"rate": 1e-4, "compute": {"": BUDGET}, "parts": {"validation": {"sampled": "1000"}}}
    ranks = [planning.rank_rate(BUDGET, run) for run in (diverged, off, near)]
    assert ranks == sorted(ranks)


def test_an_arm_whose_runs_all_diverged_is_compared_as_one_without_right_answers() -> None:
    half = {"parts": {"test": {"sampled": "4004" * 10, "n": 40}}}
    good, lost = Arm("good", "control", [half] * 3), Arm("lost", "guidance", [{"error": "not finite"}] * 3)
    for found, sign in ((compare(good, lost), -1), (compare(lost, good), 1)):
        assert found.mean == sign * 0.5
        assert found.low < found.mean < found.high
        assert found.p_value is not None
        assert found.p_value < 0.001


def test_unknown_methods_and_tasks_are_refused() -> None:
    assert laboratory.split_names(laboratory.NAMES, "GRPO, SFT → GRPO") == ["GRPO", "SFT → GRPO"]
    with pytest.raises(argparse.ArgumentTypeError, match="there is no GPRO; there are SFT, GRPO"):
        laboratory.split_names(laboratory.NAMES, "SFT,GPRO")


def test_steps_are_found_between_two_runs() -> None:
    """Where answers get longer during a run, its compute is more than proportional to its steps."""
    points = [(steps, steps**2.3) for steps in (20, 100, 400)]
    assert planning.find_steps(points, 200**2.3) == 200
    assert planning.find_steps(points[:1], 25**2.3) == round(20 * (25 / 20) ** 2.3)
    assert planning.find_steps([(8, 1.0)], 1e6) == 8 * planning.MOST_GROWTH


def test_a_finished_run_is_its_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, "little", "GRPO", "rate", {"": 4}, 1e-3, 5)
    runs.write(job.file, {"seed": 5})
    assert runs.make(job) == {"seed": 5}
    other: dict[str, Any] = {**SHARED, "sampling.group_size": 4}
    name = job.name
    monkeypatch.setattr(runs, "SHARED", other)
    assert job.name != name  # a run with other settings is another run


def test_the_interval_over_seeds_is_students() -> None:
    low, high = compute_seed_interval(np.array([[0.4, 0.6], [0.5, 0.7]]))
    assert (low, high) == (0.0, 1.0)
    low, high = compute_seed_interval(np.array([[0.50], [0.51], [0.52]]))
    assert (low, high) == pytest.approx((0.51 - 4.3027 * 0.01 / 3**0.5, 0.51 + 4.3027 * 0.01 / 3**0.5), abs=1e-5)
