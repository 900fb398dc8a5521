"""The table of a step's answers against what the run has written, from older files, and from damaged ones."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import zstandard
from asking_views import Asked
from making_views import ANSWERS, GROUPS, Plan, build_evaluation, build_group, make_view

from qed.evaluation.summary import summarize
from qed.rollout.ahead import measure_staleness
from qed.runs.run import Run, build_row, write_evaluation
from qed.runs.step_file import encode_line
from qed.runs.step_index import StepIndex, build_index, name_index, write_index
from qed.types import UNGRADED
from qed.viewer import outcomes
from qed.viewer.params import Refused

PLAN = Plan("first", steps=6)
STEP = 6


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of the run's own writers."""
    folder = tmp_path_factory.mktemp("views")
    make_view(folder, PLAN)
    return folder


@pytest.fixture
def ask(views: Path, tmp_path: Path) -> Asked:
    """The endpoints over the run."""
    return Asked(views, cache=tmp_path / "cache")


def list_rows(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of a table of columns."""
    names, columns = reply["rows"].keys(), reply["rows"].values()
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def test_the_table_has_what_the_run_has_written(ask: Asked) -> None:
    reply = ask("step", run="first", step=STEP)
    written = [build_group(PLAN, STEP, number) for number in range(GROUPS)]
    rows = list_rows(reply)
    assert [(row["group"], row["answer"]) for row in rows] == [(g, a) for g in range(GROUPS) for a in range(ANSWERS)]
    for row, rollout in zip(rows, [one for group in written for one in group], strict=True):
        assert rollout.grade is not None
        failed = rollout.grade.tier in UNGRADED
        correct = None if failed else rollout.grade.correct
        assert row["format_ok"] == (None if failed else rollout.grade.format_ok)
        expected = (correct, rollout.grade.tier, rollout.stop_reason, rollout.source, rollout.given)
        assert tuple(row[name] for name in ("correct", "tier", "stop_reason", "source", "given")) == expected
        assert row["reward"] == (pytest.approx(rollout.reward) if rollout.has_reward else None)
        assert row["advantage"] == pytest.approx(rollout.advantage, abs=1e-6)
        assert row["n_tokens"] == len(rollout.output)
    assert "shingles" not in reply["rows"]
    assert set(reply["parts"]) == {"correct", "format"}
    for group, rollouts in zip(reply["groups"], written, strict=True):
        assert group["id"] == rollouts[0].problem.id
        grades = [one.grade for one in rollouts if one.grade and one.grade.tier not in UNGRADED]
        assert (group["n_graded"], group["n_right"]) == (len(grades), sum(grade.correct for grade in grades))
        assert group["reward_mean"] == pytest.approx(fmean(one.reward for one in rollouts if one.has_reward))
        assert group["subject"] == rollouts[0].problem.meta["subject"]


FAILED = {"correct": False, "format_ok": False, "tier": "error", "reward": None}
RIGHT = {"correct": True, "format_ok": True, "tier": "typed", "reward": 1.0}


def write_flaky(folder: Path, path: str, **fields: str) -> Path:
    """A group of one right answer and two that could not be graded, and one of which none could."""
    rows = [
        {"group_id": name, **fields, **row}
        for name, own in (("p", [FAILED, RIGHT, FAILED]), ("q", [FAILED]))
        for row in own
    ]
    Run(folder).write("settings.yaml", b"{method: grpo}")
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_bytes(zstandard.compress("".join(map(encode_line, rows)).encode()))
    return folder / path


@pytest.mark.parametrize("counted", [True, False])
def test_answers_that_could_not_be_graded_are_neither_right_nor_wrong(tmp_path: Path, counted: bool) -> None:
    """Also with an index that does not count them, as earlier versions wrote it."""
    data = write_flaky(tmp_path / "run", "rollouts/step_000001.jsonl.zst")
    index = build_index(data)
    if not counted:
        for group in index.groups:
            del group["n_graded"], group["n_graded_right"]
    write_index(name_index(data), index)
    ask = Asked(tmp_path / "run", cache=tmp_path / "cache")
    reply = ask("step", run="run", step=1)
    assert reply["rows"]["correct"] == reply["rows"]["format_ok"] == [None, True, None, None]
    assert [(each["n"], each["n_graded"], each["n_right"]) for each in reply["groups"]] == [(3, 1, 1), (1, 0, 0)]
    assert [each["correct"] for each in ask("group", run="run", step=1, group=0)["answers"]] == [None, True, None]
    visits = [ask("problem", run="run", id=name)["training"][0] for name in "pq"]
    assert [(visit["n"], visit["n_right"]) for visit in visits] == [(1, 1), (0, 0)]
    listed = {each["id"]: (each["first_rate"], each["last_rate"]) for each in ask("problems", run="run")["problems"]}
    assert listed == {"p": (1.0, 1.0), "q": (None, None)}


def test_in_an_evaluation_they_are_wrong(tmp_path: Path) -> None:
    data = write_flaky(tmp_path / "run", "eval/step_000001/own.jsonl", decoding="greedy")
    data.write_bytes(zstandard.decompress(data.read_bytes()))
    ask = Asked(tmp_path / "run", cache=tmp_path / "cache")
    reply = ask("step", run="run", step=1, task="own", decoding="greedy")
    assert reply["rows"]["correct"] == [False, True, False, False]
    assert [(each["n_graded"], each["n_right"]) for each in reply["groups"]] == [(3, 1), (1, 0)]
    assert ask("problem", run="run", id="p")["evaluations"][0]["n"] == 3


def test_staleness_is_that_of_the_metrics(ask: Asked) -> None:
    written = [build_group(PLAN, STEP, number) for number in range(GROUPS)]
    rows = list_rows(ask("step", run="first", step=STEP))
    ages = [row["staleness"] for row in rows if row["source"] == "policy"]
    expected = measure_staleness(written, STEP - 1)
    assert fmean(ages) == pytest.approx(expected["rollout/staleness_mean"])
    assert max(ages) == expected["rollout/staleness_max"]
    assert {row["staleness"] for row in rows if row["source"] in ("expert", "replay", "demonstration")} == {None}


def test_answers_with_statistics_are_marked_and_steps_lead_on(ask: Asked) -> None:
    reply = ask("step", run="first", step=STEP)
    marked = [(row["group"], row["answer"]) for row in list_rows(reply) if row["has_stats"]]
    assert 1 <= len(marked) <= 4
    for group, answer in marked:
        assert "entropy" in ask("answer", run="first", step=STEP, group=group, answer=answer)["signals"]
    assert (reply["previous"], reply["next"]) == (STEP - 1, None)
    assert ask("step", run="first", step=STEP - 1)["next"] == STEP


def write_old(folder: Path, step: int = 1, tail: bytes = b"") -> Path:
    """A step as one frame without an index, as earlier versions wrote it."""
    rows = [build_row(one, step) for number in range(3) for one in build_group(PLAN, 5, number)]
    lines = "".join(map(encode_line, rows)).encode() + tail
    Run(folder).write("settings.yaml", b"{method: grpo}")
    path = folder / "rollouts" / f"step_{step:06d}.jsonl.zst"
    path.parent.mkdir()
    path.write_bytes(zstandard.ZstdCompressor().compress(lines))
    return path


def test_a_torn_last_line_and_a_read_only_cache_are_no_error(tmp_path: Path) -> None:
    write_old(tmp_path / "old", tail=b'{"step": 1, "group_id": "torn", "te')
    (tmp_path / "file").write_text("no folder")
    ask = Asked(tmp_path / "old", cache=tmp_path / "file" / "cache")
    reply = ask("step", run="old", step=1)
    assert len(reply["rows"]["answer"]) == 3 * ANSWERS
    assert len(ask("group", run="old", step=1, group=2)["answers"]) == ANSWERS


def test_a_file_that_was_cut_off_says_how_much_is_lost(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.write("settings.yaml", b"{method: grpo}")
    run.rollouts(1, [build_group(PLAN, 5, number) for number in range(4)])
    path = tmp_path / "run" / "rollouts" / "step_000001.jsonl.zst"
    whole, listed = path.read_bytes(), build_index(path).groups
    ask = Asked(tmp_path / "run", cache=tmp_path / "cache")
    assert ask("step", run="run", step=1)["lost"] == 0
    assert ask("search", run="run", step=1, q="no such words")["complete"]
    path.write_bytes(whole[: listed[2]["offset"]])
    reply = ask("step", run="run", step=1)
    assert (len(reply["groups"]), reply["lost"]) == (2, listed[2]["n"] + listed[3]["n"])
    assert not ask("search", run="run", step=1, q="no such words")["complete"]


def test_a_damaged_file_is_refused_with_its_name(tmp_path: Path) -> None:
    path = write_old(tmp_path / "old")
    path.write_bytes(b"no frame at all")
    ask = Asked(tmp_path / "old", cache=tmp_path / "cache")
    with pytest.raises(Refused, match=r"step_000001\.jsonl\.zst of the run old is damaged") as refused:
        ask("step", run="old", step=1)
    assert refused.value.status == 422
    with pytest.raises(Refused, match="no saved answers of step 7"):
        ask("step", run="old", step=7)


def test_a_file_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    write_old(tmp_path / "old")
    ask = Asked(tmp_path / "old", cache=tmp_path / "cache")
    assert len(ask("step", run="old", step=1)["groups"]) == 3
    Run(tmp_path / "old").rollouts(1, [build_group(PLAN, 5, 0)])
    assert len(ask("step", run="old", step=1)["groups"]) == 1


def test_an_index_is_built_once_for_all_who_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_old(tmp_path / "old")
    built: list[Path] = []

    def count(data: Path) -> StepIndex:
        built.append(data)
        return build_index(data)

    monkeypatch.setattr(outcomes, "build_index", count)
    ask = Asked(tmp_path / "old", cache=tmp_path / "cache")
    threads = [threading.Thread(target=ask, args=("step",), kwargs={"run": "old", "step": 1}) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


@pytest.mark.parametrize("damage", ["cut", "other groups", "hostile rows"])
def test_a_strange_index_is_not_believed(tmp_path: Path, damage: str) -> None:
    run = Run(tmp_path / "run")
    run.write("settings.yaml", b"{method: grpo}")
    run.rollouts(1, [build_group(PLAN, 5, number) for number in range(2)])
    path = name_index(tmp_path / "run" / "rollouts" / "step_000001.jsonl.zst")
    with zstandard.open(path, "rb") as file:
        head, table = io.BytesIO(file.read()).read().split(b"\n")[:2]
    groups, rows = json.loads(head), json.loads(table)
    if damage == "other groups":
        groups["groups"][0]["n"] = 10_000
    elif damage == "hostile rows":
        rows["rows"]["group"] = ["<script>"] * 12
    content = b"".join(zstandard.compress(json.dumps(part).encode() + b"\n") for part in (groups, rows))
    path.write_bytes(content[:50] if damage == "cut" else content)
    reply = Asked(tmp_path / "run", cache=tmp_path / "cache")("step", run="run", step=1)
    assert [group["n"] for group in reply["groups"]] == [ANSWERS, ANSWERS]
    assert reply["rows"]["group"] == [0] * ANSWERS + [1] * ANSWERS


def test_rows_of_a_few_columns_are_shown(tmp_path: Path) -> None:
    bare: list[dict[str, Any]] = [
        {"decoding": "greedy", "group_id": "p", "text": "1"},
        {"decoding": "greedy", "group_id": None, "text": 5},
    ]
    rows = build_evaluation(PLAN, 4, "greedy", problems=1)
    write_evaluation(tmp_path / "run", 0, "maths", [*rows, *bare], {"greedy": summarize(rows)})
    ask = Asked(tmp_path / "run", cache=tmp_path / "cache")
    where = {"run": "run", "step": 0, "task": "maths", "decoding": "greedy"}
    reply = ask("step", **where)
    assert len(reply["groups"]) == 3
    for group in reply["groups"]:
        shown = ask("answer", **where, group=group["group"], answer=0)
        assert shown["answer"]["text"] in (rows[0]["text"], "1", "5")
        json.dumps(shown, allow_nan=False)
