"""Answers in lists: k answers to a row, one answer in parts, and what cannot be told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.data.sources.rows import Place
from qed.errors import DataError
from qed.evaluation.answer_lists import split_answers
from qed.evaluation.stored import Scoring, name_columns, read_answers, score_responses, summarize_columns
from qed.evaluation.stored_problems import find_problems

PLACE = Place("answers.jsonl", 1)
Rows = list[dict[str, Any]]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Rows], Path]:
    def write(rows: Rows) -> Path:
        file = tmp_path / "answers.jsonl"
        file.write_text("\n".join(map(json.dumps, rows)))
        return file

    return write


def summarize(file: Path, *keys: str, **options: Any) -> dict[str, Any]:
    return summarize_columns(score_responses(file, Scoring("gt", keys or ("code",), **options)))


@pytest.mark.parametrize(
    "code", [[1, 1, 1, 2], ["so 1", "\\boxed{1}", "1", "2"], [{"text": "1"}] * 3 + [{"text": "2"}]]
)
def test_a_list_of_answers_is_k_answers(write: Callable[[Rows], Path], code: list[Any]) -> None:
    figures = summarize(write([{"code": code, "gt": "1"}, {"code": code[::-1], "gt": 1}]))["answers"]
    assert (figures["n"], figures["k"], figures["answers"], figures["accuracy"]) == (2, 4, 8, 0.75)
    assert list(figures["pass"]) == ["1", "2", "4"]


def test_columns_of_lists_have_their_own_k(write: Callable[[Rows], Path]) -> None:
    rows = [{"one": [1, 2], "other": [1, 1, 1], "third": "1", "gt": "1", "n_tokens": [3, 4]}] * 1
    figures = summarize(write(rows), "one", "other", "third")
    assert [(each["k"], each["accuracy"]) for each in figures.values()] == [(2, 0.5), (3, 1.0), (1, 1.0)]
    assert figures["one"]["mean_tokens"] == 3.5


def test_nested_columns_of_one_parent_keep_their_names(write: Callable[[Rows], Path]) -> None:
    file = write([{"out": {"a": "1", "b": "2"}, "gt": "1"}])
    assert {name: each["accuracy"] for name, each in summarize(file, "out.a", "out.b").items()} == {
        "out.a": 1,
        "out.b": 0,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([{"role": "user", "content": "?"}, {"role": "assistant", "content": "5"}], ["5"]),
        ([{"type": "text", "text": "it is "}, {"type": "text", "text": "5"}], ["it is 5"]),
        ([[{"role": "assistant", "content": "5"}], [{"role": "assistant", "content": "6"}]], ["5", "6"]),
        ([{"message": {"role": "assistant", "content": "5"}}, {"message": {"content": "6"}}], ["5", "6"]),
        ([None, "5"], ["", "5"]),
        ([], [""]),
        ("5", ["5"]),
    ],
)
def test_what_one_answer_is(value: Any, expected: list[str]) -> None:
    assert split_answers(PLACE, value, "5") == expected


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"code": ["1", "2"], "gt": ["1", "2"]}], "both the gold and the answer are lists"),
        ([{"code": ["First 3 + 4.", "That is 7.", "\\boxed{7}"], "gt": "7"}], "only the last item"),
        ([{"code": ["The", " answer", " is", " 7"], "gt": "7"}], "continue each other"),
    ],
)
def test_a_list_that_may_be_one_answer_is_refused(write: Callable[[Rows], Path], rows: Rows, words: str) -> None:
    with pytest.raises(DataError, match=words):
        summarize(write(rows))


def test_what_a_list_is_can_be_said(write: Callable[[Rows], Path]) -> None:
    file = write([{"code": ["1", "2"], "gt": ["1", "2"]}])
    assert [row["text"] for row in score_responses(file, Scoring("gt", ("code",), lists="parts"))["answers"]] == [
        "1, 2"
    ]
    assert summarize(file, lists="answers")["answers"]["k"] == 2
    assert summarize(write([{"code": ["1", "2"], "gt": "1, 2"}]), lists="parts")["answers"]["accuracy"] == 1.0
    file = write([{"code": ["It", " is 7"], "gt": "7"}, {"code": ["First 3 + 4.", "\\boxed{7}"], "gt": "7"}])
    assert [row["text"] for row in score_responses(file, Scoring("gt", ("code",), lists="parts"))["answers"]] == [
        "It is 7",
        "First 3 + 4.\n\\boxed{7}",
    ]


def test_a_repeated_gold_is_one(write: Callable[[Rows], Path]) -> None:
    figures = summarize(write([{"code": ["1", "2", "1"], "gt": ["1", "1", "1"]}]))["answers"]
    assert (figures["k"], figures["accuracy"]) == (3, pytest.approx(2 / 3))


def test_one_copied_row_does_not_change_k(write: Callable[[Rows], Path]) -> None:
    rows: Rows = [{"id": number, "code": "1", "gt": "1"} for number in range(5)]
    table = read_answers(write([*rows, rows[2]]), Scoring("gt", ("code",)))
    assert len(table.rows) == 5
    assert table.notes == ["1 row left out as exact copies of others."]
    table = read_answers(write([*rows, {**rows[2], "code": "2"}]), Scoring("gt", ("code",)))
    assert len(table.rows) == 6
    assert table.notes == ["1 problem with another number of answers than the 1 of most."]
    assert read_answers(write(rows * 2), Scoring("gt", ("code",))).notes == [], "equal answers of a sampled problem"


def test_an_id_with_two_golds_is_two_problems(write: Callable[[Rows], Path]) -> None:
    rows: Rows = [
        {"id": 0, "code": "1", "gt": "1"},
        {"id": 0, "code": "1", "gt": "2"},
        {"id": 1, "code": "1", "gt": "1"},
    ]
    figures = summarize_columns(score_responses(write(rows), Scoring("gt", ("code",))))["answers"]
    assert (figures["n"], figures["k"]) == (3, 1)
    assert read_answers(write(rows), Scoring("gt", ("code",))).notes == [
        "1 id with several golds (0): each gold counts as a problem."
    ]


def test_a_question_under_several_ids_is_said(write: Callable[[Rows], Path]) -> None:
    rows: Rows = [{"id": number, "question": "1 + 0?", "code": "1", "gt": "1"} for number in range(2)]
    (note,) = read_answers(write(rows), Scoring("gt", ("code",))).notes
    assert "--id-key" in note


def test_lists_of_other_lengths_are_said(write: Callable[[Rows], Path]) -> None:
    rows = [{"id": number, "code": ["1", "2"], "gt": "1"} for number in range(4)]
    table = read_answers(write([*rows, {"id": 4, "code": [], "gt": "1"}]), Scoring("gt", ("code",)))
    assert table.notes == ["1 problem with another number of answers than the 2 of most."]


def test_a_row_without_an_answer_is_not_told_about_one_name(write: Callable[[Rows], Path]) -> None:
    with pytest.raises(DataError, match=r"row 2: there is no column of the known names .*response"):
        read_answers(write([{"response": "1", "gt": "1"}, {"gt": "1"}]), Scoring("gt"))


@given(st.lists(st.lists(st.sampled_from("12"), min_size=1, max_size=9), min_size=1, max_size=5))
def test_copies_that_are_left_out_do_not_change_the_accuracy(answers: list[list[str]]) -> None:
    """Equal answers are samples too: a problem that was asked more often than most has them more often."""
    rows: Rows = [{"id": str(id), "code": text, "gt": "1"} for id, own in enumerate(answers) for text in own]
    kept, _ = find_problems([(Place("answers.jsonl", 1), row) for row in rows], "gt", "id")
    for id, own in enumerate(answers):
        left = [each.row["code"] for each in kept if each.id == str(id)]
        assert left.count("1") * len(own) == own.count("1") * len(left)


@pytest.mark.parametrize("name", ["Qwen2.5-7B.jsonl", "Qwen2.5-7B.jsonl.gz"])
def test_the_whole_name_of_a_file_is_that_of_its_task(name: str) -> None:
    assert name_columns(Path(name), Scoring()) == ["Qwen2.5-7B"], "two sizes of a model have files of their own"


def test_what_a_file_tells_of_an_answer_is_kept(write: Callable[[Rows], Path]) -> None:
    """An empty column tells nothing, and a column of whole numbers with gaps is one of floating-point numbers."""
    row = {"gold": "1", "response": "1", "stop_reason": None, "finish_reason": "length"}
    file = write([{"id": n, **row, "n_tokens": tokens} for n, tokens in enumerate((12.0, float("nan"), 7))])
    (rows,) = score_responses(file, Scoring()).values()
    assert [(found["stop_reason"], found["n_tokens"]) for found in rows] == [("length", n) for n in (12, None, 7)]
    lists = {"response": ["1", "2"], "stop_reason": [None, "</answer>"], "finish_reason": ["length", "stop"]}
    (rows,) = score_responses(write([{"gold": "1", **lists}]), Scoring()).values()
    assert [found["stop_reason"] for found in rows] == ["length", "stop"]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"type": "Algebra", "Level": "Level 5", "dataset": "MATH"}, ("Algebra", 5, "MATH")),
        ({"subject": "Algebra", "type": "word", "level": "2", "data_source": "aime"}, ("Algebra", 2, "aime")),
        ({"level": "hard", "source": ""}, (None, "hard", None)),
        ({"level": "²"}, (None, "²", None)),
        # As qed writes it: `source` says who wrote the answer.
        ({"group_id": "a-1", "sample_id": 0, "source": "policy", "data_source": "amc"}, (None, None, "amc")),
        ({"group_id": "a-1", "sample_id": 0, "source": "policy"}, (None, None, None)),
    ],
)
def test_subject_level_and_source_are_found_as_in_a_file_of_problems(
    write: Callable[[Rows], Path], row: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    (rows,) = score_responses(write([{"gold": "1", "response": "1", **row}]), Scoring()).values()
    assert tuple(rows[0].get(name) for name in ("subject", "level", "data_source")) == expected
