"""Two runs, or two steps of one, problem by problem: the paired test and the problems that changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from asking_views import Asked
from run_folders import make_evaluation, make_run, make_whole_run

from qed.evaluation.paired import compare_paired
from qed.report.record import read_record

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
    assert "p < 0.01" in task["by_note"]


def test_many_tests_come_with_the_bonferroni_note(ask: Asked) -> None:
    note = ask("compare", a="a", b="b")["note"]
    assert "With 2 tests" in note
    assert "p < 0.025 (Bonferroni)" in note


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
