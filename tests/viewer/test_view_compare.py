"""Two runs, or two steps of one, problem by problem: the paired test and the problems that changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from asking_views import Asked
from run_folders import make_evaluation, make_run, make_whole_run, rows_of

from qed.evaluation.arms import compare_arms
from qed.evaluation.intervals import adjust_holm
from qed.evaluation.paired import compare_paired
from qed.evaluation.summary import summarize
from qed.report.record import read_record
from qed.runs.run import write_evaluation
from qed.viewer.params import Refused

OTHER = {0: ("00000000", "00000000"), 8: ("11001110", "11111111")}


@pytest.fixture
def ask(tmp_path: Path) -> Asked:
    """Two runs that were evaluated on the same problems, one with every figure, and an evaluation alone."""
    make_run(tmp_path, "a")
    make_run(tmp_path, "b", outcomes=OTHER)
    make_whole_run(tmp_path, "whole")
    make_evaluation(tmp_path, "alone", share=0.9)
    return Asked(tmp_path, cache=tmp_path / "cache")


def test_the_last_evaluations_are_compared_by_the_paired_test(ask: Asked, tmp_path: Path) -> None:
    reply = ask("compare", a="a", b="b")
    task = next(each for each in reply["tasks"] if each["decoding"] == "greedy")
    assert (task["task"], task["step_a"], task["step_b"]) == ("sums", 8, 8)
    assert (task["steps_a"], task["steps_b"]) == ([0, 4, 8], [0, 8])
    rows = (read_record(tmp_path / name).read_rows(8, "sums", "greedy") for name in ("a", "b"))
    test = compare_paired(*rows)
    assert test is not None
    for name in ("n", "before", "after", "difference", "ci_lo", "ci_hi", "p_value", "unpaired", "test"):
        assert task["test"][name] == getattr(test, name)
    assert [each["problem"] for each in task["gained"]] == [each.problem for each in test.gained] == ["p1"]
    assert [each["problem"] for each in task["lost"]] == [each.problem for each in test.lost] == ["p2", "p3"]
    assert (task["n_gained"], task["n_lost"]) == (1, 2)


def test_changed_problems_name_their_groups_of_both_sides(ask: Asked) -> None:
    for task in ask("compare", a="a", b="b")["tasks"]:
        for change in (*task["gained"], *task["lost"]):
            for side in ("a", "b"):
                where = {"task": "sums", "decoding": task["decoding"], "step": task[f"step_{side}"]}
                group = change[f"group_{side}"]
                # The index beside the answers has the group under this number.
                problems = ask("problem", run=side, id=change["problem"])["evaluations"]
                known = [each["group"] for each in problems if {name: each[name] for name in where} == where]
                assert known == [group]
            assert change["question"] == f"Question {change['problem'][1:]}?"
            assert change["gold"] == change["problem"][1:]


def test_other_steps_can_be_chosen(ask: Asked) -> None:
    reply = ask("compare", a="a", b="b", step_a=4, step_b=0)
    assert {(each["step_a"], each["step_b"]) for each in reply["tasks"]} == {(4, 0)}
    assert all(each["test"]["after"] == 0 for each in reply["tasks"])
    skipped = ask("compare", a="a", b="b", step_a=5)
    assert skipped["tasks"] == []
    assert {each["reason"] for each in skipped["skipped"]} == {"not evaluated at this step"}


def test_a_run_is_compared_with_itself_step_against_step(ask: Asked) -> None:
    reply = ask("compare", a="a", b="a")
    assert {(each["step_a"], each["step_b"]) for each in reply["tasks"]} == {(0, 8)}
    assert reply["settings"] == []
    assert "seeds" not in reply["note"]
    later = ask("compare", a="a", b="a", step_a=4, step_b=8)
    assert {(each["step_a"], each["step_b"]) for each in later["tasks"]} == {(4, 8)}


def test_subjects_and_levels_have_tests_of_their_own(ask: Asked, tmp_path: Path) -> None:
    task = next(each for each in ask("compare", a="whole", b="whole")["tasks"] if each["decoding"] == "sampled")
    kinds = [(each["kind"], each["value"]) for each in task["by"]]
    assert kinds == [("subject", "algebra"), ("subject", "geometry"), ("level", "1"), ("level", "2"), ("level", "3")]
    record = read_record(tmp_path / "whole")
    rows = [
        [row for row in record.read_rows(step, task["task"], "sampled") if row["subject"] == "geometry"]
        for step in (0, 8)
    ]
    test = compare_paired(*rows)
    assert test is not None
    assert (task["by"][1]["difference"], task["by"][1]["p_value"]) == (test.difference, test.p_value)
    assert "With 5 tests" in task["by_note"]
    assert "require p (Holm) < 0.05" in task["by_note"]


def test_many_tests_are_adjusted_for_their_number(ask: Asked) -> None:
    reply = ask("compare", a="a", b="b")
    assert "With 2 tests" in reply["note"]
    assert "require p (Holm) < 0.05" in reply["note"]
    tests = [each["test"] for each in reply["tasks"]]
    assert [test["p_holm"] for test in tests] == adjust_holm([test["p_value"] for test in tests])
    assert any(test["p_holm"] > test["p_value"] for test in tests)


def test_settings_that_differ_are_listed(tmp_path: Path) -> None:
    for name, settings in (
        ("a", "method: grpo\nlearner: {lr: 0.1, steps: 4}\nrun: {seed: 0}\n"),
        ("b", "method: grpo\nlearner: {lr: 0.2, steps: 4}\nextra: [1]\n"),
    ):
        make_run(tmp_path, name)
        (tmp_path / name / "settings.yaml").write_text(settings)
    reply = Asked(tmp_path, cache=tmp_path / "cache")("compare", a="a", b="b")
    assert reply["settings"] == [
        {"key": "learner.lr", "a": 0.1, "b": 0.2},
        {"key": "run.seed", "a": 0, "b": None},
        {"key": "extra", "a": None, "b": [1]},
    ]


def test_single_decodings_under_two_names_are_paired(ask: Asked, tmp_path: Path) -> None:
    make_evaluation(tmp_path / "more", "scored", share=0.5, decoding="responses", answers=1)
    reply = ask("compare", a="alone", b="more/scored")
    assert [(each["decoding"], each["decoding_b"]) for each in reply["tasks"]] == [("sampled", "responses")]
    assert reply["tasks"][0]["test"]["n"] == 12


def test_runs_without_a_common_problem_have_no_test(ask: Asked) -> None:
    reply = ask("compare", a="a", b="alone")
    assert (reply["tasks"], reply["skipped"]) == ([], [])


def test_what_else_differs_is_said(ask: Asked, tmp_path: Path) -> None:
    asked = {"prompt": "boxed", "max_tokens": 48, "seed": 1, "model": "m"}
    for name, more in (
        ("one", {}),
        ("other", {"prompt": "r1_zero", "seed": 2, "api_key": "sk-abcdefghijklmnopqrstuv"}),
    ):
        rows = rows_of(0, "sampled", 0.5, 4)
        summary = {"sampled": {**summarize(rows), "settings": {**asked, **more}}}
        write_evaluation(tmp_path / name, 0, "maths", rows, summary)
    (task,) = ask("compare", a="one", b="other")["tasks"]
    assert task["warnings"][0] == "Other prompt: boxed before, r1_zero after. Evaluate both with the same --prompt."
    assert "sk-abcdefghijklmnopqrstuv" not in json.dumps(task)
    cut = [row for row in rows if row["stop_reason"] == "length"]
    assert cut
    assert "are stored" not in str(task["warnings"])
    assert task["truncated"]["a"] == task["truncated"]["b"]
    assert task["truncated"]["a"]["truncated"] == len(cut)
    assert task["truncated"]["a"]["truncated_right"] == sum(row["correct"] for row in cut)


def test_pass_at_k_and_votes_are_compared(ask: Asked, tmp_path: Path) -> None:
    (task,) = ask("compare", a="whole", b="alone", measure="pass@2")["tasks"]
    rows = [
        read_record(tmp_path / name).read_rows(step, "maths", "sampled") for name, step in (("whole", 8), ("alone", 0))
    ]
    test = compare_paired(rows[0], rows[1], "pass@2")
    assert test is not None
    assert (task["test"]["difference"], task["test"]["p_value"]) == (test.difference, test.p_value)
    assert task["measures"] == ["accuracy", "pass@2", "pass@4", "maj@2", "maj@4"]
    assert ask("compare", a="whole", b="alone", measure="maj@4")["tasks"][0]["test"]["measure"] == "maj@4"
    (skipped,) = ask("compare", a="whole", b="alone", measure="pass@8")["skipped"]
    assert "answers for pass@8" in skipped["reason"]
    with pytest.raises(Refused, match="no measure"):
        ask("compare", a="whole", b="alone", measure="mean@8")


def test_a_run_counts_once_in_an_arm(ask: Asked, tmp_path: Path) -> None:
    make_run(tmp_path, "b2", outcomes=OTHER)
    reply = ask("arms", a="a\na", b="b\nb2\nb")
    assert reply == ask("arms", a="a", b="b\nb2")
    assert (reply["a"], reply["b"]) == (["a"], ["b", "b2"])
    assert [task["test"]["seeds"] for task in ask("arms", a="a\na", b="a")["tasks"]] == [[1, 1]] * len(reply["tasks"])
    with pytest.raises(Refused, match="The run b is in both arms"):
        ask("arms", a="a\nb", b="b")


def test_seeds_are_compared_together(ask: Asked, tmp_path: Path) -> None:
    make_run(tmp_path, "b2", outcomes=OTHER)
    reply = ask("arms", a="a", b="b\nb2")
    assert {each["decoding"] for each in reply["tasks"]} == {"greedy", "sampled"}
    rows = [read_record(tmp_path / name).read_rows(8, "sums", "greedy") for name in ("a", "b", "b2")]
    test = compare_arms(rows[:1], rows[1:])
    assert test is not None
    found = reply["tasks"][0]["test"]
    assert (found["difference"], found["ci_lo"], found["p_value"]) == (test.difference, test.ci_lo, test.p_value)
    assert found["seeds"] == [1, 2]
    with pytest.raises(Refused, match="no measure"):
        ask("arms", a="a", b="b", measure="mean@8")
    with pytest.raises(Refused, match="More than 24 runs"):
        ask("arms", a="a", b="\n".join(["b"] * 24))


def test_a_side_whose_file_was_cut_off_is_named(ask: Asked, tmp_path: Path) -> None:
    (file,) = (tmp_path / "b").rglob("step_000008/sums.jsonl")
    lines = file.read_text().splitlines(keepends=True)
    greedy = [line for line in lines if json.loads(line)["decoding"] == "greedy"]
    lines.remove(greedy[-1])
    file.write_text("".join(lines))
    task = next(each for each in ask("compare", a="a", b="b")["tasks"] if each["decoding"] == "greedy")
    expected = f"B: {len(greedy) - 1} of {len(greedy)} answers are stored: their file is incomplete."
    assert task["warnings"][0] == expected
