"""What a report says of a difference comes from the paired test on the same problems, never from two intervals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import make_run, report, rows_of

from qed.evaluation.intervals import compute_mcnemar_p, compute_wilson_interval
from qed.evaluation.summary import summarize
from qed.runs.run import write_evaluation

# Of 200 problems 24 are gained and 1 is lost: p = 2e-6, and the two intervals overlap.
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
    assert f"{compute_mcnemar_p(24, 1):.0e}" == "2e-06"
    text = report(run).text
    assert "overlap" not in text
    assert "not established" not in text
    difference = "+11.5 points ["
    assert f"Of 200 problems 24 went from wrong to right and 1 from right to wrong: {difference}" in text
    assert f"With sampled answers 24 were answered better and 1 worse: {difference}" in text
    control = "Of the 200 problems that both answered, GRPO"
    assert f"{control} alone is right on 24, the control alone on 1: {difference}" in text
    assert f"{control} is better on 24, the control on 1: {difference}" in text
    assert text.count("more than chance explains (exact McNemar, p = 2 × 10⁻⁶)") == 4
    assert "GRPO +11.5 points; exact McNemar p = 2 × 10⁻⁶" in text


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
