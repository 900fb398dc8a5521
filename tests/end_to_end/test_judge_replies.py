"""What is read from the replies of a judge and of a reward's server, what is remembered, and what is never written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import Reply, chat_reply, serve

from qed.net import endpoint as net
from qed.runs.run import read_lines


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(net, "FIRST_WAIT", 0.01)


def test_two_scores_for_one_answer_are_none(qed: Callable[..., Any], tmp_path: Path) -> None:
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    file.write_text(json.dumps({"question": "q", "gold": "1", "response": "1"}) + "\n")
    with serve(lambda *_: (200, {"data": [{"score": 0.5}, {"score": 0.1}]})) as url:
        options = f"http.url={url},http.model=m,http.kind=score,http.threshold=0.5"
        qed("grade", file, "--reward", "http", "--reward-options", options, "--out", out)
    (row,) = read_lines(out)
    assert row["tier"] == "error"
    assert "2 results for one answer" in row["reason"]


@pytest.mark.parametrize("change", [["--extra", '{"seed": 5}'], ["--max-tokens", "9"], ["--url", "/other"]])
def test_the_replies_of_another_judge_are_not_taken(qed: Callable[..., Any], tmp_path: Path, change: list[str]) -> None:
    """The same name at another address, or asked in another way."""
    asked, outputs = list[Any](), tmp_path / "o.jsonl"
    outputs.write_text("".join(json.dumps({"instruction": f"q{n}", "output": "b"}) + "\n" for n in range(3)))

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        asked.append(content)
        return 200, chat_reply("It is safe.")

    with serve(answer) as url:
        assert qed("judge", outputs, "--url", url, "--model", "judge").code == 0
        place = url + change[1] if change[0] == "--url" else url
        changed = ["--url", place, *(change if change[0] != "--url" else [])]
        assert qed("judge", outputs, "--model", "judge", *changed).code == 0
        assert len(asked) == 6
        again = qed("judge", outputs, "--model", "judge", *changed)
    assert len(asked) == 6
    assert "3 of 3 replies are already there" in again.out + again.err


@pytest.mark.parametrize("text", ["Score: 1 for a bad one, but", "<think>Is it safe? Score: 3"])
def test_a_reply_that_is_cut_off_is_no_verdict(qed: Callable[..., Any], tmp_path: Path, text: str) -> None:
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    file.write_text(json.dumps({"question": "q", "gold": "1", "response": "1"}) + "\n")
    asked_for = tmp_path / "o.jsonl"
    asked_for.write_text(json.dumps({"instruction": "a", "output": "b"}) + "\n")
    reply = chat_reply(text)
    reply["choices"][0]["finish_reason"] = "stop" if "<think>" in text else "length"
    with serve(lambda *_: (200, reply)) as url:
        qed("grade", file, "--reward", "http", "--reward-options", f"http.url={url},http.model=m", "--out", out)
        judged = qed("judge", asked_for, "--rubric", "safety", "--url", url, "--model", "m", "--json")
    (row,) = read_lines(out)
    assert (row["tier"], row["reward"]) == ("error", None)
    assert "cut off" in row["reason"] or "within its reasoning" in row["reason"]
    assert judged.code == 3


@pytest.mark.parametrize(
    ("first", "second"), [({"read": "data.0.data"}, {"read": "data.1.data"}), ({}, {"scale": "2"})]
)
def test_scores_are_remembered_with_how_they_are_read(
    qed: Callable[..., Any], tmp_path: Path, first: dict[str, str], second: dict[str, str]
) -> None:
    file, found = tmp_path / "answers.jsonl", list[float]()
    file.write_text(json.dumps({"question": "q", "gold": "1", "response": "1"}) + "\n")
    with serve(lambda *_: (200, {"data": [{"data": [0.8]}, {"data": [0.2]}][: 2 if first else 1]})) as url:
        for changes in (first, second, first):
            options = [f"http.url={url}", "http.model=m", "http.kind=reward", f"http.cache={tmp_path / 'c.jsonl'}"]
            options += [f"http.{name}={value}" for name, value in changes.items()]
            done = qed("grade", file, "--reward", "http", "--reward-options", ",".join(options), "--json")
            found.append(done.result["mean_reward"])
    assert found == [0.8, 0.2 if first else 0.4, 0.8]


def test_a_part_that_only_logs_takes_no_reward_where_it_fails(qed: Callable[..., Any], tmp_path: Path) -> None:
    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    file.write_text(json.dumps({"question": "q", "gold": "1", "response": "It is 1."}) + "\n")
    with serve(lambda *_: (401, {"error": "bad key"})) as url:
        options = f"http.url={url},http.model=m"
        for weight, expected in (("0", 1.0), ("0.5", None)):
            qed("grade", file, "--reward", f"accuracy,{weight}*http", "--reward-options", options, "--out", out)
            (row,) = read_lines(out)
            assert (row["reward"], row["tier"] == "error") == (expected, expected is None)
            assert "http" not in row["parts"]
            assert "bad key" in row["reason"]


@pytest.mark.parametrize(("key", "code"), [("sk-secret-0123456789\r\n", 0), ("sk-\u20ac", 2), ("sk-a\nb", 2)])
def test_a_key_is_never_written(
    qed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, code: int
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    seen: list[str] = []

    def answer(path: str, content: Any, headers: dict[str, str]) -> Reply:
        seen.append(headers["Authorization"])
        return 200, chat_reply("Score: 5")

    file, out = tmp_path / "answers.jsonl", tmp_path / "graded.jsonl"
    file.write_text(json.dumps({"question": "q", "gold": "1", "response": "1"}) + "\n")
    with serve(answer) as url:
        options = f"http.url={url},http.model=m"
        done = qed("grade", file, "--reward", "http", "--reward-options", options, "--out", out)
    assert done.code == code
    assert seen == (["Bearer sk-secret-0123456789"] if code == 0 else [])
    if code:
        assert "OPENAI_API_KEY has characters that cannot be sent" in done.err
        assert not out.exists()
    assert "sk-" not in done.err + done.out + (out.read_text() if out.exists() else "")
