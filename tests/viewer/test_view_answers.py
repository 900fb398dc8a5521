"""The answers of a step as the viewer replies them: the table, groups, tokens with signals, the grader's steps."""

from __future__ import annotations

import json
import math
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from asking_views import Asked
from hostile_texts import PAYLOADS
from making_views import FIRST, make_hostile_run, make_view

from qed.runs.run import read_lines
from qed.runs.step_index import name_index
from qed.types import UNGRADED
from qed.viewer.child import call_in_child
from qed.viewer.params import Refused
from qed.viewer.texts import build_pieces, read_tags

EARLIER = Path(__file__).parents[1] / "end_to_end" / "earlier_runs.tar.xz"
STEP = {"run": "first", "step": 6}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The endpoints over a whole run."""
    home = tmp_path_factory.mktemp("runs")
    return Asked(make_view(home, FIRST), cache=home / "cache")


@pytest.fixture(scope="module")
def rows(asked: Asked) -> list[dict[str, Any]]:
    """The answers of the step as the run has written them."""
    return read_lines(asked.library.find("first").folder / "rollouts" / "step_000006.jsonl.zst")


def test_the_table_has_every_answer(asked: Asked, rows: list[dict[str, Any]]) -> None:
    table = asked("step", **STEP)
    for name in ("reward", "correct", "format_ok", "n_tokens", "stop_reason", "source", "version"):
        blank = UNGRADED if name in ("correct", "format_ok") else ()
        assert table["rows"][name] == [None if row["tier"] in blank else row[name] for row in rows]
    assert table["parts"]["format"] == [row["parts"]["format"] for row in rows]
    assert [group["id"] for group in table["groups"]] == list(dict.fromkeys(row["group_id"] for row in rows))
    own = [row for row in rows if row["source"] == "policy"]
    ages = [age for age, source in zip(table["rows"]["staleness"], table["rows"]["source"], strict=True)]
    assert [age for age in ages if age is not None][: len(own)] == [5 - row["version"] for row in own]
    assert sum(table["rows"]["has_stats"]) == 4
    assert (table["previous"], table["next"]) == (5, 7)
    assert "shingles" not in table["rows"]


def test_an_evaluation_has_a_table_for_each_decoding(asked: Asked) -> None:
    greedy = asked("step", run="first", step=12, task="maths", decoding="greedy")
    sampled = asked("step", run="first", step=12, task="maths", decoding="sampled")
    assert [len(greedy["groups"]), len(greedy["rows"]["correct"])] == [12, 12]
    assert [len(sampled["groups"]), len(sampled["rows"]["correct"])] == [12, 48]
    assert (greedy["previous"], greedy["next"]) == (8, None)
    first = sampled["groups"][0]["group"]
    group = asked("group", run="first", step=12, task="maths", decoding="sampled", group=first)
    assert len(group["answers"]) == 4
    assert group["previous"] is None
    with pytest.raises(Refused, match="no group"):  # it is one of the other decoding
        asked("group", run="first", step=12, task="maths", decoding="greedy", group=first)


def test_a_group_has_its_answers_side_by_side(asked: Asked, rows: list[dict[str, Any]]) -> None:
    group = asked("group", **STEP, group=1)
    own = [row for row in rows if row["group_id"] == group["group"]["id"]]
    assert [answer["text"] for answer in group["answers"]] == [row["text"] for row in own]
    assert [answer["parts"] for answer in group["answers"]] == [row["parts"] for row in own]
    assert group["group"]["prompt"] == own[0]["prompt"]
    assert (group["previous"], group["next"]) == (0, 2)
    (gold,) = group["group"]["gold_pieces"]
    assert gold["math"][0] == "math"
    thoughts = [piece for piece in group["answers"][0]["pieces"] if "thought" in piece]
    assert thoughts
    assert all(piece["closed"] for piece in thoughts)


def test_signals_are_aligned_with_tokens(asked: Asked, rows: list[dict[str, Any]]) -> None:
    answer = asked("answer", **STEP, group=0, answer=0)
    row = rows[0]
    assert answer["tokens"] == row["tokens"]
    assert "".join(answer["pieces"]) == row["text"] + "<|end|>"
    assert all(len(values) == len(row["tokens"]) for values in answer["signals"].values())
    assert set(answer["signals"]) == {"logp", "entropy", "ratio", "kl_ref", "mismatch", "advantage"}
    assert answer["signals"]["logp"] == row["logps"]
    learner = row["logps"][0] + answer["signals"]["mismatch"][0]
    assert answer["signals"]["ratio"][0] > 0
    assert min(answer["signals"]["kl_ref"]) >= 0  # k3 is never negative
    assert math.isfinite(learner)
    for name in ("ratio", "mismatch", "advantage"):
        assert answer["scales"][name]["signed"]
    assert answer["scales"]["mismatch"]["low"] == -answer["scales"]["mismatch"]["high"]
    assert [len(each) for each in answer["top"]] == [3] * len(row["tokens"])
    assert {"id", "text", "logp"} == set(answer["top"][0][0])


def test_notes_say_why_a_signal_is_missing(asked: Asked) -> None:
    answer = asked("answer", **STEP, group=5, answer=1)
    assert set(answer["signals"]) == {"logp", "advantage"}
    assert any("run.save_token_stats" in note for note in answer["notes"])
    assert answer["top"] is None


def test_the_graders_steps_are_shown(asked: Asked, rows: list[dict[str, Any]]) -> None:
    number = next(at for at, row in enumerate(rows) if row["extracted"])
    steps = asked("explain", **STEP, group=number // 6, answer=number % 6)
    assert steps["gold"]["text"] == rows[number]["gold"]
    assert steps["answer"]["text"] == rows[number]["extracted"]
    assert steps["stored"]["reason"] == rows[number]["reason"]
    assert isinstance(steps["correct"], bool)
    empty = next(at for at, row in enumerate(rows) if row["extracted"] is None)
    none = asked("explain", **STEP, group=empty // 6, answer=empty % 6)
    assert none["reason"] == "No answer was found in the text."


def test_a_search_finds_phrases_and_expressions(asked: Asked, rows: list[dict[str, Any]]) -> None:
    found = asked("search", **STEP, q="LET ME THINK AGAIN")
    assert [(hit["group"], hit["answer"]) for hit in found["hits"]] == [(1, 5)]
    assert found["hits"][0]["match"] == "Let me think again"
    assert found["complete"]
    assert found["searched"] == len(rows)
    assert asked("search", **STEP, q="LET ME THINK AGAIN", case=1)["hits"] == []
    some = asked("search", **STEP, q=r"\\boxed\{\d+\}", regex=1)
    assert len(some["hits"]) == sum(bool(_matches(row["text"])) for row in rows)
    prompts = asked("search", **STEP, q="<|user|>", fields="prompt,question")
    assert {hit["field"] for hit in prompts["hits"]} == {"prompt"}


def _matches(text: str) -> bool:
    inner = text.rpartition("\\boxed{")[2]
    return "\\boxed{" in text and inner.partition("}")[0].isdigit()


@pytest.mark.parametrize("query", ["(", "[z-a]", "(?P<n>a)(?P<n>b)", "a{99999999999}"])
def test_a_wrong_expression_is_refused(asked: Asked, query: str) -> None:
    with pytest.raises(Refused, match="not a valid regular expression"):
        asked("search", **STEP, q=query, regex=1)


def test_an_endless_call_is_killed() -> None:
    with pytest.raises(Refused, match="too long"):
        call_in_child(_match_forever, ("a" * 40 + "!",), 1.0, "too long")


def test_an_error_of_a_child_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Its text may be a stranger's, and move the cursor of the terminal."""
    with pytest.raises(Refused, match="failed: KeyError"):
        call_in_child(_fail, ("\x1b[2J",), 20.0, "too long")
    assert capfd.readouterr().err == ""


def _fail(text: str) -> None:
    raise KeyError(text)


def _match_forever(text: str) -> None:
    import re  # noqa: PLC0415 -- in the child

    re.match(r"(a+)+$", text)


@pytest.mark.parametrize(
    ("place", "status"),
    [
        ({"step": 99}, 404),
        ({"step": 6, "group": 99}, 404),
        ({"step": 6, "group": 0, "answer": 99}, 404),
        ({"step": 12, "task": "maths", "decoding": "other", "group": 0, "answer": 0}, 404),
    ],
)
def test_what_is_not_there_is_refused(asked: Asked, place: dict[str, Any], status: int) -> None:
    with pytest.raises(Refused) as refused:
        asked("answer", run="first", **{"group": 0, "answer": 0, **place})
    assert refused.value.status == status


def test_earlier_runs_are_indexed_in_the_cache(tmp_path: Path) -> None:
    """Their answers are one frame, and nothing is written beside them."""
    with tarfile.open(EARLIER) as archive:
        archive.extractall(tmp_path / "runs", filter="data")
    before = sorted(path for path in (tmp_path / "runs").rglob("*"))
    asked = Asked(tmp_path / "runs", cache=tmp_path / "cache")
    keys = [card["key"] for card in asked("runs")["runs"]]
    key = next(key for key in keys if "luffy" in key)
    table = asked("step", run=key, step=2)
    rows = read_lines(asked.library.find(key).folder / "rollouts" / "step_000002.jsonl.zst")
    assert table["rows"]["reward"] == [row["reward"] for row in rows]
    last = table["groups"][-1]["group"]
    assert asked("group", run=key, step=2, group=last)["answers"][-1]["text"] == rows[-1]["text"]
    assert sorted(path for path in (tmp_path / "runs").rglob("*")) == before
    assert list((tmp_path / "cache" / "indexes").iterdir())


def test_a_damaged_step_is_a_sentence(tmp_path: Path) -> None:
    run = make_view(tmp_path, FIRST)
    data = run / "rollouts" / "step_000006.jsonl.zst"
    data.write_bytes(zstandard.compress(b'{"step": 6, "group_id": "a"\n{"no": }\n'))
    name_index(data).unlink()
    asked = Asked(run, cache=tmp_path / "cache")
    with pytest.raises(Refused, match="damaged"):
        asked("step", **STEP)
    assert len(asked("step", run="first", step=7)["groups"]) == 6


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    asked = Asked(make_hostile_run(tmp_path), cache=tmp_path / "cache")
    table = asked("step", run="hostile", step=5)
    assert len(table["groups"]) == len(PAYLOADS)
    for number in range(0, len(PAYLOADS), 9):
        group = asked("group", run="hostile", step=5, group=number)
        answer = asked("answer", run="hostile", step=5, group=number, answer=0)
        for piece in _flatten([*group["answers"][0]["pieces"], *answer["prompt_pieces"]]):
            assert set(piece) in ({"text"}, {"math", "source", "block"})
            if "math" in piece:
                _check_tree(piece["math"])


def _flatten(pieces: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [inner for piece in pieces for inner in (_flatten(piece["thought"]) if "thought" in piece else [piece])]


def _check_tree(tree: Any) -> None:
    name, attributes, children = tree
    assert name in {"math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msup", "msub",
                    "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd", "mstyle", "menclose",
                    "mpadded", "mfenced"}  # fmt: skip
    assert not {"href", "src", "style", "onclick"} & set(attributes)
    for child in children:
        if not isinstance(child, str):
            _check_tree(child)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>b", [("a", True, True), ("b", False, True)]),
        ("a</think>b", [("a", True, True), ("b", False, True)]),
        ("a<think>b", [("a", False, True), ("b", True, False)]),
        ("<reasoning>a</reasoning>", [("a", True, True)]),
        ("plain", [("plain", False, True)]),
        ("[[a]]b", [("a", True, True), ("b", False, True)]),
    ],
)
def test_thoughts_are_found(text: str, expected: list[tuple[str, bool, bool]]) -> None:
    settings = {"data": {"prompt_options": ["mine.reasoning_start=[[", "mine.reasoning_end=]]"]}}
    found = []
    for piece in build_pieces(text, read_tags(settings)):
        thought = "thought" in piece
        inner = piece["thought"][0]["text"] if thought else piece["text"]
        found.append((inner, thought, piece.get("closed", True)))
    assert found == expected


def test_long_texts_take_little_time() -> None:
    """Time is bounded by counts of work, not by a clock: formulas are drawn in short texts alone."""
    for text in ("$" * 200_000, "\\boxed{" * 28_000, "$x$ " * 50_000):
        assert json.dumps(build_pieces(text)).count('"math"') <= 60
