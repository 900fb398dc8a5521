"""What is sampled ahead survives a checkpoint bit by bit, and is sampled by the version of its staleness."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import make_rollout

from qed.algorithms.grpo import Grpo
from qed.errors import Interrupted
from qed.rollout.ahead import AheadCollector, AheadState, Steps
from qed.rollout.collector import CollectedStep, RolloutCollector
from qed.rollout.stages import Stream
from qed.types import Problem, Rollout

PROBLEMS = [Problem(f"p{number}", "?", "1") for number in range(4)]
NOTHING: Any = None


def build_collector() -> RolloutCollector:
    return RolloutCollector(Stream(PROBLEMS, 0, "problems"), NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)


def draw_step(source: random.Random) -> CollectedStep:
    """A step whose groups are some of those that it has sampled, and one from the step before."""
    sampled = [[make_rollout(source) for _ in range(source.randint(1, 3))] for _ in range(source.randint(0, 3))]
    groups = [group for group in sampled if source.random() < 0.7] + [[make_rollout(source)]]
    return CollectedStep(groups, sampled, {"groups/rounds": source.randint(1, 3)})


def as_sampled(rollout: Rollout) -> str:
    """A rollout without what the learner writes into it; as text, because NaN is not equal to itself."""
    return repr(replace(rollout, advantage=0.0, old_logps=None, ref_logps=None))


@given(seed=st.integers(0, 10**6), count=st.integers(0, 3))
def test_a_checkpoint_keeps_steps_and_which_answers_they_share(seed: int, count: int) -> None:
    source, collector, restored = random.Random(seed), build_collector(), build_collector()
    collector.ahead = {7 + number: draw_step(source) for number in range(count)}
    restored.restore([json.loads(json.dumps(row)) for row in collector.to_rows()])
    assert list(restored.ahead) == list(collector.ahead)
    for step, before in collector.ahead.items():
        after = restored.ahead[step]
        assert after.counts == before.counts
        for ours, theirs in ((before.groups, after.groups), (before.sampled, after.sampled)):
            assert [[as_sampled(one) for one in some] for some in ours] == [[*map(as_sampled, some)] for some in theirs]
        # The learner writes the advantage into an answer of a group, and the record of all that was sampled shows it.
        shared = [
            [each in [id(one) for one in some] for some in before.sampled] for each in map(id, flat(before.groups))
        ]
        kept = [[each in [id(one) for one in some] for some in after.sampled] for each in map(id, flat(after.groups))]
        assert shared == kept


def flat(groups: list[list[Rollout]]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group]


class Recorded(RolloutCollector):
    """Collects nothing, and notes which version the sampler has and which one it is told."""

    loaded = 0
    noted: list[tuple[int, int, int]]
    gate: Callable[[int], None] = staticmethod(lambda step: None)

    def collect(self, algorithm: Any, context: Any, version: int | None = None) -> CollectedStep:
        step = self.offset + context.step
        Recorded.gate(step)
        Recorded.noted.append((step, Recorded.loaded, version or 0))
        return CollectedStep([], [], {"step": step})


def work_ahead(first: int, last: int, offset: int, staleness: int) -> AheadCollector:
    Recorded.noted, Recorded.loaded, Recorded.gate = [], first, staticmethod(lambda step: None)
    plain = build_collector()
    collector = Recorded(plain.stream, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, offset)
    steps = Steps(first, last, offset, last - offset, 0)
    return AheadCollector(collector, lambda version: lambda: setattr(Recorded, "loaded", version), steps, staleness)


def learn(ahead: AheadCollector, *steps: int) -> AheadState:
    """Take steps and hand over the weights after them, as the learner does; the state behind the last."""
    for step in steps:
        assert ahead.take(step, Grpo()).counts == {"step": step}
        ahead.load(step)
        ahead.release(step, Grpo())
        state = ahead.copy()
    return state


@given(
    offset=st.integers(0, 3),
    done=st.integers(0, 3),
    left=st.integers(0, 6),
    staleness=st.integers(1, 5),
    seed=st.integers(),
)
def test_versions_are_those_of_the_staleness(offset: int, done: int, left: int, staleness: int, seed: int) -> None:
    first, last = offset + done, offset + done + left
    source, ahead = random.Random(seed), work_ahead(first, last, offset, staleness)
    with ahead.running(Grpo()):
        for step in range(first + 1, last + 1):
            state = learn(ahead, step)
            if source.random() < 0.3:
                rows = [row["collected"] for row in state.to_rows() if "collected" in row]
                assert rows == list(range(step + 1, min(step + staleness, last) + 1))
    expected = [max(first, step - 1 - staleness) for step in range(first + 1, last + 1)]
    assert [version for _, version, _ in Recorded.noted] == [version for _, _, version in Recorded.noted] == expected


def test_after_a_stop_only_what_the_checkpoint_needs_is_sampled() -> None:
    ahead, opened = work_ahead(0, 20, 0, 3), threading.Event()
    Recorded.gate = staticmethod(lambda step: None if step <= 2 else ignore(opened.wait(30)))
    ahead.say = lambda line: opened.set()  # the thread waits in its third step until the stop has come
    states = []

    def stop() -> None:
        with ahead.running(Grpo()):
            states.append(learn(ahead, 1))
            raise Interrupted("Stopped.", 143)

    with pytest.raises(Interrupted):
        stop()
    assert [step for step, _, _ in Recorded.noted][:4] == [1, 2, 3, 4]
    assert [row["collected"] for row in states[0].to_rows() if "collected" in row] == [2, 3, 4]
    assert len(Recorded.noted) == 4


def ignore(value: object) -> None:
    """Return nothing."""


@pytest.mark.parametrize("error", [ValueError("lost"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_what_ends_the_thread_is_raised_where_its_step_is_taken(error: BaseException) -> None:
    ahead = work_ahead(0, 9, 0, 2)

    def fail(step: int) -> None:
        if step == 3:
            raise error

    Recorded.gate = staticmethod(fail)
    with pytest.raises(type(error)), ahead.running(Grpo()):
        learn(ahead, 1, 2, 3)
    assert "sampling ahead" not in [thread.name for thread in threading.enumerate()]
