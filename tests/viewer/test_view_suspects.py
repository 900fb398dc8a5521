"""The answers that a person should read first, each found by the rule that names it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking_views import Asked
from making_views import Plan, make_view

from qed.runs.step_index import StepIndex
from qed.viewer.duplicates import find_duplicates
from qed.viewer.inspecting import MAX_ITEMS, RULES, Answer, inspect_step

PLAN = Plan("first", steps=8)
PLAIN: dict[str, Any] = {
    **{"reward": 0.0, "correct": False, "format_ok": True, "tier": "typed", "n_tokens": 100, "stop_reason": "stop"},
    **{"source": "policy", "given": 0, "extracted": "7", "repetition": 0.1, "rare": 0.01, "shingles": None},
}


def build(*groups: list[dict[str, Any]]) -> StepIndex:
    """An index of groups of answers, each the plain one with changes."""
    about, rows = [], []
    for group, own in enumerate(groups):
        rewards = [reward for row in own if (reward := row.get("reward", 0.0)) is not None]
        rows += [{**PLAIN, **row, "group": group, "answer": number} for number, row in enumerate(own)]
        right = sum(bool(row.get("correct")) for row in own)
        known = {"reward_min": min(rewards), "reward_max": max(rewards), "n": len(own), "n_right": right}
        about.append({"id": f"p{group}", "question": f"Question {group}?", "gold": "1", **known})
    return StepIndex(0, about, {name: [row[name] for row in rows] for name in rows[0]})


def flag(kind: str, *groups: list[dict[str, Any]]) -> list[tuple[int, int | None]]:
    """The group and the answer of each item of a kind."""
    return [(each.group, each.answer) for each in inspect_step(build(*groups), 3).flagged[kind].answers]


RIGHT = {"correct": True, "reward": 1.0}


@pytest.mark.parametrize(
    ("kind", "answers", "expected"),
    [
        ("format_without_answer", [{"extracted": None}, {}, {"extracted": " "}], [0, 2]),
        ("format_without_answer", [{"tier": "extract"}, {"tier": "unknown"}, {"tier": "string"}], [0, 1]),
        ("format_without_answer", [{"extracted": None, **RIGHT}, {"extracted": None, "format_ok": False}], []),
        ("reward_without_correct", [RIGHT, {"reward": 0.6}, {"reward": 0.4}, {}], [1]),
        ("reward_without_correct", [{"reward": 0.1}, {"reward": 0.1}], []),
        ("reward_without_correct", [{"correct": True, "reward": 0.2}, {"reward": 0.3}, {"reward": 1.0}], [2, 1]),
        ("reward_without_correct", [RIGHT, {"reward": 0.9, "correct": None}, {"reward": None}], []),
        ("format_without_answer", [{"extracted": None, "tier": "error"}, {"extracted": None}], [1]),
        ("reward_without_correct", [RIGHT, {"reward": 0.9, "tier": "error"}], []),
        ("repetition", [{"repetition": 0.5}, {"repetition": 0.3}, {"repetition": 0.9, "n_tokens": 12}], [0]),
        ("garbled", [{"rare": 0.2}, {"rare": 0.3}, {"rare": 0.05}, {"rare": None}], [1, 0]),
        ("truncated", [{"stop_reason": "length"}, {}, {"stop_reason": "length", "n_tokens": 900}], [2, 0]),
        ("grader_timeout", [{"tier": "timeout"}, {"tier": "error"}, {"tier": "typed"}], [0, 1]),
    ],
)
def test_a_rule_flags_what_it_says(kind: str, answers: list[dict[str, Any]], expected: list[int]) -> None:
    assert flag(kind, answers) == [(0, answer) for answer in expected]


def test_texts_that_the_policy_has_not_written_are_never_flagged() -> None:
    bad = {"rare": 0.9, "repetition": 0.9, "stop_reason": "length", "tier": "timeout", "extracted": None}
    for source in ("expert", "demonstration", "replay"):
        found = inspect_step(build([RIGHT, {**bad, "source": source, "reward": 0.9}]), 3).flagged
        assert sum(each.count for each in found.values()) == 0


def test_a_group_whose_answers_earn_the_same_is_an_item_without_an_answer() -> None:
    groups = [RIGHT] * 3, [RIGHT, {}], [{}] * 4, [{}]
    assert flag("zero_spread", *groups) == [(2, None), (0, None)]
    items = inspect_step(build(*groups), 3).flagged["zero_spread"].answers
    assert [item.detail for item in items] == [
        "all 4 answers earn 0; none right",
        "all 3 answers earn 1; all right",
    ]


def test_answers_that_could_not_be_graded_do_not_give_a_group_a_signal() -> None:
    failed = {"reward": None, "tier": "error"}
    groups = [RIGHT, failed, failed], [RIGHT, RIGHT, failed], [RIGHT, {}, failed]
    items = inspect_step(build(*groups), 3).flagged["zero_spread"].answers
    assert [(item.group, item.detail) for item in items] == [
        (1, "all 2 answers that could be graded earn 1; all right"),
        (0, "the only answer that could be graded earns 1; all right"),
    ]


def test_columns_that_an_older_file_lacks_flag_nothing() -> None:
    index = build([RIGHT, {}])
    for name in list(index.columns):
        if name not in ("group", "answer"):
            del index.columns[name]
    found = inspect_step(index, 3).flagged
    assert {kind for kind, each in found.items() if each.count} <= {"zero_spread"}
    assert inspect_step(StepIndex(0), 3).n_answers == 0


def test_all_are_counted_and_the_most_telling_ones_listed() -> None:
    found = inspect_step(build([{"rare": 0.1 + n / 1_000} for n in range(500)]), 3).flagged["garbled"]
    assert (found.count, len(found.answers)) == (500, MAX_ITEMS)
    assert found.answers[0].answer == 499


SAME = [11, 12, 13, 14, 15, 16, 17, 18]
NEAR = [99, 12, 13, 14, 15, 16, 17, 18]
FAR = [99, 98, 13, 14, 15, 16, 17, 18]
OTHER = [1, 2, 3, 4, 5, 6, 7, 8]


def duplicates(*steps: StepIndex) -> list[Answer]:
    """The near duplicates of steps."""
    return find_duplicates([inspect_step(index, step).texts for step, index in enumerate(steps)]).answers


def test_an_answer_like_one_to_another_problem_is_a_near_duplicate() -> None:
    found = duplicates(build([{"shingles": SAME}, {"shingles": SAME}, {"shingles": OTHER}]))
    assert found == []  # two equal answers to one problem are no news
    one = build([{"shingles": SAME}, {"shingles": OTHER}], [{"shingles": NEAR}])
    assert [(each.group, each.answer, each.value) for each in duplicates(one)] == [(1, 0, 7 / 8), (0, 0, 7 / 8)]
    assert duplicates(build([{"shingles": SAME}], [{"shingles": FAR}])) == []


def test_problems_of_other_steps_count_by_their_ids() -> None:
    first, second = build([{"shingles": SAME}]), build([{"shingles": OTHER}], [{"shingles": SAME}])
    found = duplicates(first, second)
    assert {(each.step, each.group) for each in found} == {(0, 0), (1, 1)}
    again = build([{"shingles": SAME}])
    assert duplicates(first, again) == []  # the same problem, asked again


def test_a_copied_demonstration_is_named_first() -> None:
    expert = {"shingles": SAME, "source": "expert", "given": 100}
    found = duplicates(build([expert, {"shingles": NEAR}, {"shingles": SAME, "given": 40}], [{"shingles": SAME}]))
    assert [(each.group, each.answer) for each in found] == [(1, 0), (0, 1)]
    assert all("those of the demonstration at step 0, group 0, answer 0" in each.detail for each in found)


def test_short_texts_are_equal_by_chance() -> None:
    assert duplicates(build([{"shingles": SAME, "n_tokens": 9}], [{"shingles": SAME, "n_tokens": 9}])) == []


def test_duplicates_are_those_of_a_comparison_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    groups: list[list[dict[str, Any]]] = []
    for _ in range(60):
        base = [[int(value) for value in rng.integers(0, 3, 8)] for _ in range(4)]
        groups.append([{"shingles": hashes} for hashes in base])
    rows = [(group, hashes["shingles"]) for group, own in enumerate(groups) for hashes in own]
    expected = {
        number
        for number, (group, hashes) in enumerate(rows)
        for other, others in rows
        if other != group and sum(a == b for a, b in zip(hashes, others, strict=True)) == 8
    }
    index = build(*groups)
    found = find_duplicates([inspect_step(index, 0).texts])
    assert {each.group * 4 + (each.answer or 0) for each in found.answers} >= expected


def test_many_answers_are_compared_quickly() -> None:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 1 << 32, (20_000, 8)).tolist()
    index = build(*[[{"shingles": one} for one in hashes[at : at + 8]] for at in range(0, len(hashes), 8)])
    texts = inspect_step(index, 0).texts
    begin = time.process_time()
    assert find_duplicates([texts]).count == 0
    assert time.process_time() - begin < 2  # 0.05 s on a free core


def test_a_run_shows_the_suspects_of_its_last_steps(tmp_path: Path) -> None:
    make_view(tmp_path, PLAN)
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    reply = ask("suspects", run="first")
    assert (reply["first"], reply["last"], reply["complete"]) == (5, 8, True)
    assert reply["n_answers"] == 4 * PLAN.groups * PLAN.answers
    kinds = {each["kind"]: each for each in reply["kinds"]}
    assert set(kinds) == {*RULES, "near_duplicate"}
    # The special answers of every step, see `making_views`.
    expected = {"repetition": (1, 5), "garbled": (2, 5), "grader_timeout": (2, 4)}
    items = {kind: {(each["step"], each["group"], each["answer"]) for each in kinds[kind]["items"]} for kind in kinds}
    for kind, place in expected.items():
        assert {(step, *place) for step in range(5, 9)} <= items[kind], kind
    assert (5, 1, 4) in items["reward_without_correct"]
    for kind in kinds.values():
        assert kind["label"]
        assert kind["about"].endswith(".")
        assert kind["count"] >= len(kind["items"])
        assert all(item["question"] and item["detail"] for item in kind["items"])
    assert [alarm["name"] for alarm in reply["alarms"]] == ["reward_without_accuracy"]
    assert reply["alarms"][0]["step"] == 7


def test_a_range_of_steps_can_be_chosen(tmp_path: Path) -> None:
    make_view(tmp_path, PLAN)
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    reply = ask("suspects", run="first", first=6, last=6)
    assert (reply["first"], reply["last"]) == (6, 6)
    assert {item["step"] for kind in reply["kinds"] for item in kind["items"]} == {6}
    assert reply["alarms"] == []
    assert ask("suspects", run="first", first=100)["n_answers"] == 0
