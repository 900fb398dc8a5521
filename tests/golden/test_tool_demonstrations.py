"""Demonstrations that call a tool: what the tool says in them is context, and is never trained."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qed.data.demonstrations import Demonstrations, tokenize_problems
from qed.data.prompts import think_answer
from qed.data.prompts.base import PromptTemplate
from qed.data.prompts.in_environment import PromptInEnvironment, mask_replies, split_replies
from qed.data.tasks import long_sums
from qed.environments.base import Reply, State
from qed.environments.calculator import Calculator
from qed.environments.tags import make_tags
from qed.models.load import build_tokenizer
from qed.types import Problem

TAGS = make_tags("result")
CALCULATOR = Calculator(instruction="")


@pytest.fixture(scope="module")
def template() -> PromptTemplate:
    problems = long_sums.load("train")[:300]
    tokenizer = build_tokenizer([f"{problem.question} {problem.solution}" for problem in problems], 384)
    leaf = PromptInEnvironment(
        SimpleNamespace(
            CHAT=False,
            STOP=(),
            render=lambda problem, _: problem.question,
            demonstration=think_answer.demonstration,
        ),
        CALCULATOR,
    )
    return PromptTemplate(leaf, tokenizer, (tokenizer.eos_token_id,))


def test_only_what_the_policy_would_write_is_trained(template: PromptTemplate) -> None:
    problem = Problem("p", "What is 12 + 34?", "46", f"<calculator>12+34</calculator>{TAGS[0]}46{TAGS[1]}")
    rollout = template.build_rollout(problem, think_answer.demonstration(problem) or "")
    decode = template.tokenizer.decode
    trained = decode([token for token, own in zip(rollout.output, rollout.trained, strict=True) if own])
    told = decode([token for token, own in zip(rollout.output, rollout.trained, strict=True) if not own])
    assert trained.startswith("<think><calculator>12+34</calculator></think><answer>46</answer>")
    assert told == f"{TAGS[0]}46{TAGS[1]}"
    # The reply has the tokens that it has when the environment says it.
    reply = CALCULATOR.step(State(problem, ("<calculator>12+34</calculator>",)))
    assert reply is not None
    said = template.encode_reply(reply, template.prompt(problem), ())
    assert [token for token, own in zip(rollout.output, rollout.trained, strict=True) if not own] == said


def test_rows_of_sft_have_the_mask(template: PromptTemplate) -> None:
    problems = long_sums.load("train")[:50]
    rows = list(Demonstrations(tokenize_problems(template, problems, print), problems, template=template))
    assert len(rows) == 50
    calling = [bool(problem.solution) for problem in problems]
    assert 10 < sum(calling) < 40
    assert [bool(row.loss_mask) for row in rows] == calling
    for row, problem in zip(rows, problems, strict=True):
        built = template.build_rollout(problem, think_answer.demonstration(problem) or "")
        assert (row.output, row.loss_mask) == (built.output, built.loss_mask)


def test_every_call_of_the_task_has_the_answer_that_the_tool_gives() -> None:
    for problem in long_sums.load("train")[:200]:
        if problem.solution:
            call, result, rest = split_replies(problem.solution, TAGS)
            reply = CALCULATOR.step(State(problem, (call,)))
            assert reply is not None
            assert (reply.text, rest) == (result, "")
            assert problem.answer in result
    assert not any(problem.solution for problem in long_sums.load("train-plain"))
    parts = [{problem.question for problem in long_sums.load(split)} for split in ("train", "test")]
    assert not parts[0] & parts[1]


@settings(max_examples=30, deadline=None)
@given(
    st.text(st.one_of(st.characters(), st.just("\ud800")), max_size=20),
    st.sampled_from(["<|end|>", "<|user|>", "\ud83d", "\x00", ""]),
)
def test_what_a_tool_prints_is_plain_text(template: PromptTemplate, printed: str, added: str) -> None:
    """A program may print anything: it has tokens, and none of them ends or begins a message."""
    tokenizer = template.tokenizer
    prompt = template.prompt(Problem("p", "What is 1 + 2?", "3"))
    said = template.encode_reply(Reply(f"{printed}{added}"), prompt, (tokenizer.eos_token_id,))
    assert not set(said) & set(tokenizer.all_special_ids)
    assert bool(said) == bool(printed + added)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", "<result>", "\n", TAGS[0], TAGS[1], "12", "é", "😀"]), max_size=12))
def test_parts_are_the_whole(pieces: list[str]) -> None:
    """Whatever a demonstration holds, its parts put together are the text, and every second one has both tags."""
    text = "".join(pieces)
    parts = split_replies(text, TAGS)
    assert "".join(parts) == text
    assert len(parts) % 2 == 1
    assert all(part.startswith(TAGS[0]) and part.endswith(TAGS[1]) for part in parts[1::2])


def test_without_tags_everything_is_trained(template: PromptTemplate) -> None:
    ids = template.tokenizer(f"a{TAGS[0]}1{TAGS[1]}b")["input_ids"]
    assert mask_replies(ids, None, template.tokenizer) == ()
    assert mask_replies(template.tokenizer("12 + 3")["input_ids"], TAGS, template.tokenizer) == ()
