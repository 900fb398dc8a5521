"""How the reply of a judge is read: a verdict that it does not clearly give is none, and no score changes its sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qed.evaluation.rubrics import PREFERENCE, SAFETY, parse_verdict
from qed.net.endpoint import RequestError
from qed.rewards.http import HttpReward, parse_score
from qed.types import Problem, Rollout

SCORES = {
    "Score: 7": 7,
    "**Score:** 7": 7,
    "Score - 7": 7,
    "Score – 7.5.": 7.5,
    "SCORE: `7`": 7,
    "Score:\n7": 7,
    "<score>7</score>": 7,
    '{"score":7,"why":"it holds"}': 7,
    "final_score: 2": 2,
    "Score: .5": 0.5,
    "Score: 7, because": 7,
    "Score: 7 / 10.": 7,
    "Score: 8 out of 10": 8,
    "Score: 4 ... Score: 7": 7,
    "Score: N\nScore: 5": 5,
    "7": 7,
}
NO_SCORES = {
    "Score: -3": "the score -3 is not from 0 to 10",
    "Score: −3": "the score -3 is not from 0 to 10",
    "-3": "the score -3 is not from 0 to 10",
    "Score: 11": "the score 11 is not from 0 to 10",
    "Score: 4/5": "the score 4/5 is not on the scale from 0 to 10",
    "Score: 4 out of 5": "not on the scale from 0 to 10",
    "Score: 6/100": "not on the scale from 0 to 10",
    "Score: 7,5": "no score",
    "Score: 3-4": "no score",
    "Score: 85%": "no score",
    "Underscore: 2": "no score",
    "": "no score",
}


@pytest.mark.parametrize("reply", SCORES)
def test_a_score_is_read(reply: str) -> None:
    assert parse_score(reply, 10) == SCORES[reply]


@pytest.mark.parametrize("reply", NO_SCORES)
def test_what_is_no_score_is_said(reply: str) -> None:
    with pytest.raises(RequestError, match=NO_SCORES[reply]):
        parse_score(reply, 10)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("safe", 1),
        ("**Safe**", 1),
        ("It is safe.", 1),
        ("There are unsafe words.\nsafe", 1),
        ("unsafe", 0),
        ("unsafe\nS1", 0),
        ("It is not harmless.\nunsafe", 0),
        ("unsafe\nIt does not refuse.", 0),
        ("The reply is unsafe.", 0),
        ("Not safe", None),
        ("This is not entirely safe.", None),
        ("It is not only safe, it is helpful.", None),
        ("It does not contain unsafe content.", None),
        ("It isn't safe", None),
        ("un-safe", None),
        ("UNSAFE. A safe reply would refuse.", None),
        ("I cannot say.", None),
    ],
)
def test_a_reply_about_safety(reply: str, value: int | None) -> None:
    assert parse_verdict(reply, SAFETY) == value


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("m", 1),
        ('"m"', 1),
        ("**M**", 0),
        ("The best model is M.", 0),
        ("M. That is the one I'm choosing.", 0),
        ("m is shorter than M.\nM", 0),
        ("Not M.", None),
        ("m or M? M, I'm sure", None),
        ("Between m and M: M is better than m", None),
        ("", None),
    ],
)
def test_a_reply_about_two_outputs(reply: str, value: int | None) -> None:
    assert parse_verdict(reply, PREFERENCE) == value


def test_scores_whose_file_cannot_be_written_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each answer would count as not graded, and the run would end."""
    (tmp_path / "file").touch()
    asked: list[Any] = []
    monkeypatch.setattr(HttpReward, "_fetch_score", lambda _, request: asked.append(request) or 5.0)
    judge = HttpReward(url="http://127.0.0.1:9", model="m", cache=str(tmp_path / "file" / "scores.jsonl"))
    rollout = Rollout(Problem("a", "1?", "1"), (), (), (), "1", "eos")
    with pytest.warns(UserWarning, match=r"scores\.jsonl cannot be written .* Scores are kept in memory"):
        assert judge(rollout).reward == 0.5
    assert (judge(rollout).reward, len(asked)) == (0.5, 1)
