"""Guided groups: who wrote which token, what is asked of the sampler, and what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_model

from qed.algorithms.base import StepContext
from qed.algorithms.exgrpo import ExGrpo
from qed.algorithms.luffy import Luffy
from qed.algorithms.parts.guidance import ExpertPrefix, Strategy, WholeDemonstrations
from qed.algorithms.parts.policy_gradient import PolicyGradient
from qed.algorithms.prefix_rft import PrefixRft
from qed.algorithms.uft import Uft
from qed.data.prompts.base import PromptTemplate
from qed.errors import UsageError
from qed.rollout.describe import describe_groups
from qed.rollout.replay import ReplayBuffer
from qed.rollout.stages import RequestBatch, sample_batches
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler
from qed.types import Completion, Grade, Group, Problem, Request, Rollout

END = 1
STEP = StepContext(1, 10, seed=5)


class Letters:
    """A tokenizer of single letters; the letter of 0 is `a`."""

    chat_template, eos_token_id = None, END

    def __call__(self, text: str | list[str], **_: bool) -> dict[str, list[Any]]:
        if isinstance(text, list):
            return {"input_ids": [self(one)["input_ids"] for one in text]}
        return {"input_ids": [ord(letter) - 97 for letter in text]}

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(chr(97 + token) for token in tokens if token != END)


class Counting(NativeSampler):
    """A sampler that knows how many answers it was asked for."""

    asked = 0

    def generate(
        self, prompts: Any, seeds: Any, sampling: Sampling, given: Sequence[int] = ()
    ) -> list[list[Completion]]:
        self.asked += sum(map(len, seeds))
        return super().generate(prompts, seeds, sampling, given)


def template(stop: tuple[str, ...] = ()) -> PromptTemplate:
    leaf = SimpleNamespace(
        CHAT=False,
        STOP=stop,
        render=lambda problem, _: problem.question,
        demonstration=lambda problem: problem.solution,
    )
    return PromptTemplate(leaf, Letters(), (END,))


def asked(algorithm: PolicyGradient, problems: Sequence[Problem], step: int = 1, size: int = 4) -> list[Request]:
    return algorithm.plan(problems, size, StepContext(step, 10, seed=5))


def sampled(
    requests: Sequence[Request], stop: tuple[str, ...] = (), most: int = 12
) -> tuple[list[Group], Counter[str], int]:
    sampler, counts = Counting(make_model(), Letters(), ends=(END,)), Counter[str]()
    batch = RequestBatch(requests, Sampling(1.0, most), (5, "rollout", 1))
    (groups,) = sample_batches([batch], sampler, template(stop), 7, counts)
    return groups, counts, sampler.asked


def guided(**settings: Any) -> Luffy:
    return Luffy(guidance=ExpertPrefix(**settings))


def test_nothing_is_generated_for_a_whole_trace() -> None:
    """Three problems of four answers: one with a trace, one without, one whose trace is too long."""
    problems = [Problem("a", "cd", "1", "efgh"), Problem("b", "ce", "1"), Problem("c", "cf", "1", "e" * 12)]
    groups, counts, asked_for = sampled(asked(Luffy(), problems))
    assert [len(group) for group in groups] == [4, 4, 4]
    assert asked_for == 3 + 4 + 4
    trace = groups[0][0]
    assert (trace.source, trace.output, trace.given, trace.text) == ("expert", (4, 5, 6, 7, END), 5, "efgh")
    assert (trace.logps, trace.sampled_mask, trace.loss_mask) == ((0.0,) * 5, (False,) * 5, ())
    assert all(
        rollout.given == 0 and rollout.source == "policy" for rollout in (*groups[0][1:], *groups[1], *groups[2])
    )
    assert [rollout.index for rollout in groups[0]] == [0, 1, 2, 3]
    assert counts == {"guidance/traces": 1, "guidance/without_trace": 1, "guidance/too_long": 1}


def test_the_other_answers_are_those_of_an_unguided_step() -> None:
    """The draws of an answer follow from its number, so a trace in front changes none of them."""
    problems = [Problem("a", "cd", "1", "efgh")]
    plain, _, _ = sampled([Request(problems[0], 4)])
    mixed, _, _ = sampled(asked(Luffy(), problems))
    assert [rollout.output for rollout in mixed[0][1:]] == [rollout.output for rollout in plain[0][1:]]


def test_demonstrations_join_beside_the_answers_of_an_unguided_step() -> None:
    """Three problems of four answers and two demonstrations: one has one, one none, the third's is too long."""
    problems = [Problem("a", "cd", "1", "efgh"), Problem("b", "ce", "1"), Problem("c", "cf", "1", "e" * 12)]
    plain, _, _ = sampled([Request(problem, 4) for problem in problems])
    mixed, counts, asked_for = sampled(WholeDemonstrations(2).plan([Request(p, 4) for p in problems], STEP))
    assert [len(group) for group in mixed] == [5, 4, 4]
    assert asked_for == 12
    for group, expected in zip(mixed, plain, strict=True):
        assert [rollout.output for rollout in group[:4]] == [rollout.output for rollout in expected]
    trace = mixed[0][4]
    assert (trace.source, trace.output, trace.index, trace.is_on_policy) == ("expert", (4, 5, 6, 7, END), 4, False)
    assert counts == {"guidance/traces": 1, "guidance/without_trace": 1, "guidance/too_long": 1}


def test_a_hint_is_that_of_its_whole_group_and_a_prefix_of_one_answer() -> None:
    """Six demonstration tokens, of which the first step of ten gives five; without one, an unguided group."""
    problems = [Problem("a", "cd", "1", "efghi"), Problem("b", "ce", "1"), Problem("c", "cf", "1", "e" * 12)]
    plain, _, _ = sampled([Request(problem, 4) for problem in problems])
    for algorithm, starts in ((Uft(most=1.0), [5, 5, 5, 5]), (PrefixRft(), [5, 0, 0, 0])):
        groups, counts, asked_for = sampled(asked(algorithm, problems))
        assert [rollout.given for rollout in groups[0]] == starts
        assert all(rollout.source == "policy" and rollout.trained_count > rollout.given for rollout in groups[0])
        assert (counts["guidance/without_trace"], counts["guidance/too_long"], asked_for) == (1, 1, 12)
        assert counts["guidance/traces"] == sum(map(bool, starts))
        for group, expected in zip(groups[1:], plain[1:], strict=True):
            assert [rollout.output for rollout in group] == [rollout.output for rollout in expected]


def test_a_demonstration_that_the_grader_judges_wrong_stays_out_unless_it_is_asked_for() -> None:
    (group,), _, _ = sampled(WholeDemonstrations().plan([Request(Problem("a", "cd", "1", "efgh"), 2)], STEP))
    for rollout in group:
        rollout.grade = Grade(0.0, False, False, None)
    assert [len(kept) for kept in WholeDemonstrations().drop_wrong_traces([group])] == [2]
    assert [len(kept) for kept in WholeDemonstrations(wrong_traces="keep").drop_wrong_traces([group])] == [3]


def test_a_share_of_the_problems_takes_demonstrations() -> None:
    requests = [Request(Problem(str(number), "cd", "1", "e"), 4) for number in range(400)]
    drawn = [request.demonstrations for request in WholeDemonstrations(trace_share=0.25).plan(requests, STEP)]
    assert 70 <= sum(drawn) <= 130
    assert not WholeDemonstrations(trace_share=0.0).active


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0, 1), length=st.integers(1, 11), traces=st.sampled_from([-1, 1, 2]))
def test_an_answer_goes_on_from_its_beginning_within_its_budget(share: float, length: int, traces: int) -> None:
    problem = Problem("a", "cd", "1", "e" * length)
    groups, _, asked_for = sampled(asked(guided(traces=traces, least=share, most=share), [problem]))
    written = (4,) * length + (END,)
    count = int(len(written) * share)
    expected = 4 if traces < 0 else traces
    for number, rollout in enumerate(groups[0]):
        own = count if number < expected else 0
        assert rollout.given == own
        assert rollout.output[:own] == written[:own]
        assert len(rollout.logps) == len(rollout.output) <= 12
        assert rollout.logps[:own] == (0.0,) * own
        assert rollout.off_policy == (True,) * own + (False,) * (len(rollout.output) - own)
        assert rollout.trained_count == len(rollout.output)
        assert rollout.stop_reason == ("stop" if rollout.output[-1] == END else "length")
        assert rollout.source == ("expert" if own == len(written) else "policy")
    assert asked_for == sum(rollout.source == "policy" for rollout in groups[0])


@pytest.mark.parametrize("rows", [128, 3])
def test_samplers_agree_on_answers_that_are_begun(rows: int) -> None:
    """Each has its own room, and both keep to it."""
    model = make_model()
    prompts, begun = [(4,), (4, 5), (4, 5, 6, 7), (9,)], [0, 1, 3, 0]
    seeds = [[11 * which + number for number in range(5)] for which in range(4)]
    sampling = Sampling(2.0, 9)
    expected = HFSampler(model, None, (END,), rows).generate(prompts, seeds, sampling, begun)
    found = NativeSampler(model, None, (END,), rows).generate(prompts, seeds, sampling, begun)
    for own, other, already in zip(expected, found, begun, strict=True):
        for one, two in zip(own, other, strict=True):
            assert (one.tokens, one.stop_reason) == (two.tokens, two.stop_reason)
            assert len(one.tokens) + already <= 9
            assert (one.stop_reason == "length") == (one.tokens[-1] != END)
    lengths = {already + len(a.tokens) for own, already in zip(found, begun, strict=True) for a in own}
    assert max(lengths) == 9


def test_a_beginning_that_holds_a_stop_string_is_the_whole() -> None:
    problem = Problem("a", "cd", "1", "efg")
    groups, _, asked_for = sampled(asked(guided(least=0.75, most=0.75), [problem]), stop=("fg",))
    assert groups[0][0].source == "expert"
    assert groups[0][0].output == (4, 5, 6, END)
    assert asked_for == 3


def test_several_traces_are_taken_in_turn_and_known_probabilities_come_along() -> None:
    meta = {"completion": "efg", "traces": ["efg", "hij"], "trace_probabilities": [0.5, -1.0, 1.0, 0.25]}
    groups, _, _ = sampled(asked(guided(traces=2), [Problem("a", "cd", "1", meta=meta)]))
    texts = {rollout.text: rollout for rollout in groups[0][:2]}
    assert set(texts) == {"efg", "hij"}
    known = texts["efg"].behaviour
    assert known[0] == pytest.approx(-0.6931471805599453)
    assert known[1] != known[1]
    assert texts["hij"].behaviour == ()
    other = Problem("a", "cd", "1", meta={**meta, "trace_probabilities": [0.5]})
    assert template().demonstrations(other)[0].behaviour == ()


def test_log_probs_of_the_writer_stay_aligned_behind_a_beginning() -> None:
    meta = {"completion": "efg", "trace_probabilities": [0.5, 1.0, 1.0, 0.25]}
    groups, _, _ = sampled(asked(guided(least=0.5, most=0.5), [Problem("a", "cd", "1", meta=meta)]))
    begun = groups[0][0]
    assert (begun.source, begun.given, len(begun.behaviour)) == ("policy", 2, len(begun.output))
    assert begun.behaviour[:2] == (pytest.approx(-0.6931471805599453), 0.0)
    assert all(value != value for value in begun.behaviour[2:])


def shares(step: int, count: int = 4, **changes: Any) -> tuple[float, ...]:
    return ExpertPrefix(traces=count, **changes).draw_shares(Problem("a", "", ""), 8, StepContext(step, 10**6, 3))


def test_each_strategy_gives_what_it_promises() -> None:
    bounds = {"least": 0.2, "most": 0.8}
    assert shares(1, strategy="fixed", **bounds) == pytest.approx((0.2, 0.4, 0.6, 0.8))
    assert shares(1, count=1, strategy="fixed", **bounds) == (0.2,)
    for step, left in ((1, 0.999), (500, 0.5), (1000, 0.0), (2000, 0.0)):
        assert shares(step, strategy="linear", **bounds) == pytest.approx((0.8 * left,) * 4)
    assert len(shares(1, count=-1)) == 8
    assert len(set(shares(1, **bounds))) == 4
    assert len(set(shares(1, same_share=True, **bounds))) == 1
    assert shares(1, **bounds) == shares(1, **bounds) != shares(2, **bounds)
    assert all(0.2 <= share <= 0.8 for step in range(50) for share in shares(step, **bounds))


@pytest.mark.parametrize(("strategy", "tenths"), [("linear_max", (10, 9, 1, 1)), ("reverse_linear", (1, 2, 10, 10))])
def test_windows_move_by_tenths_and_stay_at_the_last(strategy: Strategy, tenths: tuple[int, ...]) -> None:
    for step, bound in zip((99, 100, 999, 5000), tenths, strict=True):
        several = [
            share
            for name in range(60)
            for share in ExpertPrefix(traces=4, strategy=strategy, least=0.0, most=0.8).draw_shares(
                Problem(str(name), "", ""), 8, StepContext(step, 10**6, 3)
            )
        ]
        assert 0.9 * bound * 0.08 < max(several) <= bound * 0.08


def test_a_share_of_the_problems_is_guided() -> None:
    problems = [Problem(str(number), "", "") for number in range(400)]
    there = [bool(request.shares) for request in asked(guided(trace_share=0.25), problems)]
    assert 70 <= sum(there) <= 130
    assert not any(request.shares for request in asked(guided(trace_share=0.0), problems))
    with pytest.raises(UsageError, match=r"guidance requires 0 <= least <= most <= 1"):
        ExpertPrefix(least=0.5, most=0.2)


def test_figures_are_of_the_policys_own_answers() -> None:
    """A right trace of reward 1 beside two own answers of reward 0."""
    made = [
        Rollout(
            Problem("p", "?", "1"),
            (5,),
            (2,) * length,
            (0.0,) * length,
            "",
            "stop",
            source,
            sampled_mask=(False,) * 9 if length == 9 else (),
        )
        for length, source in ((9, "expert"), (2, "policy"), (4, "policy"))
    ]
    for rollout in made:
        rollout.grade = Grade(float(rollout.given > 0), rollout.given > 0, True, None)
    found = describe_groups([made])
    assert (found["accuracy"], found["reward/mean"], found["length/mean"]) == (0, 0, 3)
    assert (found["guidance/trace_reward"], found["guidance/wrong_traces"]) == (1, 0)
    assert (found["groups/zero_std"], found["groups/all_wrong"], found["groups/all_right"]) == (0, 1, 0)
    made[0].grade = Grade(0.0, False, False, None, tier="error")
    found = describe_groups([made])
    assert (found["grading/errors"], found["guidance/wrong_traces"], "guidance/trace_reward" in found) == (1, 0, False)


def test_a_greedy_baseline_is_asked_for_beside_what_is_given() -> None:
    """Without its baseline no answer of ReMax would earn an advantage, beside a trace and beside a replayed answer."""
    (request,) = asked(Luffy(estimator="remax"), [Problem("p", "?", "1")])
    assert (request.greedy, request.shares, request.count) == (True, (1.0,), 4)
    pool, moment = ReplayBuffer(), StepContext(1, 10, seed=5)
    answers = [Rollout(Problem("p", "?", "1"), (0,), (token,), (-1.0,), "", "stop") for token in range(4)]
    pool.keep(answers, answers[:2])
    (replayed,) = ExGrpo(estimator="remax", mixed=True, choice="newest").recall(pool, 2, 4, moment, lambda rows: [])
    assert (replayed.greedy, len(replayed.extra_completions), replayed.count) == (True, 1, 4)
