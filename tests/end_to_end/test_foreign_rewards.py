"""Reward files written for TRL and verl run unchanged."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from qed.errors import UsageError
from qed.rewards.base import Reward, load_reward
from qed.rewards.grader import Pool, make_grader
from qed.rewards.handed import describe_function, explain_functions
from qed.runs.run import read_lines
from qed.types import Problem, Rollout

TRL = '''
import re
from statistics import fmean


def _text(completion):
    return completion if isinstance(completion, str) else completion[0]["content"]


def correctness_reward(prompts, completions, answer, **kwargs):
    """1 where the number in the tag is the column's; not applicable where the column is empty."""
    scores = []
    for completion, gold in zip(completions, answer):
        found = re.search(r"<answer>(.*?)</answer>", _text(completion), re.DOTALL)
        scores.append(None if not gold else float(found is not None and found.group(1).strip() == gold))
    return scores


def brevity_reward(completions, completion_ids, **kwargs):
    """How much shorter an answer is than the mean of its group: needs all of them at once."""
    mean = fmean(len(ids) for ids in completion_ids)
    return [(mean - len(ids)) / mean for ids in completion_ids]


def level_reward(completions, level, trainer_state):
    return [0.1 * one for one in level]


def helper(text):
    return text
'''

VERL = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    if data_source == "plain":
        return float(solution_str.strip() == ground_truth)
    right = solution_str.rstrip().endswith(ground_truth)
    fold = (extra_info or {}).get("fold", 0)
    return {"score": 1.0 if right else -1.0, "acc": right, "pred": solution_str[-2:], "split": fold}
"""


def group(*texts: str, answer: str = "12", meta: dict[str, object] | None = None) -> list[Rollout]:
    """Answers to one problem, as long as their texts."""
    problem = Problem("p", "5+7=", answer, meta=meta if meta is not None else {"level": 3})
    return [
        Rollout(problem, (), (5,) * len(text), (), text, "stop", prompt_text="user: 5+7=", index=index)
        for index, text in enumerate(texts)
    ]


def written(tmp_path: Path, code: str, name: str = "mine.py") -> str:
    path = tmp_path / name
    path.write_text(code)
    return str(path)


@pytest.mark.parametrize("conversational", [False, True])
def test_a_trl_file_runs_unchanged(tmp_path: Path, conversational: bool) -> None:
    reward = load_reward([f"0.5*{written(tmp_path, TRL)}"], conversational=conversational)
    assert [(part.weight, part.name) for part in reward.parts] == [
        (0.5, "correctness_reward"),
        (0.5, "brevity_reward"),
        (0.5, "level_reward"),
    ]
    assert (reward.batched, reward.users_own) == (True, True)
    short, long = reward.grade(group("<answer>12</answer>", "well, it is <answer>13</answer>"))
    mean = (19 + 31) / 2
    assert short.reward == pytest.approx(0.5 * (1 + (mean - 19) / mean + 0.3))
    assert long.reward == pytest.approx(0.5 * (0 + (mean - 31) / mean + 0.3))
    assert short.parts == pytest.approx(
        {"correctness_reward": 1.0, "brevity_reward": (mean - 19) / mean, "level_reward": 0.3}
    )
    assert [grade.correct for grade in (short, long)] == [True, False]  # by our own grader
    assert short.extracted == "12"


def test_none_stands_for_not_applicable(tmp_path: Path) -> None:
    reward = load_reward([f"{written(tmp_path, TRL)}:correctness_reward", "0.25*accuracy"])
    (grade,) = reward.grade(group("so it is 12", answer=""))
    assert grade.reward == 0.0
    assert list(grade.parts) == ["accuracy", "accuracy/correct"]
    alone = load_reward([f"{written(tmp_path, TRL)}:correctness_reward"])
    (grade,) = alone.grade(group("so it is 12", answer=""))
    assert (grade.has_reward, grade.parts) == (False, {})
    assert grade.extracted == "12"  # our own grader still reads the answer


@pytest.mark.parametrize("nothing", ["None", "float('nan')"])
def test_an_answer_has_a_reward_where_one_function_applies(tmp_path: Path, nothing: str) -> None:
    """A function of weight 0 that applies makes the reward 0, as in TRL."""
    code = f"def one(completions, **columns):\n    return [1.0, {nothing}]\n"
    code += f"def two(completions, **columns):\n    return [{nothing}] * 2\n"
    first, second = load_reward([written(tmp_path, code)]).grade(group("a", "b"))
    assert (first.reward, first.has_reward, dict(first.parts)) == (1.0, True, {"one": 1.0})
    assert (second.has_reward, dict(second.parts)) == (False, {})
    first, second = load_reward([f"0*{written(tmp_path, code)}:one", f"{written(tmp_path, code)}:two"]).grade(
        group("a", "b")
    )
    assert (first.reward, first.has_reward, second.has_reward) == (0.0, True, False)


def test_a_native_reward_may_say_that_there_is_none(tmp_path: Path) -> None:
    code = "from qed.types import Grade\n"
    code += "def reward(rollout):\n    return Grade(5.0, True, True, None, has_reward=rollout.text != 'b')\n"
    path = written(tmp_path, code)
    assert [grade.has_reward for grade in load_reward([path]).grade(group("a", "b"))] == [True, False]
    first, second = load_reward([path, "format_only"]).grade(group("a", "b"))
    assert (first.reward - second.reward, second.has_reward, second.correct) == (5.0, True, True)


def test_what_penalises_and_never_applies_gives_no_reward(tmp_path: Path) -> None:
    code = "JUDGES = False\ndef pay(completions, **columns):\n    return [None for _ in completions]\n"
    (grade,) = load_reward([written(tmp_path, code)]).grade(group("a"))
    assert (grade.has_reward, grade.correct) == (False, False)


def test_the_worker_processes_say_that_there_is_no_reward(tmp_path: Path) -> None:
    grader = make_grader([f"{written(tmp_path, TRL)}:correctness_reward"], pool=Pool(1))
    try:
        graded = grader([group("so it is 12", answer=""), group("<answer>12</answer>")])
    finally:
        grader.close()
    assert [grade.has_reward for grades in graded for grade in grades] == [False, True]


def test_one_function_of_a_trl_file_alone(tmp_path: Path) -> None:
    reward = load_reward([f"{written(tmp_path, TRL)}:level_reward"])
    (grade,) = reward.grade(group("so it is 12"))
    assert (grade.reward, grade.correct) == (pytest.approx(0.3), True)


SEEN = """
SEEN = []

def seen_reward(completions, **columns):
    SEEN.append({"completions": completions, **columns})
    return [0.0] * len(completions)
"""


@pytest.mark.parametrize("conversational", [False, True])
def test_what_a_trl_function_is_given(tmp_path: Path, conversational: bool) -> None:
    reward = load_reward([written(tmp_path, SEEN, "seen.py")], conversational=conversational)
    reward.grade(group("a", "bc", meta={"level": 3, "solution": "$12$", "answer": "ignored"}))
    (given,) = next(
        one.SEEN for one in sys.modules.values() if getattr(one, "__file__", "") == str(tmp_path / "seen.py")
    )
    assert set(given) == {
        *("prompts", "completions", "completion_ids", "trainer_state"),
        *("question", "answer", "solution", "ground_truth", "level"),
    }
    assert given["completion_ids"] == [[5], [5, 5]]
    assert given["trainer_state"] is None
    assert (given["level"], given["solution"]) == ([3, 3], ["$12$", "$12$"])
    assert given["answer"] == given["ground_truth"] == ["12", "12"]
    if conversational:
        assert given["prompts"][0] == [{"role": "user", "content": "5+7="}]
        assert given["completions"][1] == [{"role": "assistant", "content": "bc"}]
    else:
        assert given["prompts"] == ["user: 5+7="] * 2
        assert given["completions"] == ["a", "bc"]


def test_a_verl_file_runs_unchanged(tmp_path: Path) -> None:
    reward = load_reward([written(tmp_path, VERL)])
    assert (reward.parts[0].name, reward.batched, reward.users_own) == ("mine", False, True)
    right, wrong = reward.grade(group("it is 12", "it is 13", meta={"source": "dict", "extra_info": {"fold": 4}}))
    assert (right.reward, right.correct, right.extracted) == (1.0, True, "12")
    assert right.parts == {"acc": 1.0, "split": 4.0}
    assert (wrong.reward, wrong.correct) == (-1.0, False)
    plain = reward.grade(group("12", "13", meta={"data_source": "plain"}))
    assert [(grade.reward, grade.correct) for grade in plain] == [(1.0, True), (0.0, False)]


def test_the_parts_of_a_verl_file_are_logged_under_its_name(tmp_path: Path) -> None:
    (grade,) = load_reward([f"2*{written(tmp_path, VERL)}", "0*accuracy"]).grade(group("it is 12", meta={}))
    assert grade.reward == 2.0
    assert set(grade.parts) == {"mine", "mine/acc", "mine/split", "accuracy", "accuracy/correct"}


NATIVE = """
from qed.types import Grade

def reward(rollout):
    return Grade(2.0, True, True, rollout.text)

def other(rollout):
    return Grade(3.0, False, True, None)

def wrong(rollout):
    return [1.0]
"""


def test_a_native_file_and_its_functions(tmp_path: Path) -> None:
    path = written(tmp_path, NATIVE)
    assert load_reward([path]).grade(group("a"))[0].extracted == "a"
    assert load_reward([f"{path}:other"]).grade(group("a"))[0].reward == 3.0
    both = load_reward([path, f"{path}:other"])
    assert [part.name for part in both.parts] == ["mine", "other"]
    assert both.grade(group("a"))[0].reward == 5.0
    with pytest.raises(UsageError, match=r"wrong returned list; it must return a number or a qed\.types\.Grade"):
        load_reward([f"{path}:wrong"]).grade(group("a"))


def test_a_dotted_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_rewards").mkdir()
    written(tmp_path / "made_rewards", TRL, "trl_like.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    reward = load_reward(["made_rewards.trl_like:level_reward"])
    assert reward.grade(group("a"))[0].reward == pytest.approx(0.3)


def returning(value: str) -> str:
    return f"def pay(completions, **columns):\n    return {value}\n"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def helper(text):\n    return text\n", "defines no reward. A file may define one of: reward(rollout)"),
        ("from statistics import fmean as pay\n", "defines no reward"),
        (
            f"{returning('[1, 1]')}def mine(rollout):\n    return None\n",
            "defines pay, and mine for a rollout: choose one as FILE:NAME, or several as FILE:pay,FILE:mine",
        ),
        (returning("0.5"), "pay returned float; it must return a list of numbers"),
        (returning("[0.5, 0.5, 0.5]"), "pay returned 3 numbers for 2 completions"),
        (returning("['good', 0.5]"), "something other than numbers and None"),
        ("def pay(completions, levle):\n    return 0\n", "needs 'levle', which the data does not have. Did"),
        ("def compute_score(solution_str, ground_truth):\n    return 'good'\n", "compute_score of mine returned str"),
        ("def compute_score(solution_str, reward_model):\n    return 1.0\n", "needs 'reward_model'"),
    ],
)  # fmt: skip
def test_what_a_file_may_not_do(tmp_path: Path, code: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_reward([written(tmp_path, code)]).grade(group("a", "b"))
    assert words in str(refused.value)


def test_a_function_that_a_file_does_not_have(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"mine has no function 'levl_reward'\. Did you mean 'level_reward'"):
        load_reward([f"{written(tmp_path, TRL)}:levl_reward"])


def test_numbers_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    code = "import torch\ndef pay(completions, **columns):\n    return torch.arange(len(completions)) / 2\n"
    reward: Reward = load_reward([written(tmp_path, code)])
    assert [grade.reward for grade in reward.grade(group("a", "b"))] == [0.0, 0.5]


def test_a_run_counts_the_answers_without_a_reward_and_trains_on_the_others(
    qed: Callable[..., Any], tmp_path: Path
) -> None:
    """Of each group of four the first two have a reward; in the evaluation a lone answer has 0, others have none."""
    mine = written(
        tmp_path, "def pay(completions, **columns):\n    return ([0.0, 1.0] + [None] * 9)[:len(completions)]\n"
    )
    small = ["--steps", 1, "--sampling.problems_per_step", 2, "--sampling.group_size", 4, "--sampling.max_tokens", 4]
    more = ["--evaluation.problems", 2, "--evaluation.samples", 3]
    done = qed("grpo", "--out", tmp_path / "run", "--reward", mine, *small, *more)
    assert done.code == 0, done.err
    assert "50.0% of the answers have no reward" in done.out
    (row,) = [row for row in read_lines(tmp_path / "run" / "metrics.jsonl") if "train/rows" in row]
    assert (row["reward/mean"], row["grading/without_reward"], row["groups/zero_std"]) == (0.5, 4, 0)
    assert (row["train/rows"], row["train/live_rows"]) == (8, 4)
    (file,) = (tmp_path / "run" / "rollouts").glob("*.jsonl.zst")
    rollouts = read_lines(file)
    assert [one["reward"] for one in rollouts] == [0.0, 1.0, None, None] * 2
    assert [one["advantage"] == 0 for one in rollouts] == [False, False, True, True] * 2
    assert "answers without a reward" in (tmp_path / "run" / "report.html").read_text()


def test_a_column_that_ends_in_s_is_handed_to_a_function_for_one_answer(tmp_path: Path) -> None:
    code = "def compute_score(solution_str, ground_truth, bonus):\n    return bonus\n"
    answers = group("a", meta={"bonus": 2.0})
    assert load_reward([written(tmp_path, code)]).grade(answers)[0].reward == 2.0
    code = "def compute_score(solution_strs, ground_truths, bonus):\n    return bonus\n"
    assert load_reward([written(tmp_path, code, "many.py")]).grade(answers)[0].reward == 2.0


@pytest.mark.parametrize(
    "code",
    [
        "def compute_score(solution_str, ground_truth):\n    return {'score': 1, 'other': float('nan'), 'one': 1}\n",
        "def reward_func(queries, prompts, labels):\n"
        "    return {'rewards': [1], 'extra_logs': {'other': float('nan'), 'one': [1]}}\n",
    ],
)
def test_a_part_that_is_nan_is_not_logged(tmp_path: Path, code: str) -> None:
    grade = load_reward([written(tmp_path, code)]).grade(group("a"))[0]
    assert (grade.reward, grade.parts) == (1.0, {"one": 1.0})


@pytest.mark.parametrize("returned", ["{'score': 1.0}", "{'score': [1.0], 'acc': []}"])
def test_a_dict_without_lists_is_refused_for_many_answers(tmp_path: Path, returned: str) -> None:
    code = f"def compute_score(solution_strs, ground_truths):\n    return {returned}\n"
    with pytest.raises(UsageError, match="returned a dict for several answers whose values are not lists"):
        load_reward([written(tmp_path, code)]).grade(group("a"))


@pytest.mark.parametrize(
    ("needs", "fits"),
    [
        ("prompt, solution_str", True),
        ("prompts, solution_strs", True),
        ("prompts, solution_strs=None, *", True),
        ("prompts, solution_str", False),
        ("solution_strs, extra_infos", True),
        ("solution_str, extra_infos", False),
    ],
)
def test_a_function_of_verl_may_need_the_prompt(tmp_path: Path, needs: str, fits: bool) -> None:
    code = f"def compute_score({needs}, ground_truth):\n    return 1.0\n"
    (part,) = load_reward([written(tmp_path, code)]).parts
    described = [describe_function(part.name, part.form, part.called, part.source)]
    if fits:
        assert explain_functions(described, [group("a")[0].problem])
    else:
        with pytest.raises(UsageError, match=r"needs '(prompts|extra_infos)'"):
            explain_functions(described, [group("a")[0].problem])
