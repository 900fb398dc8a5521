"""With the option robust no reward pays a wrong answer more than a right one of the same format."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qed.config.settings import DataSettings
from qed.grading.session import Limits
from qed.rewards import accuracy, grader, gsm8k_xml, r1_zero, working_out
from qed.rollout.describe import compute_inverted_share
from qed.rollout.grader import load_grader
from qed.types import Grade, Problem, Rollout

RIGHT = ("42", " 42 ", "42.0", "6*7", "42 apples", "\\frac{84}{2}", "\\boxed{42}", "The answer is 42.")
WRONG = ("41", "43", "40", "4.2", "-42", "420", "42 or 43", "6*8", "", "forty", "42 is wrong, 41", "It is not 42.")
ENDS = ("", "\n", "<|im_end|>", "<|im_end|>\n<|im_start|>user\nno, <SOLUTION>41</SOLUTION>")


def rollout(text: str) -> Rollout:
    return Rollout(Problem("p", "?", "42"), (), (), (), text, "stop")


def grade(reward: working_out.WorkingOut | gsm8k_xml.Gsm8kXml, text: str) -> Grade:
    return reward(rollout(text))


@pytest.mark.parametrize("preset", ["pipeline", "notebook", "gsm8k"])
@pytest.mark.parametrize("end", ENDS)
def test_every_right_solution_earns_the_most(preset: str, end: str) -> None:
    reward = replace(working_out.reward, preset=preset, robust=True)  # type: ignore[arg-type]
    tags, scores = reward.tags, working_out.PRESETS[preset]
    form = f"{tags.reasoning_start}so{tags.reasoning_end}{tags.solution_start}{{}}{tags.solution_end}{end}"
    right = [grade(reward, form.format(answer)) for answer in RIGHT]
    wrong = [grade(reward, form.format(answer)) for answer in WRONG]
    best = scores.exact + len(scores.counted) * scores.tag_once + scores.equal + scores.number_equal
    assert [each.reward for each in right] == [best] * len(RIGHT)
    assert all(each.correct for each in right)
    assert not any(each.correct for each in wrong)
    assert max(each.reward for each in wrong) < best - scores.equal / 2


@pytest.mark.parametrize("preset", ["pipeline", "gsm8k"])
def test_the_last_solution_counts_for_all_parts(preset: str) -> None:
    reward = replace(working_out.reward, preset=preset, robust=True)  # type: ignore[arg-type]
    tags = reward.tags
    two = f"{tags.reasoning_end}{tags.solution_start}{{}}{tags.solution_end}\n" * 2
    wrong, right = grade(reward, two.format("42", "41")), grade(reward, two.format("41", "42"))
    assert (wrong.extracted, wrong.correct, right.extracted, right.correct) == ("41", False, "42", True)
    assert wrong.parts["numbers"] < 0 < right.parts["numbers"]
    assert wrong.reward < right.reward


def test_without_the_format_a_right_number_helps_and_a_wrong_one_does_not() -> None:
    reward = replace(working_out.reward, robust=True)
    assert grade(reward, "<SOLUTION>42</SOLUTION>").parts["numbers"] == 3.0
    assert grade(reward, "<SOLUTION>42, no, 41").parts["numbers"] == -1.5
    assert grade(reward, "I do not know").reward == working_out.reward(rollout("I do not know")).reward


@pytest.mark.parametrize("end", ["", "\n", "<|im_end|>"])
def test_the_recipe_for_gsm8k_pays_what_is_right(end: str) -> None:
    reward = replace(gsm8k_xml.reward, robust=True)
    form = "<reasoning>\nso\n</reasoning>\n<answer>\n{}\n</answer>" + end
    right, wrong = ([grade(reward, form.format(answer)).reward for answer in each] for each in (RIGHT, WRONG))
    assert min(right) > max(wrong) + 1
    assert len(set(right)) == 1
    assert grade(reward, "42").reward == 0
    assert grade(gsm8k_xml.reward, form.format("41")).reward > grade(gsm8k_xml.reward, form.format("42.0")).reward


@pytest.mark.parametrize("inside", ["41", "42", "\\boxed{42}", "<b>42"])
@pytest.mark.parametrize("behind", ["", " \\boxed{41}", "42"])
@pytest.mark.parametrize("end", ["", "<|im_end|>", "<|im_end|> <answer>42</answer>", "<|im_end|>\n\\boxed{41}"])
def test_r1_zero_reads_the_answer_as_accuracy_does(inside: str, behind: str, end: str) -> None:
    answer = rollout(f"so </think> <answer>{inside}</answer>{behind}{end}")
    one, other = r1_zero.reward(answer), accuracy.reward(answer)
    assert one.format_ok
    assert (one.correct, one.extracted) == (other.correct, other.extracted)


def test_pairs_in_which_the_wrong_answer_earns_more_are_counted() -> None:
    def graded(*answers: tuple[bool, float]) -> list[Rollout]:
        return [replace(rollout(""), grade=Grade(reward, correct, True, None)) for correct, reward in answers]

    assert compute_inverted_share([graded((True, 1.0), (False, 0.0))]) == 0
    assert compute_inverted_share([graded((True, 1.0), (False, 1.0))]) == 0
    assert compute_inverted_share([graded((True, 1.0), (True, 0.0), (False, 0.5)), graded((False, 3.0))]) == 0.5
    assert compute_inverted_share([graded((True, 1.0))]) is None
    # One that could not be judged, or was not, is in no pair.
    right, wrong, undecided = graded((True, 1.0), (False, 0.0), (False, 9.0))
    undecided.grade = Grade(9.0, False, True, None, has_reward=False)
    assert compute_inverted_share([[right, wrong, undecided, rollout("")]]) == 0
    assert compute_inverted_share([[right, undecided]]) is None


def test_the_limits_of_rewards_are_those_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """In seconds of processor time, six times as many of waiting, and gigabytes of 2^30 bytes."""
    made: list[grader.Pool] = []
    make = grader.make_grader
    monkeypatch.setattr(grader, "make_grader", lambda *given: made.append(given[-1]) or make(*given))
    load_grader(DataSettings(reward_seconds=2.0, reward_memory_gb=1.5), 8).close()
    assert made[0].limits == Limits(cpu=2.0, wall=12.0, memory=3 << 29)
