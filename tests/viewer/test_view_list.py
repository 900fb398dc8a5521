"""The list of runs: which folders are runs, their keys, their cards, and how each run is."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from serving_views import ask_view, build_figures, make_run, serve_runs

from qed.runs.folder import lock_folder
from qed.viewer import library as libraries
from qed.viewer.cards import list_cards
from qed.viewer.library import Library
from qed.viewer.line_file import draw_rows, read_last_rows, sample_lines
from qed.viewer.params import Params, Refused


def list_runs(*places: Path) -> dict[str, Any]:
    return {card["key"]: card for card in list_cards(Library(places, places[0] / "cache"), Params())["runs"]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_run(tmp_path / "home" / "runs" / "one")
    return tmp_path / "home"


def test_keys(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a")
    make_run(tmp_path / "runs" / "sweep" / "b")
    make_run(tmp_path / "runs" / "a" / "control")
    make_run(tmp_path / "other" / "a")
    make_run(tmp_path / "runs" / "a" / "checkpoints" / "step_1" / "no")
    make_run(tmp_path / "runs" / ".replaced" / "no")
    assert list(list_runs(tmp_path / "runs", tmp_path / "other" / "a", tmp_path / "runs" / "a")) == [
        *("a", "a/control", "sweep/b", "a~2"),
    ]
    assert list(list_runs(tmp_path / "runs" / "a")) == ["a", "a/control"]


def test_keys_stay_while_runs_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "RESCAN_SECONDS", 0.0)
    places = [make_run(tmp_path / name / "run") for name in ("x", "y")]
    library = Library(places, tmp_path / "cache")
    assert [run.key for run in library.runs()] == ["run", "run~2"]
    places[0].rename(tmp_path / "moved")
    assert [run.key for run in library.runs()] == ["run~2"]
    assert library.find("run~2").folder == places[1].resolve()
    with pytest.raises(Refused) as caught:
        library.find("run")
    assert caught.value.status == 410


def test_links_to_runs_elsewhere(tmp_path: Path, home: Path) -> None:
    """They are named, but not followed: their targets can be given."""
    make_run(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "away").symlink_to(home / "runs" / "one")
    (tmp_path / "runs" / "again").symlink_to(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "up").symlink_to("..")
    library = Library([tmp_path / "runs"], tmp_path / "cache")
    assert [run.key for run in library.runs()] == ["one"]
    assert [Path(problem.folder).name for problem in library.problems()] == ["away"]
    # A place that is given may be a link itself.
    assert [run.key for run in Library([tmp_path / "runs" / "away"], tmp_path / "cache").runs()] == ["one"]


def test_long_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    long = json.dumps({"step": 1, "x": "y" * 3_000_000}) + "\n"
    path.write_text('{"step": 0}\n' + long + '{"step": 2}\n' * 2_000)
    assert {row["step"] for row in draw_rows(sample_lines(path, 50), 50, ["step"])} <= {0, 1, 2}
    assert len(read_last_rows(path, 1_000)) > 10


def test_locating(tmp_path: Path, home: Path) -> None:
    run = Library([home / "runs"], tmp_path / "cache").find("one")
    assert run.locate("logs", "attempt_1", "main.log").is_file()
    assert run.locate("logs/attempt_1/main.log").is_file()
    assert not run.locate("none", "x").exists()
    for parts in (("..",), ("logs", "..", ".."), ("/etc",), ("logs", "/etc"), ("a\0",), ("a\\b",), ("logs/../..",)):
        with pytest.raises(Refused) as caught:
            run.locate(*parts)
        assert caught.value.status == 403


def test_many_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.viewer.library.MOST_FOLDERS", 30)
    for number in range(60):
        (tmp_path / "runs" / f"{number:02}").mkdir(parents=True)
    make_run(tmp_path / "runs" / "05")
    deep = tmp_path / "runs" / "00" / "a" / "b" / "c"
    make_run(deep)
    make_run(deep / "d")
    library = Library([tmp_path / "runs"], tmp_path / "cache")
    assert [run.key for run in library.runs()] == ["05"]
    assert "the others are not shown" in library.problems()[0].reason
    monkeypatch.setattr("qed.viewer.library.MOST_FOLDERS", 10_000)
    assert {run.key for run in Library([tmp_path / "runs"], tmp_path).runs()} == {"05", "00/a/b/c"}


def test_a_card(tmp_path: Path) -> None:
    rows = [{"step": n, "phase": "grpo", "reward/mean": n / 1000, "perf/tokens_per_s": 5.0} for n in range(1, 1001)]
    metrics = "".join(json.dumps(row) + "\n" for row in rows)
    alarm = {"event": "alarm", "time": 3.0, "name": "collapse", "step": 4, "told": "Entropy is low."}
    finished = {"event": "finished", "time": 9.0, "step": 1000}
    events = "".join(json.dumps(event) + "\n" for event in ({"event": "data", "time": 2.5}, alarm, alarm, finished))
    summary = json.dumps({"arithmetic": {"sampled": build_figures(0.1), "greedy": build_figures(0.75)}})
    make_run(tmp_path / "a", **{"metrics.jsonl": metrics + '{"torn', "events.jsonl": events})
    (tmp_path / "a" / "eval" / "step_001000").mkdir()
    (tmp_path / "a" / "eval" / "step_001000" / "summary.json").write_text(summary)
    (tmp_path / "a" / "eval" / "step_001001").mkdir()  # a running evaluation
    card = list_runs(tmp_path)["a"]
    assert (card["status"], card["kind"], card["method"], card["model"]) == ("done", "run", "grpo", "tiny")
    assert (card["task"], card["seed"], card["phases"], card["started"]) == ("arithmetic", 7, ["grpo"], 2.5)
    assert (card["step"], card["planned"], card["reward"], card["tokens_per_s"]) == (1000, 3, 1.0, 5.0)
    found = {"task": "arithmetic", "decoding": "greedy", "step": 1000, "value": 0.75, "lo": 0.05, "hi": 0.7, "n": 4}
    assert card["accuracy"] == found
    assert card["first_accuracy"]["value"] == 0.25
    assert card["alarms"] == [{"step": 4, "name": "collapse", "message": "Entropy is low."}]
    spark = card["sparks"]["reward/mean"]
    assert 40 <= len(spark) <= 60
    assert spark == sorted(spark)
    assert (spark[0], spark[-1]) == (0.001, 1.0)


def test_a_copy_is_as_old_as_its_run(tmp_path: Path) -> None:
    """Its times are those that the run has written, not those of the copied files."""
    times: tuple[tuple[str, float | None], ...] = (("data", 5.0), ("finished", 9.0), ("saved", None))
    events = "".join(json.dumps({"event": name, "time": time}) + "\n" for name, time in times)
    make_run(tmp_path / "copy", **{"events.jsonl": events})
    cards = list_runs(tmp_path)
    assert (cards["copy"]["started"], cards["copy"]["updated"], cards["copy"]["resumed"]) == (5.0, 9.0, False)


def test_a_run_is_as_old_as_what_it_wrote_last(tmp_path: Path) -> None:
    """Events are rare: where no heartbeat says more, the metrics tell until the end is written."""
    begun = '{"event": "data", "time": 5.0}\n'
    now = time.time()
    make_run(tmp_path / "running", **{"events.jsonl": begun})
    make_run(tmp_path / "resumed", **{"events.jsonl": begun + '{"event": "resumed", "time": 70.0}\n'})
    make_run(tmp_path / "killed", **{"events.jsonl": begun})
    write_beat(tmp_path / "killed", ago=5_000)
    make_run(tmp_path / "unknown", **{"events.jsonl": ""})
    write_beat(tmp_path / "unknown", ago=5_000)
    cards = list_runs(tmp_path)
    for name in ("running", "resumed"):
        assert cards[name]["updated"] == pytest.approx(now, abs=60)
    assert cards["resumed"]["resumed"] is True
    assert cards["killed"]["updated"] == pytest.approx(now - 5_000, abs=60)
    # Its settings are younger than its heartbeat, so nobody knows when it began.
    assert cards["unknown"]["started"] is None


def test_a_spark_of_a_long_run_is_spread_over_all_of_it(tmp_path: Path) -> None:
    rows = [{"step": n, "phase": "grpo", "reward/mean": float(n), "x": "y" * 400} for n in range(1, 3_001)]
    make_run(tmp_path / "a", **{"metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    spark = list_runs(tmp_path)["a"]["sparks"]["reward/mean"]
    assert spark == sorted(spark)
    assert max(later - earlier for earlier, later in itertools.pairwise(spark)) < 150


@pytest.mark.parametrize("filling", [0, 20_000])
def test_a_spark_has_every_step_of_a_short_phase(tmp_path: Path, filling: int) -> None:
    """Whatever else the file holds, however long it is."""
    sft = [{"step": n, "phase": "sft", "train/loss": 2.0, "x": "y" * filling} for n in range(1, 151)]
    grpo = [{"step": n, "phase": "grpo", "reward/mean": float(n)} for n in range(151, 163)]
    evaluated = [
        {"step": n, "phase": "grpo", "eval/a/greedy/avg@1": 0.5, "time/evaluate": 2.0} for n in range(151, 163)
    ]
    rows = [*sft, *(row for pair in zip(grpo, evaluated, strict=True) for row in pair)]
    make_run(tmp_path / "a", **{"metrics.jsonl": "".join(json.dumps(row) + "\n" for row in rows)})
    make_run(tmp_path / "b", **{"metrics.jsonl": "".join(json.dumps(row) + "\n" for row in sft)})
    cards = list_runs(tmp_path)
    spark, steps = cards["a"]["sparks"].get("reward/mean", []), [float(row["step"]) for row in grpo]
    assert spark == steps
    assert cards["a"]["phases"] == ["sft", "grpo"]
    assert len(cards["b"]["sparks"]["train/loss"]) > 10


def write_beat(folder: Path, ago: float, idle: float = 0.0) -> None:
    said = {"process": 1, "step": 2, "stage": "sample", "idle_s": idle, "time": time.time() - ago}
    (folder / "heartbeat.json").write_text(json.dumps(said))


def test_states(tmp_path: Path) -> None:
    """The lock is the truth on its own machine; elsewhere the heartbeat is."""
    endings = {"interrupted": "stopped", "failed": "failed", "hung": "hung", "finished": "done"}
    for event in endings:
        line = json.dumps({"event": event, "time": 1.0, "reason": "because"}) + "\n"
        make_run(tmp_path / event, **{"events.jsonl": line})
        resumed = line + json.dumps({"event": "resumed", "time": 2.0}) + "\n"
        os.utime(make_run(tmp_path / f"{event}-resumed", **{"events.jsonl": resumed}) / "metrics.jsonl", (1, 1))
        write_beat(tmp_path / f"{event}-resumed", ago=5.0)
    ages = {"beats": 5.0, "late": 300.0, "silent": 3_600.0, "ancient": 1e6}
    for name, ago in ages.items():
        make_run(tmp_path / name, **{"events.jsonl": ""})
        write_beat(tmp_path / name, ago)
    make_run(tmp_path / "killed", **{"events.jsonl": ""})
    make_run(tmp_path / "locked", **{"events.jsonl": ""})
    make_run(tmp_path / "frozen", **{"events.jsonl": ""})
    with lock_folder(tmp_path / "killed"):
        pass
    write_beat(tmp_path / "killed", ago=5.0)
    with lock_folder(tmp_path / "locked"), lock_folder(tmp_path / "frozen"):
        os.utime(tmp_path / "frozen" / ".lock", (time.time() - 900, time.time() - 900))
        write_beat(tmp_path / "frozen", ago=600.0)
        cards = list_runs(tmp_path)
    expected = {
        **endings,
        **{f"{event}-resumed": "live" for event in endings},
        **{"beats": "live", "late": "unknown", "silent": "hung", "ancient": "unknown"},
        **{"killed": "failed", "locked": "live", "frozen": "hung"},
    }
    assert {key: card["status"] for key, card in cards.items()} == expected
    assert cards["failed"]["reason"] == "because"
    assert "without a word" in cards["killed"]["reason"]


def test_folders_of_evaluations_and_of_older_versions(tmp_path: Path) -> None:
    figures = json.dumps({"maths": {"sampled": build_figures(0.5)}})
    (tmp_path / "evaluated" / "eval" / "step_000000").mkdir(parents=True)
    (tmp_path / "evaluated" / "eval" / "step_000000" / "summary.json").write_text(figures)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "metrics.jsonl").write_text('{"step": 4, "train/loss": 2.0, "time/step_s": 3.0}\n')
    cards = list_runs(tmp_path)
    assert (cards["evaluated"]["kind"], cards["evaluated"]["status"]) == ("evaluation", "done")
    assert cards["evaluated"]["accuracy"]["decoding"] == "sampled"
    assert (cards["old"]["step"], cards["old"]["figures"]["time/step"]) == (4, 3.0)


def test_two_hundred_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metrics are not read as a whole, and read again only once they changed."""
    row = {f"metric/{number}": number / 7 for number in range(60)}
    text = "".join(json.dumps({"step": step, "reward/mean": 0.5, **row}) + "\n" for step in range(1_200))
    for number in range(200):
        folder = make_run(tmp_path / "runs" / f"run-{number}")
        if number:
            (folder / "metrics.jsonl").unlink()
            os.link(tmp_path / "runs" / "run-0" / "metrics.jsonl", folder / "metrics.jsonl")
        else:
            (folder / "metrics.jsonl").write_text(text)
    read: list[int] = []

    def count_rows(path: Path, *most: int) -> list[dict[str, Any]]:
        rows = read_last_rows(path, *most)
        if path.name == "metrics.jsonl":
            read.append(len(rows))
        return rows

    monkeypatch.setattr("qed.viewer.cards.read_last_rows", count_rows)
    with serve_runs([tmp_path / "runs"], tmp_path / "cache") as url:
        for _ in range(2):
            assert len(ask_view(url, "runs").json["runs"]) == 200
        assert len(read) == 200
        assert max(read) < 20
        with (tmp_path / "runs" / "run-0" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 1200}\n')
        assert len(ask_view(url, "runs").json["runs"]) == 200
        assert len(read) == 400  # one file behind all 200 names
