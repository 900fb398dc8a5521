"""A run whose reward is not the prompt's own: what earns that reward in full is imitated verbatim, never rewritten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qed.config.settings import DataSettings
from qed.data.demonstrations import build_key
from qed.data.prompts.base import PromptTemplate, load_leaf
from qed.data.prompts.demonstrations import (
    OTHER_ANSWER,
    OTHER_FORM,
    OTHER_REWARD,
    find_trouble,
    is_read_by_reward,
    is_rewritten,
    write_demonstration,
)
from qed.data.prompts.with_reward import load_run_grader
from qed.data.splits import load_prompt
from qed.guards.preflight_rules import check_demonstrations, check_form
from qed.models import load
from qed.rollout.grader import load_grader
from qed.types import Problem

WORKED = "<start_working_out>3+6=9<end_working_out><SOLUTION>9</SOLUTION>"
XML = "<reasoning>\n3+6=9\n</reasoning>\n<answer>\n9\n</answer>\n"
TRACE = "<think>\n3+6=9\n</think>\n\nIt is $\\boxed{9}$."
THOUGHT = "<think>3+6=9</think> <answer> 9 </answer>"


def ask(reply: str, answer: str = "9") -> Problem:
    return Problem("p", "3+6", answer, meta={"completion": reply, "adapt": True})


def choose(prompt: str, reward: str, *options: str, prompt_options: tuple[str, ...] = ()) -> Any:
    names = tuple(reward.split(","))
    data = DataSettings(prompt=prompt, reward=names, reward_options=options, prompt_options=prompt_options)
    return load_prompt(data)


@pytest.mark.parametrize("prompt", ["chat", "r1_zero", "boxed", "think_answer", "question_only", "luffy", "alpaca"])
@pytest.mark.parametrize(("reward", "reply"), [("working_out", WORKED), ("gsm8k_xml", XML)])
def test_what_earns_the_runs_reward_stays_verbatim(prompt: str, reward: str, reply: str) -> None:
    leaf = choose(prompt, reward)
    assert write_demonstration(leaf, ask(reply)) == (reply, False)
    # gsm8k_xml wants <reasoning> at the beginning, and r1_zero opens <think> before it.
    assert find_trouble(leaf, ask(reply)) == (OTHER_REWARD if (prompt, reward) == ("r1_zero", "gsm8k_xml") else "")
    assert not is_rewritten(leaf, ask(reply))
    data = DataSettings(prompt=prompt, reward=(reward,))
    tokenizer = load.build_tokenizer([reply], 300)
    tokenizer.chat_template = load.CHAT_TEMPLATE
    imitated = PromptTemplate(leaf, tokenizer, (1,)).demonstration(ask(reply))
    assert imitated is not None
    full = {"working_out": 12.5, "gsm8k_xml": 4.0}
    if prompt != "r1_zero":
        assert load_grader(data, 64)([[imitated]])[0][0].reward == full[reward]


@pytest.mark.parametrize(
    ("prompt", "reward", "tags", "is_read"),
    [
        ("working_out", "accuracy", ("[A]", "[/A]"), False),
        ("working_out", "accuracy", ("<RESULT>", "</RESULT>"), True),
        ("working_out", "working_out", ("[A]", "[/A]"), True),
        ("working_out", "r1_zero", (), False),
        ("r1_zero", "think_answer", (), True),
        ("boxed", "r1_zero", (), True),  # names no tags: a question may ask for some
        ("think_answer", "boxed", (), True),  # the bare question names none either
        ("prime_code", "boxed", (), True),  # its own reward does not judge
        ("r1_zero", "boxed", (), False),
        ("r1_zero", "0*boxed,r1_zero", (), True),  # the part that trains reads them
    ],
)
def test_a_reward_that_does_not_read_the_prompts_tags_is_known(
    prompt: str, reward: str, tags: tuple[str, ...], is_read: bool
) -> None:
    options = tuple(f"working_out.solution_{end}={tag}" for end, tag in zip(("start", "end"), tags, strict=False))
    leaf = choose(prompt, reward, prompt_options=options)
    asked = "3+6" if leaf.CHAT else leaf.render(ask(""), None)
    assert is_read_by_reward(leaf, ask(""), asked) == is_read
    assert is_read_by_reward(leaf, ask(""), "a prompt that the data has rendered without tags")
    (finding,) = check_form(prompt, (reward,), prompt)
    assert f"the tags of the prompt {prompt}" in finding.advice
    assert not finding.fatal


OWN = """
CHAT, STOP, REWARD, TAGS = False, (), "accuracy", ("<a>", "</a>")
def render(problem, tokenizer): return problem.question + " Think in <a> </a>."
def demonstration(problem):
    steps, answer = problem.solution.split("####")
    return f"<a>{steps}</a>{answer}"
"""
TALKS = """
from dataclasses import dataclass, field
from qed.environments.base import Environment
@dataclass(frozen=True)
class Talks(Environment):
    max_turns: int = 2
    facts: dict = field(default_factory=dict)
environment = Talks()
"""


def test_code_of_ones_own_does_not_end_the_look_at_the_tags(tmp_path: Path) -> None:
    """A prompt that takes only its data's solutions apart, and an environment that has no hash."""
    own, talks = tmp_path / "own.py", tmp_path / "talks.py"
    own.write_text(OWN)
    talks.write_text(TALKS)
    for prompt, environment in ((str(own), "single"), ("r1_zero", str(talks))):
        leaf = load_prompt(DataSettings(prompt=prompt, reward=("boxed",), environment=environment))
        assert is_read_by_reward(leaf, ask(""), leaf.render(ask(""), None))


def test_what_does_not_earn_it_gets_the_prompts_form_and_is_counted() -> None:
    leaf = choose("r1_zero", "working_out")
    assert write_demonstration(leaf, ask(TRACE)) == write_demonstration(load_leaf("r1_zero"), ask(TRACE))
    assert is_rewritten(leaf, ask(TRACE))
    assert find_trouble(leaf, ask(TRACE)) == OTHER_REWARD
    assert find_trouble(leaf, ask(WORKED, "8")) == OTHER_ANSWER


def test_a_wrong_reply_stays_verbatim_where_its_form_is_paid() -> None:
    wrong = WORKED.replace("9", "8")
    assert write_demonstration(choose("r1_zero", "working_out"), ask(wrong)) == (wrong, False)


def test_where_nothing_is_lost_a_reply_gets_the_prompts_form() -> None:
    """A reward of the answer alone pays any form; the prompt still asks for its own."""
    for prompt in ("think_answer", "r1_zero"):
        leaf = choose(prompt, "accuracy")
        assert write_demonstration(leaf, ask(TRACE)) == write_demonstration(load_leaf(prompt), ask(TRACE))
        assert is_rewritten(leaf, ask(TRACE))
        assert find_trouble(leaf, ask(TRACE)) == ""


def test_the_bare_question_takes_every_reply_with_an_answer() -> None:
    for reply in (WORKED, XML, TRACE, THOUGHT, "3+6 is 9.", "<final>9</final>", "So it is 8 = \\boxed{8}"):
        assert write_demonstration(load_leaf("chat"), ask(reply)) == (reply, False)
    assert find_trouble(load_leaf("chat"), ask("\\boxed{8}")) == OTHER_ANSWER
    # A number of the last sentence is often no answer.
    assert write_demonstration(load_leaf("chat"), ask("We add 3 and 6.")).text == "We add 3 and 6.\n\nThe answer is 9."


@pytest.mark.parametrize(
    ("prompt", "reward", "options"),
    [
        ("r1_zero", "auto", ()),
        ("r1_zero", "r1_zero", ()),
        ("r1_zero", "0.5*auto", ()),
        ("working_out", "working_out", ()),
    ],
)
def test_the_prompts_own_reward_changes_nothing(prompt: str, reward: str, options: tuple[str, ...]) -> None:
    assert choose(prompt, reward, *options) is load_leaf(prompt)


def test_a_reward_that_cannot_be_asked_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise RuntimeError('is not to be loaded')\n")
    for reward in (f"{tmp_path}/mine.py", "http", "length", "cosine"):
        leaf = choose("r1_zero", reward)
        assert load_run_grader(leaf) is None
        assert write_demonstration(leaf, ask(TRACE)) == write_demonstration(load_leaf("r1_zero"), ask(TRACE))
        assert find_trouble(leaf, ask(TRACE)) == ""
        assert find_trouble(leaf, ask("9")) == OTHER_FORM or write_demonstration(leaf, ask("9")).built


def test_only_the_parts_that_judge_are_asked() -> None:
    data = DataSettings(prompt="chat", reward=("working_out", "0.5*overlong", "0*repetition"))
    assert write_demonstration(load_prompt(data), ask(WORKED)) == (WORKED, False)


def test_the_reward_has_its_options_and_the_prompts() -> None:
    mine = "<start_working_out>3+6=9<end_working_out><end>9</end>"
    tags = ("working_out.solution_start=<end>", "working_out.solution_end=</end>")
    assert write_demonstration(choose("r1_zero", "working_out", *tags), ask(mine)) == (mine, False)
    assert not find_trouble(choose("r1_zero", "working_out", *tags), ask(mine))
    both = choose("working_out", "working_out", "working_out.robust=true", prompt_options=tags)
    assert write_demonstration(both, ask(mine)) == (mine, False)
    assert write_demonstration(both, ask(TRACE)).built
    assert not find_trouble(both, ask(TRACE))


def test_the_cache_tells_the_rewards_apart() -> None:
    tokenizer = load.build_tokenizer([WORKED, TRACE], 300)
    leaves = [load_leaf("r1_zero"), choose("r1_zero", "working_out"), choose("r1_zero", "accuracy")]
    assert len({build_key(PromptTemplate(leaf, tokenizer, (1,)), [ask("9")]) for leaf in leaves}) == 3


def test_rewritten_demonstrations_have_a_line_of_their_own() -> None:
    earned, rewritten = check_demonstrations(["", "", ""], 2, "run")
    assert (earned.what, earned.found) == ("demonstrations that earn the run's full reward", "3 of 3")
    assert (rewritten.what, rewritten.found) == ("demonstrations rewritten in the prompt's form", "2 of 3")
