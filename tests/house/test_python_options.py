"""Options of the Python API that would have no effect are refused, and lists reach every option."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qed
from qed.api.evaluation import Evaluation, list_model_options
from qed.api.keywords import use_keywords
from qed.api.sampler import list_questions
from qed.cli.commands.base import split_words
from qed.config.callables import give_functions
from qed.errors import UsageError
from qed.rewards.grader import make_grader
from qed.types import Problem, Rollout


def list_options(**keywords: Any) -> list[str]:
    with use_keywords(keywords) as texts:
        return list(list_model_options(None, texts))


def test_a_switch_is_on_or_off() -> None:
    assert list_options(greedy=True, overwrite=False) == list_options(greedy=1, overwrite=0) == ["--greedy"]
    with pytest.raises(UsageError, match="greedy must be True or False"):
        list_options(greedy="maybe")


def test_lists_are_written_as_each_option_reads_them() -> None:
    assert list_options(also_grade=["strict", "qwen"], url=["a", "b"]) == ["--also-grade=strict,qwen", "--url=a,b"]
    assert list_options(stop=["a,b"]) == ['--stop=["a,b"]']
    assert list_options(tasks=["a,b.jsonl", "c"]) == ['--tasks=["a,b.jsonl", "c"]']


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a, b,,", ("a", "b")),
        ('["a,b", "c"]', ("a,b", "c")),
        ("[]", ()),
        ("", ()),
    ],
)
def test_words_are_separated_by_commas_or_in_a_json_list(text: str, words: tuple[str, ...]) -> None:
    assert split_words(text) == words


@pytest.mark.parametrize("pair", [(0.5, max), [0.5, max], (np.float32(0.5), max), [np.int64(2), "boxed"]])
def test_a_weighted_reward_is_any_number_with_a_reward(pair: Any) -> None:
    weight, part = pair[0], pair[1] if isinstance(pair[1], str) else "<callable>"
    for reward in (pair, [pair]):
        with use_keywords({"reward": reward}) as texts:
            assert texts == {"reward": f'["{weight}*{part}"]'}


@pytest.mark.parametrize("questions", ["1+1?", 5, None, [1], iter(["1+1?", b"2"])])
def test_questions_are_texts(questions: Any) -> None:
    with pytest.raises(UsageError, match="takes a list of questions, each a text"):
        list_questions(questions)


@pytest.mark.parametrize("make", [iter, tuple, dict.fromkeys, lambda texts: map(str, texts)])
def test_questions_may_come_from_an_iterator(make: Any) -> None:
    assert list_questions(make(["1+1?", "2+2?"])) == ["1+1?", "2+2?"]


def test_an_option_of_a_sampler_that_is_none_is_left_out() -> None:
    with pytest.raises(UsageError, match="no option 'devise'"):
        qed.Sampler("new:tiny", temperature=None, devise="cpu")


@pytest.mark.parametrize("name", ["temperature", "greedy", "reward", "devise"])
def test_a_sampler_refuses_what_does_not_load_a_model(name: str) -> None:
    with pytest.raises(UsageError, match=f"qed.Sampler has no option '{name}'"):
        qed.Sampler("new:tiny", **{name: 1})


def test_a_task_without_reference_answers_has_no_estimate() -> None:
    evaluation = Evaluation(Path("none"), 0, {}, {"alpaca_eval": "outputs.json"})
    with pytest.raises(UsageError, match="alpaca_eval has no reference answers"):
        evaluation.estimate()


def test_the_warning_is_about_a_function_that_grades_answers_alone() -> None:
    def never(completions: list[str], **_: Any) -> list[float]:
        raise ValueError("never")

    def once(completions: list[str], **_: Any) -> list[float]:
        (_only,) = completions
        return [1.0]

    group = [Rollout(Problem("p", "q", "1"), (), (), (), text, "stop") for text in ("a", "b")]
    functions = {"<callable>": qed.rewards.trl(never), "<callable 2>": qed.rewards.trl(once)}
    with give_functions(functions), pytest.warns(UserWarning, match="too many values"):
        make_grader(["<callable>", "<callable 2>"])([group])


def test_a_function_of_a_group_that_is_called_for_each_answer_alone_is_told() -> None:
    def rank(completions: list[str], **_: Any) -> list[float]:
        if "bad" in completions:
            raise ValueError("bad")
        return [float(len(completions))] * len(completions)

    group = [Rollout(Problem("p", "q", "1"), (), (), (), text, "stop") for text in ("a", "bad", "c")]
    with give_functions({"<callable>": qed.rewards.trl(rank)}):
        grader = make_grader(["<callable>"])
    with pytest.warns(UserWarning, match="failed on a group of 3 answers, so each was graded alone"):
        grades = grader([group])[0]
    assert [grade.is_decided for grade in grades] == [True, False, True]
