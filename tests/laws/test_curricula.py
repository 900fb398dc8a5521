"""Curricula: choices follow from the seed, the position and the pass rates, and nothing else; their state is saved."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.config.sampling_settings import SamplingSettings
from qed.errors import DataError, UsageError
from qed.rollout.curriculum import Curriculum, PassRates, read_difficulty
from qed.types import Grade, Group, Problem, Rollout

KINDS = ("uniform", "difficulty", "thompson", "learnability")
PROBLEMS = [Problem(f"p{n}", "?", "1", meta={"level": f"Level {n % 5}", "source": "ab"[n % 2] * 2}) for n in range(40)]


def make(kind: str, seed: int = 0, **options: object) -> Curriculum:
    return Curriculum(replace(SamplingSettings(), curriculum=kind, **options), PROBLEMS, seed)  # type: ignore[arg-type]


def answer(problem: Problem, verdicts: str) -> Group:
    """A group of right (1) and wrong (0) answers."""
    return [
        Rollout(problem, (1,), (2,), (0.0,), "", "stop", grade=Grade(float(v), v == "1", True, None)) for v in verdicts
    ]


def walk(curriculum: Curriculum, steps: int, size: int = 8, position: int = 0) -> list[list[str]]:
    """The problems of some steps; a problem is always right if its number is below 10, wrong from 30 on."""
    asked = []
    for step in range(steps):
        chosen = curriculum.choose(position + step * size, size, ())
        groups = []
        for problem in chosen:
            number = int(problem.id[1:])
            groups.append(answer(problem, "1111" if number < 10 else "0000" if number >= 30 else "0110"))
        curriculum.rates.add(groups)
        asked.append([problem.id for problem in chosen])
    return asked


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 99), at=st.integers(1, 11))
def test_what_is_restored_goes_on_alike(kind: str, seed: int, at: int) -> None:
    options = {"mix": ("aa=3", "bb=1")} if seed % 2 or kind == "uniform" else {}
    whole = walk(make(kind, seed, **options), 12)
    first = make(kind, seed, **options)
    assert walk(first, at) == whole[:at]
    copied, second = first.copy(), make(kind, seed, **options)
    walk(first, 2, position=8 * at)  # the copy does not know what comes later
    second.restore(json.loads(json.dumps(copied.to_rows())))
    assert walk(second, 12 - at, position=8 * at) == whole[at:]
    assert make(kind, seed + 1, **options).choose(0, 8, ()) != make(kind, seed, **options).choose(0, 8, ())


@pytest.mark.parametrize("kind", KINDS)
def test_no_problem_is_asked_twice_in_a_step_nor_where_it_is_excluded(kind: str) -> None:
    curriculum = make(kind)
    for step in range(5):
        chosen = [problem.id for problem in curriculum.choose(8 * step, 8, {"p3", "p4"})]
        assert len(set(chosen)) == 8
        assert not {"p3", "p4"} & set(chosen)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_full_with_few_problems(kind: str) -> None:
    """Each is asked about equally often, as by the epochs without a curriculum."""
    curriculum = Curriculum(replace(SamplingSettings(), curriculum=kind), PROBLEMS[:6], 0)  # type: ignore[arg-type]
    asked = Counter(problem.id for problem in curriculum.choose(0, 15, ()))
    assert sorted(asked.values()) == [2, 2, 2, 3, 3, 3]
    assert len(curriculum.choose(15, 8, {"p0", "p1"})) == 8
    assert not curriculum.choose(23, 8, asked)


def test_easy_ones_first_and_all_in_an_epoch() -> None:
    asked = [name for step in walk(make("difficulty"), 5) for name in step]
    assert sorted(asked) == sorted(problem.id for problem in PROBLEMS)
    assert [int(name[1:]) % 5 for name in asked] == sorted(int(name[1:]) % 5 for name in asked)


@pytest.mark.parametrize("kind", ["thompson", "learnability"])
def test_what_is_known_gives_way_to_what_can_be_learned(kind: str) -> None:
    """Of 40 problems half are solved sometimes; the others are asked less once that is known."""
    late = [name for step in walk(make(kind, curriculum_memory=1.0), 60)[40:] for name in step]
    learnable = [10 <= int(name[1:]) < 30 for name in late]
    assert fmean(learnable) > (0.8 if kind == "thompson" else 0.6)


def test_thompson_finds_its_target() -> None:
    curriculum = make("thompson", curriculum_target=0.9)
    for _ in range(50):
        curriculum.rates.add(
            [answer(problem, "1" * 9 + "0" if n < 8 else "01" * 5) for n, problem in enumerate(PROBLEMS)]
        )
    assert {problem.id for problem in curriculum.choose(0, 8, ())} == {f"p{n}" for n in range(8)}


def test_rates_are_those_of_the_formula() -> None:
    """MoPPS with a prior of 1: alpha <- memory * (alpha - 1) + right + 1."""
    rates = PassRates(0.5)
    assert rates.read(PROBLEMS[0]) == (1.0, 1.0)
    rates.add([answer(PROBLEMS[0], "1100")])
    rates.add([answer(PROBLEMS[0], "1000")])
    assert rates.read(PROBLEMS[0]) == (1 + 0.5 * 2 + 1, 1 + 0.5 * 2 + 3)
    assert rates.mean(PROBLEMS[0]) == 3 / 8


def test_only_the_policys_own_graded_answers_count() -> None:
    rates = PassRates(1.0)
    own, *others = answer(PROBLEMS[0], "1000")
    others[0] = replace(others[0], source="expert", sampled_mask=(False,))
    others[1] = replace(others[1], grade=None)
    others[2] = replace(others[2], grade=Grade(0.0, False, False, None, has_reward=False))
    rates.add([[own, *others]])
    assert rates.counts == {"p0": (1.0, 0.0)}


@pytest.mark.parametrize("kind", KINDS)
def test_sources_are_asked_by_their_weights(kind: str) -> None:
    asked = [name for step in walk(make(kind, mix=("aa=3", "bb=1")), 50) for name in step]
    share = Counter("ab"[int(name[1:]) % 2] for name in asked)["a"] / len(asked)
    assert share == pytest.approx(0.75, abs=0.1)
    assert all(int(name[1:]) % 2 for step in walk(make(kind, mix=("aa=0",)), 5) for name in step)


def test_sources_are_the_column_or_the_name_of_the_task() -> None:
    """The ids of problems without a column begin with the name of their task or file."""
    own = [Problem(f"gsm8k-{n}", "?", "1") for n in range(8)] + [Problem(f"my-file-{n}", "?", "1") for n in range(8)]
    mixed = [*own, *(replace(problem, meta={"source": "aa"}) for problem in own[:4])]
    chosen = Curriculum(SamplingSettings(mix=("gsm8k=0", "aa=0")), mixed, 0).choose(0, 8, ())
    assert {problem.id for problem in chosen} == {problem.id for problem in own[8:]}
    by_file = Curriculum(SamplingSettings(mix=("my-file=0", "gsm8k=1")), mixed, 0).choose(0, 8, ())
    assert {problem.id for problem in by_file} <= {problem.id for problem in own[:8]}
    with pytest.raises(UsageError, match="Sources: aa, gsm8k, my-file"):
        Curriculum(SamplingSettings(mix=("math=1",)), mixed, 0)


def test_high_numbers_are_easy_behind_a_hyphen() -> None:
    """As those of a measured pass rate are; the same problems in the opposite order of levels."""
    asked = [name for step in walk(make("difficulty", curriculum_column="-level"), 5) for name in step]
    assert [int(name[1:]) % 5 for name in asked] == sorted((int(name[1:]) % 5 for name in asked), reverse=True)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="no training problem has the source 'cc'"):
        make("uniform", mix=("cc=1",))
    with pytest.raises(UsageError, match="weight 0"):
        make("uniform", mix=("aa=0", "bb=0"))
    for mix in ("aa", "aa=-1", "aa=x", "=1", "aa=nan"):
        with pytest.raises(UsageError, match="SOURCE=WEIGHT"):
            SamplingSettings(mix=(mix,))
    with pytest.raises(DataError, match="has no such column"):
        make("difficulty", curriculum_column="hardness")
    with pytest.raises(DataError, match="has no number in it"):
        make("difficulty", curriculum_column="source")
    with pytest.raises(DataError, match="column hardness"):
        make("difficulty", curriculum_column="-hardness")
    assert not make("uniform").active


@pytest.mark.parametrize(
    ("value", "difficulty"),
    [(3, 3), (-0.5, -0.5), (1e-05, 1e-05), ("Level 3", 3), ("grade-4", 4), ("-2", -2), (".25", 0.25), ("2.5e1", 25)],
)
def test_difficulties_are_read_as_they_are_written(value: object, difficulty: float) -> None:
    assert read_difficulty(Problem("p", "?", "1", meta={"level": value}), "level") == difficulty
