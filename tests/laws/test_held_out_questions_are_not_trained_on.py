"""No held-out question is trained on, however it is written; different questions stay."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.config.sampling_settings import EvaluationSettings
from qed.config.settings import DataSettings
from qed.data.held_out import HeldOut, describe_check
from qed.data.questions import normalize_question
from qed.data.selection import HELD_OUT_SHARE, hold_out, keep_measured, split_validation
from qed.data.splits import load_problems, load_training_problems
from qed.data.tools.filters import Filters, split_problems
from qed.types import Problem

QUESTION = "If Tom's 3 cats each eat 1,200 well-chosen treats, how many (in total) are eaten: 3 * 1200 or 3.5?"
LONG = "A farmer has seventeen sheep and all but nine of them run away in the night how many are left"


def build(*questions: str) -> list[Problem]:
    return [Problem(str(number), question, "1") for number, question in enumerate(questions)]


def drop(training: list[Problem], held_out: list[Problem], words: int = 0) -> tuple[list[Problem], Counter[str]]:
    left_out: Counter[str] = Counter()
    return HeldOut(held_out, words).drop(training, left_out), +left_out


@given(st.randoms(use_true_random=False))
def test_case_spaces_and_punctuation_do_not_hide_a_question(source: random.Random) -> None:
    text = "".join(source.choice((sign.upper(), sign.lower())) for sign in QUESTION)
    text = text.replace(" ", source.choice((" ", "  ", "\n"))).rstrip("?") + source.choice(("?", "", ".", " ?"))
    for sign, others in ((",", ("", " ,")), ("'", ("", "’")), ("-", ("-", " ", "‐")), (" * ", ("*", " *"))):
        text = text.replace(sign, source.choice((sign, *others))) if sign != "," or "1,200" not in text else text
    assert drop(build(text), build(QUESTION))[0] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 2 + 3?", "What is 2 - 3?"),
        ("What is 3.5?", "What is 35?"),
        ("What is 5!?", "What is 5?"),
        ("What is (2 + 3) * 4?", "What is 2 + 3 * 4?"),
        ("Find f'(x).", "Find f(x)."),
        ("What is -5?", "What is 5?"),
        ("At 1:30?", "At 130?"),
        ("What is 5 % of 3?", "What is 5 of 3?"),
    ],
)
def test_other_numbers_and_operators_are_other_questions(one: str, other: str) -> None:
    assert normalize_question(one) != normalize_question(other)
    assert drop(build(one), build(other))[0] == build(one)


@given(st.text(max_size=60))
def test_normalization_is_stable(text: str) -> None:
    once = normalize_question(text)
    assert normalize_question(f"  {text} ") == once
    assert not once.startswith(" ")


def test_a_question_without_its_mark_is_held_out_and_counted() -> None:
    kept, left_out = drop(build("how many are left", "How many stay?"), build("How many are left?"))
    assert [problem.question for problem in kept] == ["How many stay?"]
    assert left_out == {"training problems that are held out": 1}


@given(st.lists(st.integers(1, 12), min_size=20, max_size=40), st.integers(0, 9))
def test_rows_that_share_a_question_are_held_out_as_one_problem(counts: list[int], seed: int) -> None:
    """However many answers the questions have, one in ten questions is held out, once each."""
    questions = [f"How many of {number}?" for number, count in enumerate(counts) for _ in range(count)]
    problems = build(*questions)
    held_out = hold_out("rows", problems, 200, seed, offline=False)
    assert len({problem.question for problem in held_out}) == len(held_out) == len(counts) // HELD_OUT_SHARE
    assert hold_out("rows", problems, 1, seed, offline=False) == held_out[:1]


def test_a_question_of_most_rows_stays_in_training() -> None:
    """300 replies to one question and one to each of 20 others: two of these are held out."""
    problems = build(*["What is 1 + 1?"] * 300, *(f"What is {number} + 2?" for number in range(20)))
    for seed in range(10):
        held_out = hold_out("rows", problems, 200, seed, offline=False)
        assert len(held_out) == 2
        assert len(drop(problems, held_out)[0]) == 318
        training, validation, _ = split_validation(problems, 0.1, 200, seed)
        assert (len(training), len(validation)) == (317, 3)


def test_runs_of_words_are_held_out_where_asked() -> None:
    training = build(f"Please think. {LONG}, my friend?", "Something else")
    assert len(drop(training, build(LONG))[0]) == 2
    kept, left_out = drop(training, build(LONG), 13)
    assert [problem.question for problem in kept] == ["Something else"]
    assert left_out == {"training problems that share 13 words with a held-out question": 1}
    assert "13 words" in describe_check(13)
    assert "words" not in describe_check(0)


def test_validation_has_every_spelling_of_a_question() -> None:
    problems = build(*(f"What is {number}?" for number in range(20)), *(f"what is  {number}" for number in range(20)))
    kept, validation, told = split_validation(problems, 0.5, 100, 0)
    asked = {normalize_question(problem.question) for problem in validation}
    assert len(asked) == 10
    assert len(validation) == len(kept) == 20
    assert not told
    assert not asked & {normalize_question(problem.question) for problem in kept}


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["answer", "pair", "reply"])), min_size=1, max_size=30),
    st.floats(0.01, 0.9),
    st.integers(1, 9),
    st.booleans(),
)
def test_no_row_is_lost_between_the_parts(
    rows: list[tuple[int, str]], share: float, limit: int, imitates: bool
) -> None:
    """Each is trained on, measured or counted; of pairs and of replies that are imitated every one is measured."""
    problems = [
        Problem(
            str(number),
            f"What is {question}?",
            "1" * (kind == "answer"),
            meta={"chosen": "a", "rejected": str(number)} if kind == "pair" else {"completion": str(number)},
        )
        for number, (question, kind) in enumerate(rows)
    ]
    kept, drawn, told = split_validation(problems, share, limit, 0, imitates)
    assert sorted(each.id for each in [*kept, *drawn]) == sorted(each.id for each in problems)
    assert not {each.question for each in kept} & {each.question for each in drawn}
    count = len({each.question for each in drawn})
    assert (f"{count:,} of " in told) if told else count <= limit
    left_out: Counter[str] = Counter()
    measured = keep_measured(drawn, imitates, left_out)
    assert len(measured) + sum(left_out.values()) == len(drawn)
    assert {each.id for each in drawn if each.is_preference} <= {each.id for each in measured}
    asked = [each.question for each in measured if each.answer]
    assert len(asked) == len(set(asked))
    if imitates and not any(each.answer for each in problems):
        assert measured == drawn


def test_pairs_that_share_a_question_are_all_held_out(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"Name {n // 3}.", "chosen": f"Yes {n}.", "rejected": f"No {n}."} for n in range(120)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = DataSettings(tasks=(str(file),), validation_split=0.2)
    loaded = load_problems(data, EvaluationSettings(), 0)
    assert (len(loaded.problems), len(loaded.validation), loaded.left_out, loaded.subsets) == (96, 24, {}, {})
    converted = split_problems([*loaded.problems, *loaded.validation], Filters(validation_split=0.2), Counter())
    assert [len(part) for part in converted] == [96, 24]
    few = load_problems(data, EvaluationSettings(problems=2), 0)
    assert (len(few.problems), len(few.validation)) == (114, 6)
    assert few.subsets == {"validation": "2 of 8 questions, by evaluation.problems"}


def test_solutions_of_one_question_are_measured_once_and_counted(tmp_path: Path) -> None:
    file, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    rows = [{"question": f"What is {n // 3}?", "answer": f"{n // 3}", "solution": f"So {n}."} for n in range(120)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    test.write_text(json.dumps({"question": "Other?", "answer": "1"}) + "\n")
    data = DataSettings(tasks=(str(file),), validation_split=0.2)
    loaded = load_problems(data, EvaluationSettings(tasks=(str(test),)), 0)
    assert (len(loaded.problems), len(loaded.validation)) == (96, 8)
    assert loaded.left_out == {"further rows of validation questions, which are measured once": 16}


def test_demonstrations_without_answers_need_no_benchmark(tmp_path: Path) -> None:
    """Nothing could be graded: some of them measure the loss of SFT."""
    training = tmp_path / "train.jsonl"
    rows = [{"question": f"What is {n} + 1?", "solution": f"{n + 1}."} for n in range(60)]
    training.write_text("".join(json.dumps(row) + "\n" for row in rows))
    loaded = load_problems(DataSettings(tasks=(str(training),)), EvaluationSettings(), 0, imitates=True)
    assert loaded.benchmarks == {}
    assert len(loaded.validation) + len(loaded.problems) == 60
    assert loaded.validation


@pytest.mark.parametrize(("imitates", "answered"), [(False, True), (True, True), (True, False)])
def test_a_subset_of_a_test_set_holds_out_all_of_it(tmp_path: Path, imitates: bool, answered: bool) -> None:
    """Also where a phase has its own data, and where a test set without answers measures the loss of SFT."""
    training, test = tmp_path / "train.jsonl", tmp_path / "test.jsonl"
    rows = [{"question": f"What is {n} + 1?", "answer": str(n + 1), "solution": f"{n + 1}."} for n in range(60)]
    training.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if not answered:
        rows = [{"question": row["question"], "solution": row["solution"]} for row in rows]
    test.write_text("".join(json.dumps(row) + "\n" for row in rows[:50]))
    data = DataSettings(tasks=(str(training),))
    loaded = load_problems(data, EvaluationSettings(tasks=(str(test),), problems=4), 0, imitates)
    asked = {row["question"] for row in rows[:50]}
    assert len(loaded.held_out) == 50
    assert len(loaded.validation if not answered else loaded.benchmarks["test"]) == 4
    assert len(loaded.problems) == 10
    assert not asked & {problem.question for problem in loaded.problems}
    first, _ = load_training_problems(data, 0, loaded.held_out)
    assert not asked & {problem.question for problem in first}
