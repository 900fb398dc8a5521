"""Every stage of a step has a time of its own: none is counted twice, and together they are the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.algorithms.base import StepContext
from qed.algorithms.dapo import Dapo
from qed.config.sampling_settings import SamplingSettings
from qed.guards.timer import StageTimer
from qed.guards.watchdog import HangReport, watch
from qed.rollout.collector import RolloutCollector
from qed.rollout.stages import Stream
from qed.sampling.base import Sampling
from qed.types import Completion, Grade, Group, Problem, Prompt

STAGES = ("sample", "grade", "score", "update")
# A stage: its name, the seconds before each of the stages inside it and after the last, and those stages.
Stage = tuple[str, list[int], list[Any]]


def stages(inner: st.SearchStrategy[list[Stage]]) -> st.SearchStrategy[list[Stage]]:
    one = st.tuples(st.sampled_from(STAGES), st.lists(st.integers(0, 9), min_size=4, max_size=4), inner)
    return st.lists(one, max_size=3)


class Clock:
    """Seconds that pass when they are told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def play(timer: StageTimer, clock: Clock, program: Sequence[Stage], wanted: dict[str, float]) -> None:
    """Go through stages, and add up what each takes by itself."""
    for name, seconds, inner in program:
        with timer(name):
            for number, part in enumerate(seconds):
                clock.now += part
                wanted[name] = wanted.get(name, 0.0) + part
                play(timer, clock, inner[number : number + 1], wanted)


@given(program=st.recursive(st.just([]), stages, max_leaves=12), between=st.integers(0, 9))
def test_times_are_exclusive_and_add_up_to_the_step(program: list[Stage], between: int) -> None:
    clock, wanted = Clock(), dict[str, float]()
    timer = StageTimer(clock)
    with timer("save"):
        clock.now += between
    timer.begin_step(1)
    play(timer, clock, program, wanted)
    clock.now += between
    row = timer.end_step()
    assert {name: row.pop(f"time/{name}") for name in wanted} == wanted
    assert row == {"time/save": between, "time/step": sum(wanted.values()) + between}
    timer.begin_step(2)
    assert timer.end_step() == {"time/step": 0}


def test_a_stage_that_fails_is_over() -> None:
    clock = Clock()
    timer = StageTimer(clock)

    def fail() -> None:
        with timer("sample"), timer("grade"):
            clock.now += 2
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    clock.now += 5
    with timer("update"):
        clock.now += 3
    assert timer.seconds == {"sample": 0, "grade": 2, "update": 3}
    assert timer.pop("grade") == 2
    assert timer.pop("grade") == 0


def test_the_watchdog_knows_the_stage(tmp_path: Any) -> None:
    timer = StageTimer()
    with watch(HangReport(tmp_path / "hang.txt", "", ""), 0) as dog:
        timer.begin_step(7)
        assert (dog.step, dog.stage) == (7, "step")
        with timer("sample"):
            assert (dog.step, dog.stage) == (7, "sample")
            with timer("grade"):
                assert dog.stage == "grade"
            assert dog.stage == "sample"
        assert dog.stage == "step"


def test_rounds_of_sampling_and_of_grading_are_told_apart() -> None:
    """Dynamic sampling asks again once it has graded; half of the problems here are never solved."""
    clock = Clock()

    class Sampler:
        def generate(self, prompts: Any, seeds: Any, sampling: Sampling) -> list[list[Completion]]:
            clock.now += 10
            return [[Completion((seed % 2,), (-1.0,), "stop") for seed in own] for own in seeds]

    class Grader:
        def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
            clock.now += 3
            return [[self.grade(int(r.problem.id) % 2 * r.output[0]) for r in group] for group in groups]

        def grade(self, right: int) -> Grade:
            return Grade(float(right), bool(right), True, None)

    class Template:
        stop = ()

        def prompt(self, problem: Problem) -> Prompt:
            return Prompt("", "")

        def tokens(self, prompt: Prompt) -> tuple[int, ...]:
            return (5,)

        def read(self, prompt: Prompt, output: tuple[int, ...], min_tokens: int = 0) -> str:
            return ""

    timer = StageTimer(clock)
    stream = Stream([Problem(str(number), "?", "1") for number in range(8)], 0, "problems")
    settings = SamplingSettings(problems_per_step=3, group_size=6, max_tokens=1)
    gatherer = RolloutCollector(stream, Sampler(), Template(), Grader(), settings, lambda some: [], timer=timer)  # type: ignore[arg-type]
    timer.begin_step(1)
    with timer("sample"):
        gathered = gatherer.collect(Dapo(), StepContext(1, 1, 0))
    rounds = gathered.counts["groups/rounds"]
    assert rounds > 1
    assert timer.end_step() == {"time/sample": 10 * rounds, "time/grade": 3 * rounds, "time/step": 13 * rounds}
