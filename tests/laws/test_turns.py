"""The turns of an answer: what an environment writes is context, is tokenised once, and is nobody's answer."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import make_model
from threaded import run_threads
from turning import Turning

from qed.config.plugins import list_leaves, load_leaf
from qed.data.prompts.base import PromptTemplate
from qed.data.prompts.in_environment import PromptInEnvironment
from qed.environments.base import SINGLE, Environment, Reply, State, load_environment
from qed.environments.retry import Retry
from qed.errors import UsageError
from qed.grading.judge import _decode_rollout, _encode_rollout
from qed.rollout.describe import describe_groups
from qed.rollout.replay import decode_rollout, encode_rollout
from qed.rollout.shared import SharedSampler
from qed.rollout.stages import flatten, sample
from qed.rollout.turns import TurnGrader, find_turns, read_turns
from qed.sampling.base import Sampling
from qed.sampling.hf import HFSampler
from qed.sampling.native.sampler import NativeSampler
from qed.training.flops import count_sampled_work
from qed.training.parallel import Parallel
from qed.types import UNGRADED, Completion, Grade, Group, Problem, Request

END = 1
ADDRESS = (5, "rollout", 1)
PROBLEMS = [Problem(name, question, "1") for name, question in zip("pqr", ("cd", "cde", "fghij"), strict=True)]
MESSAGES = st.booleans()
# Made once: a new model's weights come from random numbers that all threads of the process share.
MODEL = make_model(initializer_range=0.5)


class Letters:
    """A tokenizer of single letters, which keeps what it was given; what is no letter becomes one."""

    chat_template, eos_token_id = None, END
    all_special_ids = (END,)

    def __init__(self) -> None:
        self.given: list[str] = []

    def __call__(self, text: str | list[str], **_: bool) -> dict[str, list[Any]]:
        if isinstance(text, list):
            return {"input_ids": [self(one)["input_ids"] for one in text]}
        self.given.append(text)
        return {"input_ids": [3 + ord(letter) % 20 for letter in text]}

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        return "".join(chr(97 + token) for token in tokens if token != END)

    def batch_decode(self, rows: Any, skip_special_tokens: bool) -> list[str]:
        return [self.decode(row.tolist(), skip_special_tokens) for row in rows]

    def get_added_vocab(self) -> dict[str, int]:
        return {}


class Keeping(NativeSampler):
    """A sampler that keeps what it has been asked, and what it has sampled."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.calls: list[tuple[Any, list[list[Completion]]]] = []

    def generate(self, prompts: Any, seeds: Any, sampling: Sampling, given: Any = ()) -> list[list[Completion]]:
        found = super().generate(prompts, seeds, sampling, given)
        self.calls.append((prompts, found))
        return found


def make_template(environment: Environment, tokenizer: Letters, stop: tuple[str, ...] = ()) -> PromptTemplate:
    leaf = SimpleNamespace(CHAT=False, STOP=stop, render=lambda problem, _: problem.question)
    return PromptTemplate(PromptInEnvironment(leaf, environment), tokenizer, (END,))


def make_sampler(tokenizer: Letters, rows: int = 128, kind: type[HFSampler] = Keeping) -> Any:
    return kind(copy.deepcopy(MODEL), tokenizer, ends=(END, 2), rows_per_batch=rows)


def sampled(
    environment: Environment, problems: Sequence[Problem] = PROBLEMS, most: int = 30, count: int = 4, **options: Any
) -> tuple[list[Group], Any, Letters]:
    tokenizer = Letters()
    sampler = make_sampler(tokenizer, **options)
    template = make_template(environment, tokenizer)
    requests = [Request(problem, count) for problem in problems]
    sampling = Sampling(1.0, most, template.stop)
    return sample(requests, sampler, template, sampling, ADDRESS, 7, grader=grade_all), sampler, tokenizer


def grade_all(groups: Sequence[Group]) -> Any:
    return [[Grade(1.0, "a" in rollout.text, True, None) for rollout in group] for group in groups]


def list_tokens(groups: Sequence[Group]) -> dict[tuple[str, int], tuple[int, ...]]:
    return {(each.problem.id, each.index): tuple(each.output) for each in flatten(groups)}


@settings(max_examples=6, deadline=None)
@given(message=MESSAGES, most=st.integers(6, 40))
def test_what_it_writes_is_not_the_policys(message: bool, most: int) -> None:
    """Neither trained nor sampled, and without a log-prob; the sampled tokens are the policy's, in order."""
    groups, sampler, _ = sampled(Turning(message=message), most=most)
    written = [answer for _, rows in sampler.calls for row in rows for answer in row]
    assert sum(each.trained_count for each in flatten(groups)) == sum(len(answer.tokens) for answer in written)
    for rollout in flatten(groups):
        assert list(rollout.on_policy) == list(rollout.trained)
        assert len(rollout.output) <= most
        parts = list(find_turns(rollout))
        assert [replied for replied, _ in parts] == [number % 2 == 1 for number in range(len(parts))]
        assert len(parts) == 2 * len(rollout.turn_rewards) + 1
        for replied, tokens in parts:
            assert any(tuple(answer.tokens) == tuple(rollout.output[tokens]) for answer in written) != replied
            assert all(value == 0.0 for value in rollout.logps[tokens]) or not replied
            assert all(value <= 0 and math.isfinite(value) for value in rollout.logps[tokens])
    verdict = Grade(0.0, False, True, None)
    described = describe_groups([[replace(each, grade=verdict) for each in group] for group in groups])
    assert described["length/total"] == sum(len(answer.tokens) for answer in written)


@pytest.mark.parametrize("message", [False, True])
def test_each_reply_is_tokenised_once_and_no_answer_is(message: bool) -> None:
    groups, sampler, tokenizer = sampled(Turning(message=message))
    # Each group's prompt once; then one text for each reply, and nothing that the policy wrote.
    replies = tokenizer.given[len(PROBLEMS) :]
    assert tokenizer.given[: len(PROBLEMS)] == [problem.question for problem in PROBLEMS]
    said = sum(len(each.turn_rewards) for each in flatten(groups)) + sum(
        each.stop_reason == "length" and len(each.output) < 30 for each in flatten(groups)
    )
    assert len(replies) == said > 0
    assert all("[" in text and "]" in text for text in replies)
    # What the sampler reads in a later turn are the tokens of the turns before, and those of the replies.
    outputs = list_tokens(groups).values()
    for prompts, _ in sampler.calls[1:]:
        for prompt in prompts:
            starts = [len(each) for each in map(tuple, (rollout.prompt for rollout in flatten(groups)))]
            assert any(tuple(prompt[start:]) == output[: len(prompt) - start] for start in starts for output in outputs)


@settings(max_examples=4, deadline=None)
@given(chosen=st.permutations(PROBLEMS), taken=st.integers(1, 3), message=MESSAGES)
def test_a_turns_numbers_depend_on_address_problem_index_and_turn(
    chosen: list[Problem], taken: int, message: bool
) -> None:
    """Not on the order, on the other problems, or on which answers share a batch."""
    environment = Turning(message=message)
    whole = list_tokens(sampled(environment)[0])
    part = list_tokens(sampled(environment, chosen[:taken], rows=3)[0])
    assert part == {key: output for key, output in whole.items() if key in part}
    fewer = list_tokens(sampled(environment, count=2)[0])
    assert fewer == {key: output for key, output in whole.items() if key[1] < 2}


def test_the_reference_sampler_takes_the_same_turns() -> None:
    for message in (False, True):
        found = [list_tokens(sampled(Turning(message=message), kind=kind)[0]) for kind in (Keeping, HFSampler)]
        assert found[0] == found[1]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_the_turns(world: int) -> None:
    """Each answer goes on where it has begun, and the environment is asked about it once, by one rank."""
    expected = list_tokens(sampled(Turning())[0])
    samplers = [make_sampler(Letters()) for _ in range(world)]

    def work(parallel: Parallel) -> tuple[dict[tuple[str, int], tuple[int, ...]], list[list[tuple[int, ...]]], int]:
        own = samplers[parallel.rank]
        asked: list[State] = []

        class Asked(Turning):
            def step(self, state: State) -> Reply | None:
                asked.append(state)
                return super().step(state)

        template = make_template(Asked(), own.tokenizer)
        requests = [Request(problem, 4) for problem in PROBLEMS]
        sampler = SharedSampler(own, own.model, parallel)
        groups = sample(requests, sampler, template, Sampling(1.0, 30, template.stop), ADDRESS)
        begun = [
            [(*p, *a.tokens) for p, row in zip(prompts, rows, strict=True) for a in row] for prompts, rows in own.calls
        ]
        return list_tokens(groups), begun, len(asked)

    found = run_threads(work, world)
    assert [tokens for tokens, _, _ in found] == [expected] * world
    alone: list[State] = []

    class Counting(Turning):
        def step(self, state: State) -> Reply | None:
            alone.append(state)
            return super().step(state)

    sampled(Counting())
    assert sum(count for _, _, count in found) == len(alone)
    assert all(count for _, _, count in found)
    for _, begun, _ in found:
        for before, after in pairwise(begun):
            assert all(any(answer[: len(one)] == one for one in before) for answer in after)
    assert sum(len(begun[-1]) for _, begun, _ in found)


def test_turns_of_an_answer_draw_different_numbers() -> None:
    """Were the first turn's numbers drawn again, turns behind equal tokens would repeat each other."""
    source = sampled(Turning(), count=40)[0]
    turns_of = [[each.output[part] for replied, part in find_turns(each) if not replied] for each in flatten(source)]
    several = [turns for turns in turns_of if len(turns) > 1]
    assert len(several) > 20
    assert sum(turns[0] == turns[1] for turns in several) < len(several) / 2


@pytest.mark.parametrize("environment", [Turning(max_turns=1), Environment(max_turns=4)])
def test_one_turn_is_an_answer_without_environment(environment: Environment) -> None:
    """An environment that never speaks, or may not, changes no bit where it stops nothing."""
    silent = replace(environment) if not environment.stop else Environment()
    expected, found = sampled(SINGLE)[0], sampled(silent)[0]
    assert expected == found
    assert all(not rollout.loss_mask and not rollout.turn_rewards for rollout in flatten(sampled(environment)[0]))


def test_only_the_policys_last_message_is_graded() -> None:
    for rollout in flatten(sampled(Turning(message=True))[0]):
        *_, (_, last) = find_turns(rollout)
        assert rollout.text == Letters().decode(rollout.output[last], True)
    for rollout in flatten(sampled(Turning(message=False))[0]):
        assert "[" not in rollout.text
        turns = read_turns(rollout, make_template(Turning(), Letters()))
        assert rollout.text == "".join(turns)


def test_a_turns_reward_is_added_and_a_retry_is_discounted() -> None:
    groups, *_ = sampled(Turning(reward=0.5))
    graded: Any = grade_all
    grader = TurnGrader(graded, Turning())
    for group, grades in zip(groups, grader(groups), strict=True):
        for rollout, grade in zip(group, grades, strict=True):
            assert grade.reward == pytest.approx(1.0 + sum(rollout.turn_rewards))
    retried = Retry(discount=0.5).finish(Grade(1.0, True, True, None), (0.0, 0.0))
    assert retried.reward == 0.25


@pytest.mark.parametrize("tier", UNGRADED)
def test_a_retry_does_not_call_an_answer_wrong_that_nothing_judged(tier: str) -> None:
    grade = Grade(0.0, False, False, None, tier=tier)
    state = State(Problem("p", "?", "1"), ("1",), grade)
    assert Retry().step(state) is None
    assert Retry().step(replace(state, grade=Grade(0.0, False, True, None))) is not None


def test_a_retry_stops_at_a_right_answer() -> None:
    groups, *_ = sampled(Retry(max_turns=4, text="no"), count=8, most=60)
    for rollout in flatten(groups):
        texts = read_turns(rollout, make_template(Retry(), Letters()))
        assert not any("a" in text for text in texts[:-1])
        assert "a" in texts[-1] or len(texts) == 4 or rollout.stop_reason == "length"
    assert {len(rollout.turn_rewards) for rollout in flatten(groups)} > {0, 1}


@pytest.mark.parametrize("name", ["length", "overlong", "cosine"])
def test_what_it_writes_costs_the_policy_nothing(name: str) -> None:
    """A reward of an answer's length is that of the policy's tokens, in a child too."""
    rollouts = [rollout for rollout in flatten(sampled(Turning())[0]) if rollout.turn_rewards]
    reward = replace(load_leaf("rewards", name).reward, max_tokens=20)
    assert any(reward(rollout).reward != reward(replace(rollout, loss_mask=())).reward for rollout in rollouts)
    for rollout in rollouts:
        own = tuple(token for token, trained in zip(rollout.output, rollout.trained, strict=True) if trained)
        assert reward(rollout) == reward(replace(rollout, output=own, loss_mask=(), sampled_mask=()))
        assert _decode_rollout(_encode_rollout(rollout)).trained_count == rollout.trained_count
    work = count_sampled_work([rollouts])
    assert (
        work.labels == sum(rollout.trained_count for rollout in rollouts) < sum(len(each.output) for each in rollouts)
    )


def test_turns_survive_a_checkpoint() -> None:
    groups, *_ = sampled(Turning(reward=0.1))
    problems = {problem.id: problem for problem in PROBLEMS}
    for rollout in flatten(groups):
        assert decode_rollout(encode_rollout(rollout), problems) == rollout


@pytest.mark.parametrize("name", list_leaves("environments"))
@settings(max_examples=20, deadline=None)
@given(turns=st.lists(st.text(max_size=30), min_size=1, max_size=4), right=st.sampled_from([None, True, False]))
def test_every_environment_of_the_shelf_keeps_the_contract(name: str, turns: list[str], right: bool | None) -> None:
    environment = load_environment(name)
    assert environment == load_environment(name, (f"{name}.max_turns={environment.max_turns}",))
    *_, asked = environment.start(PROBLEMS[0])
    assert asked == {"role": "user", "content": PROBLEMS[0].question}
    grade = None if right is None else Grade(float(right), right, True, None)
    states = [State(PROBLEMS[0], tuple(turns[: count + 1]), grade) for count in range(len(turns))]
    replies = environment.reply(states)
    assert replies == environment.reply(states), "the same turns have the same reply"
    assert [environment.reply([state]) for state in states] == [[reply] for reply in replies]
    assert all(reply is None or reply.text for reply in replies)
    final = Grade(1.0, True, True, None)
    assert environment.finish(final, ()) == final, "a single turn is graded as it is"
    # Nobody is told that a right answer is wrong.
    assert not (right and any(reply and reply.message for reply in replies))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (lambda state: 1 / 0, "failed with ZeroDivisionError: division by zero .line"),
        (lambda state: "text", "must return a Reply or None"),
        (lambda state: Reply(""), "a Reply without text; None ends"),
    ],
)
def test_an_environment_that_fails_is_named(said: Any, message: str) -> None:
    class Failing(Environment):
        def step(self, state: State) -> Reply | None:
            found: Reply | None = said(state)
            return found

    with pytest.raises(UsageError, match=f"The environment Failing.*{message}"):
        sampled(Failing(max_turns=2))


def test_a_message_that_has_ended_is_not_continued() -> None:
    """Whether it has ended is known, and text that would stand behind it, outside of any message, is refused."""
    asked: list[State] = []

    class Continuing(Turning):
        def step(self, state: State) -> Reply | None:
            asked.append(state)
            return Reply("[so]", message=self.message)

    groups, *_ = sampled(Continuing(message=True))
    for rollout in flatten(groups):
        turns = [rollout.output[part] for replied, part in find_turns(rollout) if not replied]
        for number, turn in enumerate(turns[: len(rollout.turn_rewards)]):
            texts = read_turns(rollout, make_template(Turning(), Letters()))[: number + 1]
            assert any(state.turns == texts and state.ended == (turn[-1] == END) for state in asked)
    assert {state.ended for state in asked} == {True, False}
    with pytest.raises(UsageError, match="Continuing: step has returned a Reply without message=True, but the policy"):
        sampled(Continuing(message=False))


@pytest.mark.parametrize("name", ["calculator", "python"])
def test_a_tool_does_not_answer_behind_an_end_token(name: str) -> None:
    """A call there is possible: the first `min_tokens` tokens may hold a stop string that ends nothing."""
    state = State(PROBLEMS[0], (f"<{name}>1+2</{name}>",), ended=True)
    assert load_environment(name).reply([state]) == [None]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("retri", (), "retry"),
        ("retry", ("retry.turns=2",), "no option 'turns'"),
        ("retry", ("max_turns=2",), "not of the form retry.FIELD=VALUE"),
        ("retry", ("retry.max_turns=0",), "at least 1"),
        ("retry", ("retry.discount=2",), "between 0 and 1"),
        ("retry", ("retry.max_turns=many",), "max_turns must be"),
    ],
)
def test_what_is_no_environment_is_refused(name: str, options: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_environment(name, options)


def test_a_users_own_environment_is_a_file() -> None:
    own = load_environment(str(Path(__file__).parents[1] / "turning.py"))
    assert own.max_turns == 3
    assert load_environment("retry", ("retry.max_turns=5", "retry.discount=0.9")) == Retry(5, 0.9)
    assert load_environment("single") is not None


def test_an_environment_that_is_never_asked_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "from qed.environments.base import Environment, Reply\n"
        "class Own(Environment):\n"
        "    def step(self, state):\n"
        "        return Reply('no')\n"
        "environment = Own()\n",
        encoding="utf-8",
    )
    with pytest.raises(UsageError, match=r"never asked\. Give a field such as `max_turns: int = 3` to Own, or set"):
        load_environment(str(file))
    assert load_environment(str(file), (f"{file}.max_turns=2",)).max_turns == 2
    undecorated = tmp_path / "undecorated.py"
    undecorated.write_text(file.read_text().replace("    def step", "    max_turns: int = 3\n    def step"))
    with pytest.raises(UsageError, match=r"Write `@dataclass\(frozen=True\)` above Own"):
        load_environment(str(undecorated))
    assert load_environment("retry", ("retry.max_turns=1",)).max_turns == 1
