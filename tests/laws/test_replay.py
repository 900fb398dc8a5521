"""The pool of earlier answers: what is kept, drawn and forgotten, and that a resumed run goes on with it."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from cutting import by_chance
from hypothesis import given
from hypothesis import strategies as st
from making import make_holes, make_model, make_rollout
from test_randomness_has_an_address import Killed, assert_same_run, small_run

from qed.algorithms.base import StepContext
from qed.algorithms.exgrpo import BUCKETS, ExGrpo
from qed.algorithms.grpo import Grpo
from qed.config.sampling_settings import SamplingSettings
from qed.config.settings import LearnerSettings
from qed.errors import DataError, Diverged
from qed.loops.phase import Phase
from qed.loops.train import train
from qed.rollout.collector import CollectedStep, RolloutCollector
from qed.rollout.curriculum import Curriculum
from qed.rollout.replay import ReplayBuffer, decode_rollout, encode_rollout
from qed.rollout.stages import Stream
from qed.runs.run import Launch, read_lines
from qed.training.batch import collate
from qed.training.learner import Learner
from qed.types import Grade, Group, Groups, Problem, Rollout

EXGRPO = ExGrpo(mixed=True)
NORMAL = BUCKETS["normal"]


def answer(problem: str, tokens: tuple[int, ...], correct: bool = True, version: int = 0) -> Rollout:
    rollout = Rollout(Problem(problem, "?", "1"), (5,), tokens, (-0.5,) * len(tokens), "", "stop", version=version)
    rollout.grade = Grade(float(correct), correct, True, None)
    return rollout


def group(problem: str, right: int, size: int = 8, version: int = 0) -> Group:
    return [answer(problem, (number, version, 1), number < right, version) for number in range(size)]


def filled(sizes: dict[int, int]) -> ReplayBuffer:
    """A pool with so many problems of each number of right answers."""
    pool = ReplayBuffer()
    EXGRPO.remember(
        [group(f"{right}-{which}", right) for right, count in sizes.items() for which in range(count)], pool, 0
    )
    return pool


def test_answers_without_a_reward_are_neither_kept_nor_make_a_problem_unsolved() -> None:
    pool, mixed, solved = ReplayBuffer(), group("a", 2), group("b", 3, size=3)
    for rollout in (mixed[0], solved[1]):
        rollout.grade = Grade(0.0, rollout is mixed[0], True, None, has_reward=False)
    EXGRPO.remember([mixed, solved], pool, 0)
    assert ([answer.output for answer in pool.answers["a"]], pool.successes) == ([mixed[1].output], {"a": 1})
    assert pool.solved == {"b"}
    row = json.loads(json.dumps(encode_rollout(mixed[0])))
    assert decode_rollout(row, {"a": mixed[0].problem}) == mixed[0]


def test_right_answers_of_mixed_groups_are_kept_once_and_with_their_log_probs() -> None:
    pool, first = ReplayBuffer(), group("a", 2)
    first[0].old_logps = (-0.1, -0.2, -0.3)
    EXGRPO.remember([first, group("b", 0), group("c", 8)], pool, 0)
    assert set(pool.answers) == {"a"}
    assert pool.solved == {"c"}
    assert pool.successes == {"a": 2}
    one, two = pool.answers["a"]
    assert (one.behaviour, two.behaviour) == ((-0.1, -0.2, -0.3), (-0.5,) * 3)
    assert (one.source, one.sampled_mask, one.logps) == ("replay", (False,) * 3, (0.0,) * 3)
    assert (one.grade, one.old_logps) == (None, None)
    replayed = [
        replace(one, grade=Grade(1.0, True, True, None)),
        answer("a", (0, 0, 1)),
        answer("a", (9, 1)),
        answer("a", (8, 1), False),
    ]
    EXGRPO.remember([replayed], pool, 1)
    assert [kept.output for kept in pool.answers["a"]] == [(0, 0, 1), (1, 0, 1), (9, 1)], "each answer once"
    assert pool.successes == {"a": 3}, "the replayed answer counts among the right ones"
    ExGrpo().remember([group("d", 3)], pool, 1)
    assert "d" not in pool.answers, "nothing is kept before replay has begun"


@given(
    sizes=st.dictionaries(st.integers(1, 7), st.integers(1, 6), max_size=7),
    count=st.integers(0, 30),
    seed=st.integers(0, 99),
    name=st.sampled_from(sorted(BUCKETS)),
)
def test_a_draw_has_no_problem_twice_and_fills_what_there_is(
    sizes: dict[int, int], count: int, seed: int, name: str
) -> None:
    pool = filled(sizes)
    drawn = pool.draw(count, lambda k: BUCKETS[name](k, 8), (seed, "test"))
    assert len(drawn) == len(set(drawn)) == min(count, sum(sizes.values()))
    assert drawn == pool.draw(count, lambda k: BUCKETS[name](k, 8), (seed, "test"))
    assert set(drawn) <= set(pool.answers)


def test_problems_half_of_whose_answers_were_right_are_drawn_most() -> None:
    """Of one draw each, by the normal density at 1, 4 and 6 around 4: e^-4.5, 1, e^-2."""
    pool = filled({1: 1, 4: 1, 6: 1})
    counted = Counter(pool.draw(1, lambda k: NORMAL(k, 8), (seed, "often"))[0] for seed in range(2000))
    total = math.exp(-4.5) + 1 + math.exp(-2)
    for problem, weight in (("1-0", math.exp(-4.5)), ("4-0", 1.0), ("6-0", math.exp(-2))):
        assert counted[problem] / 2000 == pytest.approx(weight / total, abs=0.03)
    assert [round(BUCKETS[name](6, 8), 3) for name in ("linear", "root", "capped")] == [0.75, 0.866, 0.5]
    assert len(filled({1: 5}).draw(3, lambda _: 0.0, (1,))) == 3, "without a weight each is as likely"


def test_the_pool_forgets_what_is_old_then_what_is_too_much() -> None:
    pool = ReplayBuffer()
    for version in range(4):
        EXGRPO.remember([group("a", 2, version=version), group("b", 1, version=version)], pool, version)
    assert len(pool.answers["a"]) == 8
    assert len(pool.answers["b"]) == 4
    pool.trim(4, max_age=3, per_problem=0, size=0)
    assert {kept.version for kept in pool.answers["a"]} == {1, 2, 3}
    pool.trim(4, 0, per_problem=3, size=0)
    assert [kept.version for kept in pool.answers["a"]] == [3, 3, 2]
    pool.trim(4, 0, 0, size=3)
    assert sorted(kept.version for own in pool.answers.values() for kept in own) == [3, 3, 3]
    pool.trim(9, 1, 0, 0)
    assert (pool.answers, pool.successes) == ({}, {})


def test_solved_problems_retire_with_the_epoch_until_too_few_are_left() -> None:
    pool = filled({3: 2, 8: 3})
    assert len(pool.draw(9, lambda _: 1.0, (1,))) == 2
    EXGRPO.remember([group("3-0", 8, version=1)], pool, 1)
    assert pool.draw(9, lambda _: 1.0, (1,)) == ["3-1"], "what is solved is not drawn"
    assert "3-0" in pool.answers
    pool.end_epoch(10, wanted=4)
    assert "3-0" not in pool.answers
    assert pool.retired == {"3-0", "8-0", "8-1", "8-2"}
    pool.end_epoch(7, wanted=4)
    assert not pool.retired
    stays = ReplayBuffer()
    replace(EXGRPO, retire=False).remember([group("a", 8)], stays, 0)
    assert not stays.solved


def gatherer(problems: int, pool: ReplayBuffer, wanted: int = 4) -> RolloutCollector:
    stream = Stream([Problem(str(number), "?", "1") for number in range(problems)], 0, "test")
    sampling = SamplingSettings(problems_per_step=wanted)
    return RolloutCollector(stream, None, None, None, sampling, None, pool=pool)  # type: ignore[arg-type]


def test_retired_problems_are_passed_over_from_the_next_epoch_on() -> None:
    pool = ReplayBuffer(solved={"1", "2"})
    held = gatherer(6, pool)
    assert {problem.id for problem in held._next_problems(6, ())} == {"0", "1", "2", "3", "4", "5"}
    assert pool.retired == {"1", "2"}
    assert {problem.id for problem in held._next_problems(4, ())} == {"0", "3", "4", "5"}
    every = gatherer(3, ReplayBuffer(solved={"0", "1", "2"}))
    assert len(every._next_problems(9, ())) == 9, "when all are solved, all are asked again"


def test_a_copy_of_the_state_does_not_follow_what_is_collected_later() -> None:
    """A checkpoint may be written while the next step is sampled."""
    held = gatherer(6, filled({3: 2}))
    held.curriculum = Curriculum(replace(held.settings, curriculum="thompson"), held.stream.items, 0)
    held._next_problems(4, ())
    saved = held.copy()
    rows, position = saved.to_rows(), saved.position
    asked = held._next_problems(5, ())
    later = Rollout(asked[0], (1,), (2,), (0.0,), "", "stop", grade=Grade(1.0, True, True, None))
    held.curriculum.rates.add([[later]])
    held.surplus.append([later])
    held.ahead[9] = CollectedStep([[later]], [[later]], {})
    held.pool.keep([later], [later])
    held.pool.solved.add("4")
    held.pool.waiting.append(later)
    assert (saved.to_rows(), saved.position) == (rows, position)
    assert held.position == position + 5


@pytest.mark.parametrize("kind", ["difficulty", "thompson", "learnability"])
def test_problems_retire_under_a_curriculum_too(kind: Literal["difficulty", "thompson", "learnability"]) -> None:
    held = gatherer(6, ReplayBuffer(solved={"1", "2"}))
    problems = [replace(problem, meta={"level": 1}) for problem in held.stream.items]
    held.curriculum = Curriculum(replace(held.settings, curriculum=kind), problems, 0)
    assert {problem.id for problem in held._next_problems(6, ())} == {"0", "1", "2", "3", "4", "5"}
    assert held.pool.retired == {"1", "2"}
    for _ in range(2):
        assert {problem.id for problem in held._next_problems(4, ())} == {"0", "3", "4", "5"}
    again = held._next_problems(4, ("0", "3", "4", "5"))
    assert len(again) == 4, "all that are left were asked in this step"
    assert {problem.id for problem in again} <= {"0", "3", "4", "5"}


def test_replayed_problems_stand_in_for_fresh_ones() -> None:
    """Half of the eight problems, an earlier answer in the first place, of the lowest figure under the policy."""
    pool, seen = filled({3: 6}), []

    def look(rollouts: Any) -> list[tuple[float, float]]:
        seen.extend(rollouts)
        return [(float(rollout.output[0] != 2), float(rollout.output[0] == 1)) for rollout in rollouts]

    moment = StepContext(3, 10, 7)
    requests = EXGRPO.recall(pool, 8, 8, moment, look)
    assert len(requests) == 4
    assert len(seen) == 12
    assert all(request.count == 8 and request.extra_completions[0].output[0] == 2 for request in requests)
    by_perplexity = replace(EXGRPO, choice="perplexity").recall(pool, 8, 8, moment, look)
    assert all(request.extra_completions[0].output[0] == 1 for request in by_perplexity)
    assert {request.problem.id for request in by_perplexity} == {request.problem.id for request in requests}
    for choice in ("random", "newest"):
        assert len(replace(EXGRPO, choice=choice).recall(pool, 8, 8, moment, look)) == 4
    for answers in pool.answers.values():
        answers.insert(1, replace(answers[0], version=5))
    newest = replace(EXGRPO, choice="newest").recall(pool, 8, 8, moment, look)
    assert all(request.extra_completions[0].version == 5 for request in newest)
    assert ExGrpo().recall(pool, 8, 8, moment, look) == []


def test_replay_begins_when_enough_is_right_and_does_not_end() -> None:
    begun = ExGrpo().adapt({"accuracy": 0.36})
    assert isinstance(begun, ExGrpo)
    assert begun.mixed
    assert begun.adapt({"accuracy": 0.0}) == begun
    assert ExGrpo().adapt({"accuracy": 0.35}) == ExGrpo()


@given(seed=st.integers(0, 10**6))
def test_a_kept_rollout_comes_back_number_by_number(seed: int) -> None:
    source = random.Random(seed)
    rollout = make_holes(source, make_rollout(source))
    row = json.loads(json.dumps(encode_rollout(rollout)))
    again = decode_rollout(row, {rollout.problem.id: rollout.problem})
    assert repr(again) == repr(rollout)
    with pytest.raises(DataError, match="not a training problem"):
        decode_rollout(row, {})


@given(seed=st.integers(0, 10**6))
def test_a_row_of_a_checkpoint_with_a_count_for_a_mask_is_read(seed: int) -> None:
    """Earlier versions wrote how many first tokens were given, and log-probs under their writer for those alone."""
    rollout = make_rollout(random.Random(seed))
    row = json.loads(json.dumps(encode_rollout(rollout)))
    del row["sampled_mask"], row["loss_mask"]
    row |= {"given": rollout.given, "behaviour": row["behaviour"][: rollout.given]}
    assert repr(decode_rollout(row, {rollout.problem.id: rollout.problem})) == repr(rollout)


def test_an_answer_with_a_tools_result_is_replayed_without_it() -> None:
    """It is the policy's own, so it is kept; as a replay its own tokens are given, and the result is still not
    trained."""
    pool, right = ReplayBuffer(), answer("a", (2, 3, 4, 1))
    right.loss_mask = right.sampled_mask = (True, False, True, True)
    hinted = answer("a", (5, 3, 4, 1))
    hinted.sampled_mask = (False, True, True, True)
    EXGRPO.remember([[right, hinted, answer("a", (9, 1), False)]], pool, 0)
    (kept,) = pool.answers["a"]
    assert kept.output == right.output
    assert (kept.loss_mask, kept.sampled_mask) == (right.loss_mask, (False,) * 4)
    batch = collate([kept])
    assert batch.expert.tolist() == batch.mask.tolist() == [[1, 0, 1, 1]]
    assert batch.behaviour_logps[0, [0, 2, 3]].tolist() == [-0.5] * 3


def test_a_pool_comes_back_as_it_was() -> None:
    pool = filled({3: 2, 5: 1, 8: 1})
    pool.end_epoch(9, 2)
    EXGRPO.remember([group("z", 8)], pool, 0)
    problems = {name: Problem(name, "?", "1") for name in pool.answers}
    rows = json.loads(json.dumps(pool.to_rows()))
    assert ReplayBuffer.from_rows(rows, problems) == pool


def test_the_learner_looks_at_answers_as_it_trains_on_them() -> None:
    rollouts = [make_rollout(random.Random(seed)) for seed in range(5)]
    learner = Learner(make_model(), Grpo(), LearnerSettings(tokens_per_microbatch=8))
    learner.score(rollouts, old=True)
    for rollout, (entropy, logp) in zip(rollouts, learner.compute_mean_scores(rollouts), strict=True):
        assert logp == pytest.approx(sum(rollout.old_logps or ()) / len(rollout.output))
        assert 0 < entropy < math.log(23)


def test_an_update_that_is_too_large_is_passed_over_and_counted() -> None:
    model = make_model()
    before = [parameter.clone() for parameter in model.parameters()]
    learner = Learner(model, Grpo(), LearnerSettings(lr=0.1, skip_norm=1e-9))
    stats = learner.update([make_rollout(random.Random(0), advantage=1.0)], step=0)
    assert stats["optim/skipped"] == 1
    assert all(math.isfinite(value) for value in stats.values())
    assert all(one.equal(other) for one, other in zip(before, model.parameters(), strict=True))
    with pytest.raises(Diverged):  # whose matter is run.on_non_finite
        learner.update([make_rollout(random.Random(0), advantage=math.nan)], step=0)
    assert (
        Learner(model, Grpo(), LearnerSettings(skip_norm=500.0)).update(
            [make_rollout(random.Random(0), advantage=1.0)], step=0
        )["optim/skipped"]
        == 0
    )


class Generous(Grpo):
    """Samples once more than it needs, so that every other step has groups over."""

    def enough(self, groups: Groups, wanted: int, rounds: int) -> bool:
        return rounds > 0 and len(groups) > wanted


@pytest.mark.usefixtures("few_problems")
@pytest.mark.parametrize("algorithm", [ExGrpo(mixed=True, max_age=3, replay_share=0.8), ExGrpo(), Generous()])
def test_a_resumed_run_goes_on_with_what_was_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: Grpo | ExGrpo
) -> None:
    """Cut after step 3 and resumed from the checkpoint of step 2, it equals the run that was never cut."""
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)
    train(small_run(tmp_path / "whole", steps=6, algorithm=algorithm), Launch())
    record = Phase.record

    def record_and_die(self: Phase, step: int, *rest: Any) -> Any:
        if step == 3:
            raise Killed
        return record(self, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Phase, "record", record_and_die)
        with pytest.raises(Killed):
            train(small_run(tmp_path / "cut", steps=6, algorithm=algorithm), Launch())
    held = read_lines(tmp_path / "cut" / "checkpoints" / "step_000002" / "answers.jsonl")
    assert any("kept" in row or "surplus" in row for row in held)
    train(small_run(tmp_path / "cut", steps=6, algorithm=algorithm), Launch(resume=True))
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    if isinstance(algorithm, ExGrpo):
        rows = read_lines(tmp_path / "whole" / "metrics.jsonl")
        assert sum(row.get("replay/answers", 0) for row in rows) > 0
