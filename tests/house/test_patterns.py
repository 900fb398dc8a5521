"""Answers by a regular expression of the user's own: which match and group counts, and what is refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qed.errors import UsageError
from qed.grading.extract import extract_final_answer, find_final_answer
from qed.rewards.accuracy import Accuracy
from qed.types import Problem, Rollout

Run = Callable[..., tuple[int, str, str]]
TEXT = "Steps: 3 + 4 = 7\nThe answer is 1,234.\n#### 1,234\nQuestion: 5?"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (r"regex:#### (-?[0-9.,]+)", "1,234"),
        (r"regex:(-?[$0-9.,]{2,})|(-?[0-9]+)", "5"),
        (r"first-regex:(-?[$0-9.,]{2,})|(-?[0-9]+)", "3"),
        (r"regex:answer is", "answer is"),
        (r"regex:nothing (.*)", None),
    ],
)
def test_the_last_or_the_first_match_counts(mode: str, expected: str | None) -> None:
    found = extract_final_answer(TEXT, mode)
    assert (found.answer if found else None) == expected


def test_an_endless_expression_ends() -> None:
    start = time.process_time()
    refusal = find_final_answer("a" * 60, r"regex:^(a|a|aa)+$b|(a+)+c")
    assert time.process_time() - start < 10
    assert "regular expression" in str(refusal)


def test_a_reward_reads_by_a_pattern() -> None:
    answer = Rollout(Problem("p", "?", "1234"), (), (), (), TEXT, "stop")
    assert Accuracy(pattern=r"#### ([0-9.,]+)")(answer).correct
    assert not Accuracy(pattern=r"= ([0-9]+)")(answer).correct
    with pytest.raises(UsageError, match="does not compile"):
        Accuracy(pattern="(")


def test_the_command_line_takes_patterns(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(json.dumps({"gold": "7", "prediction": TEXT}))
    for mode, correct in ((r"regex:= (\d+)", 1), (r"regex:#### (\S+)", 0)):
        code, out, _ = run("grade", str(file), "--extract", mode, "--json")
        assert (code, json.loads(out.splitlines()[-1])["correct"]) == (0, correct)
    for mode, words in (("regex:(", "does not compile"), ("fast", "must be strict"), ("regex:", "is empty")):
        code, _, err = run("grade", str(file), "--extract", mode)
        assert (code, words in err) == (2, True), err
