"""What a report says of a difference comes from the paired test on the same problems, never from two intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import make_run, report, rows_of

from qed.evaluation.arms import compare_arms
from qed.evaluation.intervals import compute_wilson_interval
from qed.evaluation.paired import compare_paired
from qed.evaluation.summary import summarize
from qed.report.numbers import format_p_value, format_points
from qed.report.record import read_record
from qed.runs.run import write_evaluation

# Of 200 problems 24 are gained and 1 is lost, which is no chance, and the two intervals overlap.
BEFORE = "1" * 80 + "0" * 120
AFTER = "0" + "1" * 79 + "1" * 24 + "0" * 96
STEPS = range(1, 5)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that gains on its first evaluation and on its control, greedily and sampled."""
    made = make_run(tmp_path, outcomes={0: (BEFORE, BEFORE), 8: (AFTER, AFTER)})
    make_run(
        tmp_path / "mine", "control", outcomes={0: (BEFORE, BEFORE), 4: (BEFORE, BEFORE)}, steps=STEPS, control=True
    )
    return made


def test_intervals_that_overlap_hide_no_difference(run: Path) -> None:
    assert compute_wilson_interval(80, 200)[1] > compute_wilson_interval(103, 200)[0]
    rows = [
        read_record(folder).read_rows(8 if folder == run else 4, "sums", "greedy") for folder in (run / "control", run)
    ]
    test = compare_paired(*rows)
    assert test is not None
    assert test.p_value is not None
    assert test.p_value < 1e-5
    text = report(run).text
    assert "overlap" not in text
    assert "not established" not in text
    difference = "+11.5 points ["
    assert f"Of 200 problems 24 went from wrong to right and 1 from right to wrong: {difference}" in text
    assert f"With sampled answers 24 were answered better and 1 worse: {difference}" in text
    control = "Of the 200 problems that both answered, GRPO"
    assert f"{control} alone is right on 24, the control alone on 1: {difference}" in text
    assert f"{control} is better on 24, the control on 1: {difference}" in text
    raw, holm = (format_p_value(value).replace("\u00a0", " ") for value in (test.p_value, 2 * test.p_value))
    chance = f"{test.test}, {raw}, by Holm over 2 tests {holm}"
    assert text.count(f"more than chance explains ({chance})") == 4
    assert f"GRPO +11.5 points; {test.test} {raw}" in text
    assert "no more than chance" not in text


def test_other_problems_allow_no_paired_test(run: Path) -> None:
    for file in (run / "control").glob("eval/*/sums.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps({**row, "gold": f"{row['gold']}0"}) + "\n" for row in rows))
    text = report(run).text
    said = "Both have no stored answers to the same problems, so no paired test is possible."
    assert text.count(f"{said} A difference is not established.") == 2
    assert "points; no paired test: no answers to the same problems" in text
    for file in run.glob("eval/step_000008/sums.jsonl"):
        file.unlink()
    assert f"Before and after: {said}" in report(run).text


@pytest.mark.parametrize("answers", [1, 2, 4])
@pytest.mark.parametrize("lengths", [(16, 16), (10, 20)], ids=["all-equal", "equal-means"])
def test_answers_of_one_length_have_a_report(tmp_path: Path, answers: int, lengths: tuple[int, int]) -> None:
    rows = rows_of(0, "sampled", 0.5, answers)
    rows = [{**row, "n_tokens": lengths[row["sample_id"] % 2]} for row in rows]
    write_evaluation(tmp_path / "run", 0, "maths", rows, {"sampled": summarize(rows)})
    assert "tokens of an answer" in report(tmp_path / "run").text


def test_lengths_that_nobody_counted_have_a_report(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for step in (0, 4, 8):
        path = run / f"eval/step_{step:06d}/summary.json"
        found = json.loads(path.read_text())
        for figures in found["sums"].values():
            figures["mean_tokens"] = None
        path.write_text(json.dumps(found))
    assert "together with length" not in report(run).text


def test_seeds_of_an_arm_are_compared_together(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, name, outcomes={0: (BEFORE, BEFORE), 8: (marks, marks)})
        for name, marks in (("a0", BEFORE), ("a1", BEFORE[::-1]), ("b0", AFTER), ("b1", AFTER))
    ]
    for number, run in enumerate(runs):
        settings = (run / "settings.yaml").read_text()
        rate = "learner: {lr: 0.5}\n" if number > 1 else ""
        (run / "settings.yaml").write_text(f"{settings}{rate}run: {{seed: {number}, out: {run.name}}}\n")
    page = report(*runs)
    rows = [read_record(run).read_rows(8, "sums", "greedy") for run in runs]
    test = compare_arms(rows[:2], rows[2:])
    assert test is not None
    assert "Seeds together All seeds of an arm against a0 and 1 more seed" in page.text
    low, high = format_points(test.ci_lo), format_points(test.ci_hi)
    assert (
        f"b0 and 1 more seed sums, greedy answers 40.0 % 40.0 %, 40.0 % 51.5 % 51.5 %, 51.5 % +11.5 [{low}, {high}]"
        in page.text
    )
    assert not page.open
    assert "Seeds together" not in report(*runs[1:3]).text


def test_a_run_under_two_names_is_reported_once(run: Path) -> None:
    (link := run.with_name("link")).symlink_to(run, target_is_directory=True)
    assert "Problem by problem" not in report(run, link, run.parent / "." / run.name).text


def test_what_else_differs_between_runs_is_said(tmp_path: Path) -> None:
    rows = rows_of(0, "sampled", 0.5, 4)
    for name, length in (("a", 48), ("b", 64)):
        rows = [*rows, rows[0]] if name == "b" else rows
        summary = {"sampled": {**summarize(rows), "settings": {"max_tokens": length, "model": name}}}
        write_evaluation(tmp_path / name, 0, "maths", rows, summary)
    text = report(tmp_path / "a", tmp_path / "b").text
    assert (
        "b, sampled answers. Other max_tokens: 48 before, 64 after. Evaluate both with the same --max-tokens." in text
    )
    assert "b, sampled answers. 1 answer stored twice, with the same problem and number: the first one counts." in text
    rows = rows[:-1]
    cut = [row for row in rows if row["stop_reason"] == "length"]
    shown = f"{len(cut)} of {len(rows)} ({sum(row['correct'] for row in cut)} right)"
    assert f"b, sampled answers cut off at the limit of tokens: {shown} in a, {shown} in this one." in text
    assert "cut off, but right" in text


def test_too_few_problems_are_said(tmp_path: Path) -> None:
    for name, share in (("a", 0.0), ("b", 1.0)):
        rows = rows_of(0, "greedy", share, 1, problems=4)
        write_evaluation(tmp_path / name, 0, "maths", rows, {"greedy": summarize(rows)})
    text = report(tmp_path / "a", tmp_path / "b").text
    assert "] too few" in text
    assert "4 problems are too few for a test" in text


def test_runs_with_other_problems_are_not_tested(tmp_path: Path) -> None:
    for name in ("a", "b"):
        rows = [{**row, "group_id": f"{name} {row['group_id']}"} for row in rows_of(0, "greedy", 0.5, 1)]
        write_evaluation(tmp_path / name, 0, "maths", rows, {"greedy": summarize(rows)})
    said = "The runs have no stored answers to the same problems, so no paired test is possible. A difference is not"
    assert said in report(tmp_path / "a", tmp_path / "b").text


def test_the_first_run_need_not_share_problems(tmp_path: Path) -> None:
    """Then the tests are against the first that does, and those in no test are named."""
    for name, share in (("other", 0.5), ("a", 0.25), ("b", 0.75)):
        prefix = "other " if name == "other" else ""
        rows = [{**row, "group_id": f"{prefix}{row['group_id']}"} for row in rows_of(0, "greedy", share, 1)]
        write_evaluation(tmp_path / name, 0, "maths", rows, {"greedy": summarize(rows)})
    alone = report(tmp_path / "a", tmp_path / "b").text
    assert "Problem by problem against a, the first run" in alone
    assert "Not compared" not in alone
    text = report(tmp_path / "other", tmp_path / "a", tmp_path / "b").text
    assert "Problem by problem against a" in text
    assert "against a, the first run" not in text
    left_out = "Not compared, because no decoding has stored answers of them and of a to the same problems: other."
    assert left_out in text


@pytest.mark.parametrize("lost", [1, 10, 200])
def test_answers_that_are_lost_are_said(tmp_path: Path, lost: int) -> None:
    """Once for a run, whatever it is compared with; also if all are."""
    rows = rows_of(0, "sampled", 0.5, 4)
    for name, kept in (("a", rows[:-lost]), ("b", rows), ("c", rows)):
        write_evaluation(tmp_path / name, 0, "maths", kept, {"sampled": summarize(rows)})
    kept = max(0, len(rows) - lost)
    said = f"{kept} of {len(rows)} answers are stored: their file is incomplete."
    text = report(*(tmp_path / name for name in "abc")).text
    assert text.count(f"a, sampled answers: {said} Other means than accuracy have no intervals.") == 1
    assert text.count(f"a, sampled answers. {said} Tests are of these alone.") == (kept > 0)
    assert "b, sampled answers: " not in text
    assert "Tests are of these" not in report(tmp_path / "a").text
