"""Laws of rewards made of parts: linear in the weights, a weight of 0 changes nothing, grades keep their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qed.config import plugins
from qed.config.reward_names import parse_reward
from qed.errors import UsageError
from qed.grading.judge import build_failed_grade
from qed.rewards.base import load_reward
from qed.rewards.grader import JudgingGrader, join, make_grader
from qed.rollout.describe import describe_groups
from qed.types import Problem, Rollout

LEAVES = sorted(set(plugins.list_leaves("rewards")) - {"http", "model"})  # which need a server, and a model
TEXTS = ("", "12", "13", "so \\boxed{12}", "<think>a</think><answer>12</answer>", "a </think> <answer> 13 </answer>")
WEIGHTS = st.integers(-8, 8).map(lambda eighths: eighths / 8)


def rollouts(texts: list[str], tokens: list[int] | None = None) -> list[Rollout]:
    lengths = tokens or [7] * len(texts)
    problem = Problem("p", "5+7=", "12", meta={"source": "made"})
    return [
        Rollout(problem, (), (3,) * length, (), text, "stop", index=index)
        for index, (text, length) in enumerate(zip(texts, lengths, strict=True))
    ]


ANSWERS = st.lists(st.tuples(st.sampled_from(TEXTS), st.integers(0, 120)), min_size=1, max_size=5).map(
    lambda pairs: rollouts([text for text, _ in pairs], [tokens for _, tokens in pairs])
)
CHOSEN = st.lists(st.sampled_from(LEAVES), min_size=1, max_size=4, unique=True)


@given(CHOSEN, st.lists(WEIGHTS, min_size=4, max_size=4), ANSWERS)
def test_a_sum_is_linear_in_its_weights(names: list[str], weights: list[float], answers: list[Rollout]) -> None:
    entries = [f"{weight}*{name}" for weight, name in zip(weights, names, strict=False)]
    single = [load_reward([name], max_tokens=100).grade(answers) for name in names]
    for place, grade in enumerate(load_reward(entries, max_tokens=100).grade(answers)):
        alone = [grades[place].reward for grades in single]
        expected = sum(weight * reward for weight, reward in zip(weights, alone, strict=False))
        assert grade.reward == pytest.approx(expected, abs=1e-9)


@given(CHOSEN, st.sampled_from(LEAVES), ANSWERS)
def test_a_weight_of_zero_changes_no_reward(names: list[str], extra: str, answers: list[Rollout]) -> None:
    names = [name for name in names if name != extra] or ["accuracy" if extra != "accuracy" else "boxed"]
    without = load_reward(names, max_tokens=100).grade(answers)
    logged = load_reward([*names, f"0*{extra}"], max_tokens=100).grade(answers)
    assert [grade.reward for grade in logged] == [grade.reward for grade in without]
    assert all(extra in grade.parts for grade in logged)


@pytest.mark.parametrize(
    ("names", "reward"),
    [
        (["math_verify"], None),
        (["boxed", "math_verify"], None),
        (["0*math_verify", "boxed"], None),  # the first that judges
        (["boxed", "0*math_verify"], 1.0),
        (["format_only", "0.5*length", "-1*math_verify"], None),
    ],
)
def test_a_part_that_cannot_decide_takes_the_reward_unless_it_only_logs(
    monkeypatch: pytest.MonkeyPatch, names: list[str], reward: float | None
) -> None:
    """It paid 0 beside the others, so that an answer was trained with a part of its reward."""
    monkeypatch.setattr("qed.grading.symbolic.are_equal", lambda gold, answer: (False, "timeout", "more than 5 s"))
    (answer,) = rollouts(["so \\boxed{12}"])
    (answer.grade,) = load_reward(names, max_tokens=100).grade([answer])
    found = describe_groups([[answer]])
    assert answer.has_reward == (reward is not None)
    assert "more than 5 s" in answer.grade.reason
    assert found.get("reward/mean") == reward
    assert found["grading/timeouts"] == (reward is None)
    assert any(name.startswith("reward/") for name in found) == ("accuracy" in found) == (reward is not None)
    assert reward is None or ("math_verify" not in answer.grade.parts and answer.grade.reward == reward)


@given(st.lists(st.sampled_from(LEAVES), min_size=1, max_size=3, unique=True), ANSWERS)
def test_grades_stand_in_the_order_of_the_answers(names: list[str], answers: list[Rollout]) -> None:
    reward = load_reward(names, max_tokens=100)
    together = reward.grade(answers)
    assert together == [reward.grade([answer])[0] for answer in answers]
    assert reward.grade(answers[::-1]) == together[::-1]


@pytest.mark.parametrize("leaf", LEAVES)
def test_one_part_alone_keeps_its_grade(leaf: str) -> None:
    answers = rollouts(list(TEXTS))
    alone = load_reward([leaf], max_tokens=100)
    assert alone.grade(answers) == alone.parts[0].function(answers)
    assert (alone.batched, alone.users_own) == (False, False)


def test_a_sum_logs_its_parts_and_takes_the_verdict_of_the_first_judge() -> None:
    reward = load_reward(["0.5*overlong", " 2 * think_answer ", "0*boxed"], max_tokens=100)
    assert [(part.weight, part.name, part.judges) for part in reward.parts] == [
        (0.5, "overlong", False),
        (2.0, "think_answer", True),
        (0.0, "boxed", True),
    ]
    (grade,) = reward.grade(rollouts(["<think>a</think><answer>12</answer>"], [90]))
    assert grade.reward == pytest.approx(0.5 * -0.5 + 2 * 1.1)
    assert (grade.correct, grade.format_ok, grade.extracted, grade.tier) == (True, True, "12", "string")
    assert grade.parts == {
        "overlong": -0.5,
        "think_answer": 1.1,
        "think_answer/correct": 1.0,
        "think_answer/format": 1.0,
        "boxed": 0.0,
        "boxed/correct": 0.0,
    }


def test_parts_that_judge_nothing_leave_the_answer_unjudged() -> None:
    (grade,) = load_reward(["length", "repetition"], max_tokens=100).grade(rollouts(["12"], [50]))
    assert (grade.reward, grade.correct, grade.tier) == (-0.5, False, "")


@pytest.mark.parametrize("names", [["length", "format_only"], ["format_only", "length"]])
def test_where_no_part_judges_the_format_is_that_of_the_part_that_checks_it(names: list[str]) -> None:
    reward = load_reward(names, max_tokens=100)
    assert (reward.judge, reward.checks_format) == (None, True)
    grades = reward.grade(rollouts(["12", "<think>a</think><answer>12</answer>"]))
    assert [grade.format_ok for grade in grades] == [False, True]
    assert load_reward(["length", "boxed"], max_tokens=100).judge == "boxed"
    assert not load_reward(["length"], max_tokens=100).checks_format


def test_a_reward_that_judges_nothing_is_evaluated_by_another() -> None:
    """The reward and its parts stay; the verdict is the other's, and so is the format unless the reward checks it."""
    answers = rollouts(["<think>a</think><answer>12</answer>", "so \\boxed{12}", "\\boxed{13}"])
    verdict = make_grader(["boxed"])
    for name, format_ok in (("length", [False, True, True]), ("format_only", [True, False, False])):
        own = make_grader([name], max_tokens=100)
        evaluator = JudgingGrader(own, verdict)
        assert evaluator.judge == "boxed"
        (grades,) = evaluator([answers])
        assert [grade.reward for grade in grades] == [grade.reward for grade in own([answers])[0]]
        assert [grade.correct for grade in grades] == [False, True, False]
        assert [grade.extracted for grade in grades] == [None, "12", "13"]
        assert [grade.format_ok for grade in grades] == format_ok
        assert all(grade.reason for grade in grades)
    broken = build_failed_grade("error", "no memory")
    for keep_format in (False, True):  # what the other grader has decided stays, and only the reward is missing
        joined = join(broken, verdict([answers])[0][1], keep_format)
        assert (joined.correct, joined.extracted, joined.format_ok) == (True, "12", True)
        assert (joined.tier, joined.reason, joined.has_reward) == ("error", "no memory", False)


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        ("boxed", (1.0, "boxed", "")),
        ("think-answer", (1.0, "think_answer", "")),
        ("0.5*overlong", (0.5, "overlong", "")),
        (" -1e-1 * length ", (-0.1, "length", "")),
        ("2*./mine.py:pay", (2.0, "./mine.py", "pay")),
        ("mine.rewards:pay", (1.0, "mine.rewards", "pay")),
    ],
)
def test_an_entry_is_a_weight_a_name_and_a_function(text: str, entry: tuple[float, str, str]) -> None:
    found = parse_reward(text)
    assert (found.weight, found.source, found.function) == entry


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        ([], [], "at least one reward"),
        (["half*boxed"], [], "'half' is not a finite number"),
        (["nan*boxed"], [], "not a finite number"),
        (["2*"], [], "has no name"),
        (["boxd"], [], "Did you mean 'boxed'"),
        (["boxed", "2*boxed"], [], "Two rewards are named boxed: name it once."),
        (["./missing.py"], [], "no file ./missing.py"),
        (["overlong"], ["cache=3"], "not of the form NAME.FIELD=VALUE"),
        (["overlong"], ["overlong.cache"], "not of the form NAME.FIELD=VALUE"),
        (["overlong"], ["overlong.cach=3"], "no setting 'cach'. Did you mean 'cache'? It has: max_tokens, cache."),
        (["overlong"], ["overlong.cache=3.5"], "cache must be a whole number, not '3.5'"),
        (["repetition"], ["repetition.max_penalty=nan"], "must be a finite number"),
        (["r1_zero"], ["r1_zero.grader=quick"], "must be one of qed, fast, slow"),
        (["gsm8k_xml"], ["gsm8k_xml.dotall=maybe"], "must be true or false"),
        (["overlong"], ["overlnog.cache=3"], "a reward that is not chosen. Did you mean 'overlong'"),
        (["multiple_choice"], ["multiple_choice.strict=true"], "the reward multiple_choice has no settings"),
    ],
)
def test_what_cannot_be_meant_is_refused(names: list[str], options: list[str], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_reward(names, options, max_tokens=100)
    assert words in str(refused.value)


def test_functions_of_one_name_are_told_apart_by_their_files(tmp_path: Path) -> None:
    """They are usual in files of their own, and were refused; files of one name too cannot be told apart."""
    files = [tmp_path / name for name in ("short.py", "right.py", "other/right.py")]
    files[2].parent.mkdir()
    for number, file in enumerate(files):
        file.write_text(f"def score(prompts, completions, **columns):\n    return [{number}.0] * len(completions)\n")
    reward = load_reward([str(files[0]), f"2*{files[1]}:score"])
    assert [part.name for part in reward.parts] == ["short.score", "right.score"]
    (grade,) = reward.grade(rollouts(["12"]))
    assert (grade.reward, grade.parts) == (2.0, {"short.score": 0.0, "right.score": 1.0})
    assert [part.name for part in load_reward([str(files[0])]).parts] == ["score"]
    with pytest.raises(UsageError, match=r"named right\.score: rename one, .*right\.py or .*other/right\.py\."):
        load_reward(list(map(str, files)))
    again = f"{tmp_path}/other/../right.py:score"  # has no other name to take
    with pytest.raises(UsageError, match=r"named right\.score: name it once\."):
        load_reward([str(files[1]), again])


def test_a_file_may_return_plain_numbers(tmp_path: Path) -> None:
    """As a function in Python may: whether an answer is correct is that of its final answer."""
    file = tmp_path / "mine.py"
    file.write_text("def reward(rollout):\n    return len(rollout.text) > 2 and 0.25\n")
    right, short = load_reward([str(file)]).grade(rollouts(["so \\boxed{12}", "13"]))
    assert (right.reward, right.correct, right.extracted) == (0.25, True, "12")
    assert (short.reward, short.correct, short.extracted) == (0.0, False, "13")
    file.write_text("def reward(rollout):\n    return str(rollout)\n")
    with pytest.raises(UsageError, match=r"returned str; it must return a number or a qed\.types\.Grade"):
        load_reward([str(file)]).parts[0].function(rollouts(["12"]))


SETTINGS = '''
"""A reward with a setting of each kind."""
from dataclasses import dataclass
from typing import Literal
from qed.types import Grade

JUDGES = False

@dataclass(frozen=True)
class Mine:
    truth: bool = False
    count: int = 1
    factor: float = 1.0
    word: str = "a"
    choice: Literal["x", "y", 3] = "x"
    words: tuple[str, ...] = ()
    max_tokens: int = 0

    def __call__(self, rollout):
        return Grade(self.factor, False, True, repr(self))

reward = Mine()
'''


def test_options_are_read_by_the_types_of_the_fields(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SETTINGS)
    values = {"truth": "yes", "count": "-2", "factor": "1e-3", "word": "x=y.z", "choice": "3", "words": "a, b"}
    reward = load_reward([str(path)], [f"mine.{field}={value}" for field, value in values.items()], max_tokens=64)
    (grade,) = reward.grade(rollouts([""]))
    assert grade.extracted == (
        "Mine(truth=True, count=-2, factor=0.001, word='x=y.z', choice=3, words=('a', 'b'), max_tokens=64)"
    )
    assert (reward.users_own, reward.parts[0].judges) == (True, False)
    (grade,) = load_reward([str(path)], ["mine.max_tokens=9"], max_tokens=64).grade(rollouts([""]))
    assert grade.extracted is not None
    assert grade.extracted.endswith("max_tokens=9)")  # an option wins over the run's own


def test_an_option_for_functions_of_one_name_names_their_file(tmp_path: Path) -> None:
    """It would set both, without a word."""
    files = [tmp_path / name for name in ("short.py", "right.py")]
    for file in files:
        file.write_text("def score(completions, k=1, **columns):\n    return [k] * len(completions)\n")
    names = [f"{file}:score" for file in files]
    (grade,) = load_reward(names, ["right.k=3"]).grade(rollouts(["12"]))
    assert grade.parts == {"short.score": 1.0, "right.score": 3.0}
    with pytest.raises(UsageError, match=r"short\.py and .*right\.py\. Write short\.k=2 or right\.k=2\."):
        load_reward(names, ["score.k=2"])
