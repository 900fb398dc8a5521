"""Evaluations in a report: every figure with its interval, the validation part apart, runs tested in pairs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from run_folders import Page, make_evaluation, make_run, make_whole_run, report, rows_of

from qed.evaluation.intervals import compute_share_interval
from qed.evaluation.paired import compare_paired
from qed.evaluation.summary import summarize
from qed.report.estimates import CLASSES, compute_bounds
from qed.report.numbers import format_percent
from qed.report.record import read_record
from qed.report.write import write_report


def test_every_figure_is_there_with_its_interval(tmp_path: Path) -> None:
    page = report(make_whole_run(tmp_path))
    for told in (
        "problems × answers 12 × 1 12 × 1 12 × 1",
        "right, avg@4",
        "answer found strictly",
        "one of 4 right, pass@4",
        "vote of 2 right, maj@2",
        "without an answer",
        "no answer found",
        "with a thought",
        "reward: style",
        "tokens of a wrong answer",
        "Greedy answers by subject: share right",
        "level 1",
    ):
        assert told in page.text, told
    for label in CLASSES.values():
        assert f"{label} " in page.text
    assert not page.open


def test_a_share_of_single_answers_has_wilsons_interval(tmp_path: Path) -> None:
    rows = rows_of(8, "greedy", 0.9, 1)
    page = report(make_whole_run(tmp_path))
    kept = sum(row["format_ok"] for row in rows)
    low, high = compute_share_interval(kept, 12)
    assert f"{format_percent(kept / 12)} [{100 * low:.1f}, {100 * high:.1f}]".replace("\u00a0", " ") in page.text


@pytest.mark.parametrize("answers", [1, 4])
def test_an_interval_holds_its_mean(answers: int) -> None:
    rows = rows_of(3, "sampled", 0.6, answers, problems=40)
    figures, found = summarize(rows), compute_bounds(rows)
    flat = {**figures, **figures["classes"], **{f"reward/{name}": mean for name, mean in figures["parts"].items()}}
    assert len(found) > 10
    for name, bounds in found.items():
        assert bounds.ends is not None, name
        assert bounds.ends[0] <= flat[name] <= bounds.ends[1], name
    assert found["right_tokens"].n_answers == sum(row["correct"] for row in rows)
    assert found["mean_tokens"].n_answers is None
    assert compute_bounds([]) == {}


def test_an_interval_is_of_the_answers_of_its_mean() -> None:
    rows = rows_of(3, "sampled", 0.6, 1, problems=40)
    failed = [
        {**row, "group_id": f"f{i}", "correct": False, "tier": "timeout", "reward": None, "n_tokens": 9000}
        for i, row in enumerate(rows)
    ]
    figures, found = summarize([*rows, *failed]), compute_bounds([*rows, *failed])
    assert found["wrong_tokens"].ends[0] <= figures["wrong_tokens"] <= found["wrong_tokens"].ends[1]  # type: ignore
    assert found["wrong_tokens"].n_answers == sum(not row["correct"] for row in rows)
    assert found["reward/style"].n_answers == found["reward"].n_answers == len(rows)


def test_a_part_of_the_reward_that_is_a_share_has_the_interval_of_one() -> None:
    rows = rows_of(8, "greedy", 0.9, 1)
    found = compute_bounds(rows)
    assert found["reward/style"] == found["format"]
    assert found["reward"].ends == compute_share_interval(sum(row["correct"] for row in rows), len(rows))
    same = compute_bounds([{**row, "reward": 1.0} for row in rows])
    assert same["reward"].ends is None, "a reward that never differed says nothing of its range"


def test_the_interval_of_a_mean_covers_it() -> None:
    """Lengths drawn anew 200 times: the truth lies inside about as often as is said."""
    source, inside = np.random.default_rng(7), 0
    for _ in range(200):
        lengths = source.gamma(4, 10, size=60)
        rows = [{"group_id": str(i), "correct": i % 2 == 0, "n_tokens": float(v)} for i, v in enumerate(lengths)]
        ends = compute_bounds(rows)["right_tokens"].ends
        inside += ends is not None and ends[0] <= 40 <= ends[1]
    assert 0.88 <= inside / 200 <= 0.99


def test_the_validation_part_is_no_result(tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    assert read_record(run).tasks == ["maths"]
    for page in (report(run), report(run, make_whole_run(tmp_path, "other"))):
        assert "Validation accuracy" in page.text
        assert "The best checkpoint is chosen by this part of the training problems" in page.text
        assert "on validation" not in page.text
        assert "of validation:" not in page.text
    assert "It chose step 6." in report(run).text
    (run / "checkpoints" / "BEST").write_text("../../etc")
    assert "It chose" not in report(run).text


def test_classes_are_followed_where_they_are_measured_most(tmp_path: Path) -> None:
    page = report(make_whole_run(tmp_path))
    assert "Format × answer kept, right" in page.text
    assert "Greedy answers to validation problems" in page.text
    assert re.search(r"kept, right, step 6: \d+\.\d % \[[\d., ]+\], n = 12", page.text)


def test_runs_are_tested_in_pairs(tmp_path: Path) -> None:
    one, other = make_whole_run(tmp_path, "one"), make_whole_run(tmp_path, "other")
    for step_file in other.glob("eval/*/maths.jsonl"):
        rows = [json.loads(line) for line in step_file.read_text().splitlines()]
        changed = [{**row, "correct": row["correct"] and row["group_id"] != "q1"} for row in rows]
        step_file.write_text("".join(json.dumps(row) + "\n" for row in changed))
    page = report(one, other)
    found = compare_paired(
        read_record(one).read_rows(8, "maths", "greedy"), read_record(other).read_rows(8, "maths", "greedy")
    )
    assert found is not None
    assert found.lost
    assert f"{len(found.gained)} / {len(found.lost)}" in page.text
    assert found.test in page.text
    assert "sampled answers, pass@4" in page.text
    assert "sampled answers, maj@4" in page.text
    assert "With 4 tests" in page.text
    assert "require p (Holm) < 0.05" in page.text
    one, other = (make_evaluation(tmp_path, name, share, "greedy", 1) for name, share in (("a", 0.4), ("b", 0.8)))
    assert "require p" not in report(one, other).text


def test_other_numbers_of_answers_and_temperatures_are_said(tmp_path: Path) -> None:
    runs = [make_evaluation(tmp_path, name, 0.5, "sampled", answers) for name, answers in (("a", 2), ("b", 4))]
    for run, temperature in zip(runs, (0.6, 1.0), strict=True):
        (file,) = run.glob("eval/*/summary.json")
        summary = json.loads(file.read_text())
        summary["maths"]["sampled"]["temperature"] = temperature
        file.write_text(json.dumps(summary))
    page = report(*runs)
    assert "right, avg@2 or 4" in page.text
    assert "temperature 0.6 1" in page.text
    assert "temperature" not in report(runs[0]).text


@pytest.mark.parametrize(("decoding", "answers"), [("sampled", 4), ("greedy", 1), ("responses", 1)])
def test_an_evaluation_alone_has_a_report(tmp_path: Path, decoding: str, answers: int) -> None:
    page = report(make_evaluation(tmp_path, "alone", 0.5, decoding, answers))
    assert "alone: evaluation on maths" in page.text
    assert "Evaluation on maths" in page.text
    assert f"12 × {answers}" in page.text
    assert "The first right and the first wrong ones" in page.text
    assert "still going" not in page.text
    assert "How it went" not in page.text
    assert "math" in page.names()
    assert not page.open


def test_a_run_and_an_evaluation_stand_side_by_side(tmp_path: Path) -> None:
    page = report(make_whole_run(tmp_path), make_evaluation(tmp_path, "base", 0.2))
    assert "Problem by problem against whole" in page.text
    assert "base sampled answers" in page.text


def test_a_task_that_training_did_not_measure_is_shown(tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    make_evaluation(run.parent, run.name, 0.5)
    page = report(run)
    assert "How it went" in page.text
    assert "Before and after on maths" in page.text


def test_old_figures_and_lost_answers_still_give_a_report(tmp_path: Path) -> None:
    """An old run has no classes; of another one the answers are gone, and its figures stand without brackets."""
    assert "Every figure on" not in report(make_run(tmp_path / "old")).text
    run = make_whole_run(tmp_path)
    for file in run.glob("eval/*/maths.jsonl"):
        file.unlink()
    page = report(run)
    assert "Every figure on maths" in page.text
    assert "How the policy changed" not in page.text
    assert "nan" not in page.text.lower().split()


HOSTILE = "</td><script>alert(1)</script>$\\href{javascript:alert(1)}{x}$\u202e"


def test_hostile_words_in_every_field_stay_text(tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    for file in run.glob("eval/*/*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        named = ("question", "gold", "text", "extracted", "stop_reason", "subject", "level", "tier", "class")
        file.write_text("".join(json.dumps({**row, **dict.fromkeys(named, HOSTILE)}) + "\n" for row in rows))
    for file in run.glob("eval/*/summary.json"):
        told = json.loads(file.read_text())
        for figures in (figures for task in told.values() for figures in task.values()):
            figures["by"] = {
                "subject": {HOSTILE: figures["by"]["subject"]["algebra"], "b": figures["by"]["level"]["1"]}
            }
            figures["parts"] = {HOSTILE: 0.5}
        file.write_text(json.dumps({HOSTILE: told["validation"], **told}))
    for page in (report(run), report(run, make_whole_run(tmp_path, HOSTILE.replace("/", "")))):
        check(page)


def check(page: Page) -> None:
    assert not {"script", "img", "a", "iframe", "link"} & page.names()
    assert not page.open
    for _, attributes in page.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "style")}
    assert "\u202e" not in page.source


def test_a_page_is_the_same_twice(tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    assert (
        write_report([run], tmp_path / "a.html").read_bytes() == write_report([run], tmp_path / "b.html").read_bytes()
    )


def test_a_step_says_how_many_answers_it_is_of(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    assert "A step of GRPO samples" not in report(run).text
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    told = [{**row, "length/total": 9.0 * (60 + row["step"] % 2)} if row["step"] > 4 else row for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    assert "A step of GRPO samples 60 to 61 answers." in report(run).text


def test_the_graders_trouble_and_rounding(tmp_path: Path) -> None:
    """Counts of what the grader could not judge have a curve once there are any; a divergence of rounding has none."""
    run = make_run(tmp_path)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]

    def write(**more: float) -> None:
        (run / "metrics.jsonl").write_text("".join(json.dumps({**row, **more}) + "\n" for row in rows))

    write(**{"grading/timeouts": 0, "grading/errors": 0, "kl/old": 1e-9, "mismatch/kl": -1e-9})
    quiet = report(run).text
    write(**{"grading/timeouts": 2, "grading/errors": 0, "kl/old": 0.01, "mismatch/kl": 0.01})
    loud = report(run).text
    for title in ("Answers not graded", "Divergence within a step", "Sampler–learner mismatch"):
        assert title not in quiet
        assert title in loud
