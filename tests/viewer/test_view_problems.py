"""One problem through training: its groups by step, first right, forgotten, and what it was shown."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from asking_views import Asked
from making_views import Plan, build_group, make_view, open_run, write_step

from qed.runs.run import Run, read_lines
from qed.runs.step_file import encode_line
from qed.types import UNGRADED
from qed.viewer import histories
from qed.viewer.histories import Visit
from qed.viewer.params import Refused
from qed.viewer.problems import find_first_right, find_forgotten

PLAN = Plan("first", steps=8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps with answers."""
    place = tmp_path_factory.mktemp("runs")
    make_view(place, PLAN)
    return place


@pytest.fixture
def ask(runs: Path, tmp_path: Path) -> Asked:
    """The endpoints over this run."""
    return Asked(runs, cache=tmp_path)


def read_groups(folder: Path, problem: str) -> list[tuple[int, int, int]]:
    """The step, the number of graded answers and of right ones, of each group of a problem."""
    found = []
    for path in sorted(folder.glob("rollouts/*.jsonl.zst")):
        rows = [row for row in read_lines(path) if row["group_id"] == problem]
        if rows:
            graded = [row["correct"] for row in rows if row["tier"] not in UNGRADED]
            found.append((rows[0]["step"], len(graded), sum(graded)))
    return found


def test_a_problem_has_its_groups_of_every_step(ask: Asked, runs: Path) -> None:
    listed = ask("problems", run="first")
    assert listed["complete"] is True
    assert listed["n"] == len(listed["problems"])
    trained = [each for each in listed["problems"] if each["n_training"] > 1]
    assert trained
    for each in trained:
        problem = ask("problem", run="first", id=each["id"])
        expected = read_groups(runs / "first", each["id"])
        assert [(visit["step"], visit["n"], visit["n_right"]) for visit in problem["training"]] == expected
        assert len(problem["training"]) == each["n_training"]
        assert len(problem["evaluations"]) == each["n_evaluations"]
        visits = sorted([*problem["evaluations"], *problem["training"]], key=lambda visit: visit["step"])
        right = [visit["step"] for visit in visits if visit["n_right"]]
        assert each["first_right"] == (right[0] if right else None)
        assert (problem["first_right"] or {}).get("step") == each["first_right"]


def test_numbers_of_groups_lead_to_the_answers(ask: Asked, runs: Path) -> None:
    problem = ask("problem", run="first", id="train-002")
    for visit in problem["training"]:
        rows = read_lines(runs / f"first/rollouts/step_{visit['step']:06d}.jsonl.zst")
        groups = list(dict.fromkeys(row["group_id"] for row in rows))
        assert groups[visit["group"]] == "train-002"
    for visit in problem["evaluations"]:
        rows = read_lines(runs / f"first/eval/step_{visit['step']:06d}/{visit['task']}.jsonl")
        groups = list(dict.fromkeys((row["decoding"], row["group_id"]) for row in rows))
        assert groups[visit["group"]] == (visit["decoding"], "train-002")


def test_a_demonstration_is_shown_with_its_problem(ask: Asked, runs: Path) -> None:
    texts = {
        row["group_id"]: row["text"]
        for path in sorted(runs.glob("first/rollouts/*.jsonl.zst"), reverse=True)
        for row in reversed(read_lines(path))
        if row["source"] in ("expert", "demonstration")
    }
    listed = ask("problems", run="first")["problems"]
    for each in listed:
        assert ask("problem", run="first", id=each["id"])["demonstration"] == texts.get(each["id"])
    assert texts


def test_a_long_question_is_whole(tmp_path: Path) -> None:
    run = open_run(tmp_path, PLAN)
    group = build_group(PLAN, 5, 0)
    question = "Count them. " * 100 + "How many is $x^2$?"
    asked = replace(group[0].problem, id="long", question=question)
    run.rollouts(5, [[replace(each, problem=asked) for each in group]])
    problem = Asked(tmp_path, cache=tmp_path / "cache")("problem", run="first", id="long")
    assert problem["question"] == question
    assert [sorted(piece) for piece in problem["question_pieces"]] == [["text"], ["block", "math", "source"], ["text"]]


def test_an_unknown_problem_is_refused(ask: Asked) -> None:
    with pytest.raises(Refused, match="no saved answer to the problem other"):
        ask("problem", run="first", id="other")


def test_a_history_grows_with_its_run_and_begins_anew_when_it_is_resumed(tmp_path: Path) -> None:
    run = open_run(tmp_path, PLAN)
    for step in range(1, 7):
        write_step(run, PLAN, step)
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    count = sum(each["n_training"] for each in ask("problems", run="first")["problems"])
    assert count == 2 * PLAN.groups
    write_step(run, PLAN, 7)
    assert sum(each["n_training"] for each in ask("problems", run="first")["problems"]) == 3 * PLAN.groups
    Run(run.folder).truncate(5)
    assert sum(each["n_training"] for each in ask("problems", run="first")["problems"]) == PLAN.groups


def test_a_long_run_is_read_over_several_requests(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "SECONDS", 0.0)
    monkeypatch.setattr(histories, "_HISTORIES", histories._Histories())
    ask = Asked(runs, cache=tmp_path)
    replies = [ask("problems", run="first") for _ in range(16)]
    assert [reply["complete"] for reply in replies][:2] == [False, False]
    assert replies[-1]["complete"] is True
    counts = [len(reply["problems"]) for reply in replies]
    assert counts == sorted(counts)


def test_one_request_at_a_time_reads_or_extends_a_history(ask: Asked) -> None:
    place = ask.library.find("first")
    with histories.open_history(ask.library, place):
        other = threading.Thread(target=lambda: ask("problems", run="first"), daemon=True)
        other.start()
        other.join(0.2)
        assert other.is_alive()
    other.join(30)
    assert not other.is_alive()


def test_damaged_files_of_answers_are_passed_over(tmp_path: Path) -> None:
    folder = make_view(tmp_path, PLAN)
    (folder / "rollouts/step_000005.jsonl.zst").write_bytes(b"nothing of zstd")
    (folder / "eval/step_000004/maths.jsonl").write_text("[1]\n")
    listed = Asked(tmp_path, cache=tmp_path / "cache")("problems", run="first")
    assert listed["complete"] is True
    assert sum(each["n_training"] for each in listed["problems"]) == 3 * PLAN.groups


def visits(*rights: int, n: int = 4, decoding: str = "") -> list[Visit]:
    """One visit to a step."""
    task = "maths" if decoding else ""
    return [Visit(step, task, decoding, 0, n, right, None) for step, right in enumerate(rights)]


@pytest.mark.parametrize(
    ("rights", "forgotten"),
    [
        ((0, 0, 1, 0), []),  # one of four right is no learning
        ((0, 2, 0), [2]),
        ((4, 3, 1, 0, 0), [3]),
        ((4, 0, 4, 0), [1, 3]),
        ((4, 1, 2, 1), []),
        ((), []),
    ],
)
def test_a_problem_is_forgotten_once_none_of_its_answers_is_right(
    rights: tuple[int, ...], forgotten: list[int]
) -> None:
    assert [visit.step for visit in find_forgotten(visits(*rights))] == forgotten


def test_decodings_are_forgotten_each_on_its_own() -> None:
    greedy, sampled = visits(1, 1, n=1, decoding="greedy"), visits(0, 0, decoding="sampled")
    mixed = sorted([*greedy, *sampled, *visits(0, 0)], key=lambda visit: visit.step)
    assert find_forgotten(mixed) == []
    first = find_first_right(mixed)
    assert first is not None
    assert (first.step, first.decoding) == (0, "greedy")


def test_answers_without_a_reward_are_not_in_the_mean_of_a_visit() -> None:
    history = histories.History()
    rewards = (None, 1.0, None, 0.0, 0.0)
    groups = [
        {"id": "p", "question": "?", "n": 1, "n_right": int(reward == 1), "reward_mean": reward} for reward in rewards
    ]
    history.add(1, "task", groups)
    (visit,) = history.list_visits("p")
    assert (visit.n, visit.n_right, visit.reward_mean) == (5, 1, pytest.approx(1 / 3))


def test_scattered_answers_of_an_evaluation_are_one_visit(tmp_path: Path) -> None:
    """The first answer to each problem, then the second: a right and a wrong one at once are nothing forgotten."""
    rows = [
        {"group_id": name, "decoding": "answers", "gold": "2", "correct": sample == 0, "reward": float(sample == 0)}
        for sample in range(4)
        for name in ("p", "q")
    ]
    run = open_run(tmp_path, PLAN)
    (run.folder / "eval/step_000003").mkdir(parents=True)
    (run.folder / "eval/step_000003/own.jsonl").write_text("".join(map(encode_line, rows)))
    ask = Asked(run.folder, cache=tmp_path / "cache")
    problem = ask("problem", run="first", id="q")
    where = {"step": 3, "task": "own", "decoding": "answers"}
    assert problem["evaluations"] == [{**where, "group": 1, "n": 4, "n_right": 1, "reward_mean": 0.25}]
    assert problem["forgotten"] == []
    listed = {each["id"]: each for each in ask("problems", run="first")["problems"]}
    assert (listed["p"]["n_evaluations"], listed["p"]["last_rate"]) == (1, 0.25)


def test_two_groups_of_a_step_are_no_later_ones() -> None:
    visits = [Visit(step, "", "", group, 2, right, None) for step, group, right in ((1, 0, 2), (1, 5, 0), (2, 0, 0))]
    assert [(visit.step, visit.group) for visit in find_forgotten(visits)] == [(2, 0)]
