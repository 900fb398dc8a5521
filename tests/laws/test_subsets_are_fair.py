"""A subset of a benchmark has its share of every subject and level, and depends on the seed alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.data import tasks
from qed.data.subsets import draw_subset
from qed.types import Problem


def build(sizes: list[list[int]]) -> list[Problem]:
    """Problems of subjects with levels: so many of each."""
    return [
        Problem(f"{subject}-{level}-{number}", "?", "1", meta={"subject": f"s{subject}", "level": level})
        for subject, levels in enumerate(sizes)
        for level, size in enumerate(levels, 1)
        for number in range(size)
    ]


@settings(deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=6),
    st.integers(1, 60),
    st.integers(0, 5),
)
def test_every_subject_has_its_share(sizes: list[list[int]], count: int, seed: int) -> None:
    problems = build(sizes)
    drawn, told = draw_subset(problems, count, seed)
    assert len(drawn) == min(count, len(problems))
    assert drawn == [problem for problem in problems if problem in drawn], "in the order of the benchmark"
    share = len(drawn) / len(problems)
    subjects = Counter(problem.meta["subject"] for problem in drawn)
    for number, levels in enumerate(sizes):
        if len(sizes) > 1:
            assert abs(subjects[f"s{number}"] - share * sum(levels)) < 1
    assert bool(told) == (count < len(problems))


@given(st.permutations(build([[3, 4], [5, 2]])), st.integers(1, 13), st.integers(0, 3))
def test_the_order_of_a_file_does_not_matter(problems: list[Problem], count: int, seed: int) -> None:
    ordered = sorted(problems, key=lambda problem: problem.id)
    assert set(_ids(draw_subset(problems, count, seed)[0])) == set(_ids(draw_subset(ordered, count, seed)[0]))


def test_every_problem_is_drawn_about_as_often() -> None:
    problems = build([[7, 3], [11]])
    times = Counter(name for seed in range(600) for name in _ids(draw_subset(problems, 6, seed)[0]))
    assert len(times) == len(problems)
    assert min(times.values()) > 100
    assert max(times.values()) < 250


def test_levels_are_mixed_where_a_stride_meets_only_one() -> None:
    problems = [Problem(str(number), "?", "1", meta={"level": 1 + number % 2}) for number in range(200)]
    drawn, told = draw_subset(problems, 100, 0)
    assert Counter(problem.meta["level"] for problem in drawn) == {1: 50, 2: 50}
    assert told == "100 of 200 problems, drawn by seed 0, stratified by level"


def test_a_hundred_questions_of_mmlu_are_of_all_sizes_of_subjects(shared: Path) -> None:
    problems = tasks.load_task(f"mmlu:test@{shared / 'data' / 'mmlu' / 'test'}", "test", {}, Counter(), {})
    drawn, told = draw_subset(problems, 100, 0)
    subjects, all_of_them = (Counter(problem.meta["subject"] for problem in some) for some in (drawn, problems))
    assert max(subjects.values()) <= 12
    assert len(subjects) == 57
    assert all(abs(subjects[name] - size * 100 / len(problems)) < 1 for name, size in all_of_them.items())
    assert told.endswith("stratified by subject")


def _ids(problems: list[Problem]) -> list[str]:
    return [problem.id for problem in problems]


@pytest.mark.parametrize("count", [0, 3, 9])
def test_all_are_kept_where_no_fewer_are_asked(count: int) -> None:
    problems = build([[3]])
    assert draw_subset(problems, count, 0) == (problems, "")
