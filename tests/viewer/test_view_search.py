"""Search in the texts of a step: phrases, expressions, and those that never end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asking_views import Asked
from making_views import Plan, build_group, make_view

from qed.errors import DataError
from qed.runs.run import Run
from qed.types import Problem, Rollout
from qed.viewer import searching
from qed.viewer.params import Params, Refused
from qed.viewer.searching import search_answers

PLAN = Plan("first", steps=6)
STEP = 6
SECRET = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEFGH"


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The endpoints over a run of the run's own writers."""
    folder = tmp_path_factory.mktemp("views")
    make_view(folder, PLAN)
    return Asked(folder / "first", cache=folder / "cache")


@pytest.fixture
def search(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A search in this process: the child process costs half a second each time."""
    monkeypatch.setattr(searching, "call_in_child", lambda function, arguments, *_: function(*arguments))
    return lambda **params: ask("search", run="first", step=STEP, **params)


def test_a_phrase_is_found_in_every_answer_that_has_it(search: Any) -> None:
    reply = search(q="let me THINK again")
    expected = [
        (number, place)
        for number in range(PLAN.groups)
        for place, one in enumerate(build_group(PLAN, STEP, number))
        if "Let me think again" in one.text
    ]
    assert expected
    assert [(hit["group"], hit["answer"]) for hit in reply["hits"]] == expected
    hit = reply["hits"][0]
    assert (hit["field"], hit["match"], hit["before"]) == ("text", "Let me think again", "<think>")
    assert len(hit["after"]) == 60
    assert reply["complete"]
    assert search(q="let me THINK again", case=1)["hits"] == []


def test_a_phrase_is_no_expression_unless_it_is_asked_for(search: Any) -> None:
    assert search(q="\\frac{a}{b} +")["hits"]
    assert search(q="fra.")["hits"] == []
    hits = search(q=r"\(problem \d+\)", regex=1, fields="question,prompt")["hits"]
    assert {hit["field"] for hit in hits} == {"question", "prompt"}
    assert all(hit["match"].startswith("(problem ") for hit in hits)


def test_hits_of_an_evaluation_are_of_its_decoding(ask: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "call_in_child", lambda function, arguments, *_: function(*arguments))
    where = {"run": "first", "step": 4, "task": "maths", "decoding": "sampled"}
    reply = ask("search", **where, q="boxed")
    assert {hit["group"] for hit in reply["hits"]} == {each["group"] for each in ask("step", **where)["groups"]}
    assert len(reply["hits"]) == 48


def test_an_unreadable_group_is_left_out_and_told(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, read = search(q="boxed"), searching.read_group

    def read_undamaged(data: Any, index: Any, group: int, **more: Any) -> Any:
        if group == 1:
            raise DataError("damaged")
        return read(data, index, group, **more)

    monkeypatch.setattr(searching, "read_group", read_undamaged)
    reply = search(q="boxed")
    assert reply["hits"] == [hit for hit in whole["hits"] if hit["group"] != 1] != whole["hits"]
    assert (whole["complete"], reply["complete"]) == (True, False)
    assert reply["searched"] == whole["searched"] - len(build_group(PLAN, STEP, 1))


@pytest.mark.parametrize(
    "params",
    [{"q": ""}, {"q": "x", "fields": "tokens"}, {"q": "(", "regex": 1}, {"q": "x" * 3_000}, {"fields": "text"}],
)
def test_a_bad_search_is_refused(ask: Asked, params: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        search_answers(ask.library, Params({"run": "first", "step": STEP, **params}))
    assert refused.value.status == 400


def test_hits_are_bounded(search: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "MAX_HITS", 5)
    reply = search(q="e")
    assert (len(reply["hits"]), reply["complete"]) == (5, False)


def test_a_secret_is_neither_shown_nor_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "call_in_child", lambda function, arguments, *_: function(*arguments))
    run = Run(tmp_path / "run")
    run.write("settings.yaml", b"{method: grpo}")
    text = f"My token is {SECRET}, keep it."
    run.rollouts(1, [[Rollout(Problem("p", "q", "1"), (1,), (2,), (-1.0,), text, "stop")]])
    ask = Asked(tmp_path / "run", cache=tmp_path / "cache")
    assert ask("search", run="run", step=1, q=SECRET[3:20])["hits"] == []
    (hit,) = ask("search", run="run", step=1, q="keep")["hits"]
    assert SECRET[3:] not in hit["before"]


def test_files_of_the_current_folder_stand_in_for_no_module_of_python(tmp_path: Path) -> None:
    for name in ("types", "re", "enum", "operator", "select", "signal"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('a file of the user')\n")
    code = "import math; from qed.viewer.child import call_in_child; print(call_in_child(math.sqrt, (4.0,), 60, ''))"
    path = os.pathsep.join(folder for folder in sys.path if folder)
    command, environment = [sys.executable, "-P", "-c", code], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "2.0\n", done.stderr


def test_an_endless_expression_is_ended_and_the_next_search_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run")
    run.write("settings.yaml", b"{method: grpo}")
    run.rollouts(1, [[Rollout(Problem("p", "q", "1"), (1,), (2,), (-1.0,), "a" * 60 + "!", "stop")]])
    ask = Asked(tmp_path / "run", cache=tmp_path / "cache")
    assert len(ask("search", run="run", step=1, q="aaa!")["hits"]) == 1
    monkeypatch.setattr(searching, "SECONDS", 1.5)
    monkeypatch.setattr(searching, "MARGIN", 0.0)
    with pytest.raises(Refused, match=r"did not finish within 1\.5 s") as refused:
        ask("search", run="run", step=1, q="(a+)+$", regex=1)
    assert refused.value.status == 400
