"""What the pages of one run show: settings, events, logs, evaluations and metrics of folders as they are found."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from asking_views import Asked
from making_views import Plan, make_view
from run_folders import make_run, make_whole_run

from qed.report.estimates import compute_bounds
from qed.report.record import read_record
from qed.runs.run import read_json, read_lines
from qed.viewer import curves
from qed.viewer.params import Refused

KEY = "hf_" + "a" * 30  # has the form of a key, and is none


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two phases, and one with every figure of evaluations."""
    place = tmp_path_factory.mktemp("runs")
    make_view(place, Plan("first", steps=8))
    make_whole_run(place)
    return place


@pytest.fixture
def ask(runs: Path, tmp_path: Path) -> Asked:
    """The endpoints over these runs."""
    return Asked(runs, cache=tmp_path)


def test_a_run_shows_what_its_folder_says(ask: Asked, runs: Path) -> None:
    run = ask("run", run="first")
    assert [(phase["name"], phase["begin"], phase["last"]) for phase in run["phases"]] == [
        ("sft", 0, 4),
        ("grpo", 4, 8),
    ]
    assert [phase["label"] for phase in run["phases"]] == ["SFT", "GRPO"]
    assert run["steps"] == [5, 6, 7, 8]
    assert run["best_step"] == 8
    assert run["report"] is False
    assert run["events"][-1]["event"] == "finished"
    assert {log["name"] for attempt in run["attempts"] for log in attempt["logs"]} >= {"main.log"}
    settings = {each["key"]: each for each in run["settings"]}
    assert settings["sft.learner.lr"]["value"] == 0.002
    assert len({(each["step"], each["task"], each["decoding"]) for each in run["evaluations"]}) == len(
        run["evaluations"]
    )
    assert run["card"]["key"] == "first"


def test_phases_are_those_of_the_report(ask: Asked, runs: Path) -> None:
    for name in ("first", "whole"):
        ours = [(each["label"], each["begin"], each["planned"]) for each in ask("run", run=name)["phases"]]
        assert ours == [(each.label, each.begin, each.planned) for each in read_record(runs / name).phases]


def test_settings_events_and_logs_leave_without_secrets(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "secret")
    (folder / "settings.yaml").write_text(
        f"method: grpo\njudge: {{url: 'https://x?token={KEY}', api_key: shortbutsecret}}\nclip: .inf\n"
    )
    (folder / "command.txt").write_text(f"qed grpo --judge.key {KEY}\n")
    (folder / "logs/attempt_1/main.log").write_text(f"using {KEY}\n" * 3)
    (folder / "env.json").write_text(json.dumps({"HF_TOKEN": KEY, "loss": float("nan")}))
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "x", "deep": [{"note": KEY}]}) + "\n")
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    run, log = ask("run", run="secret"), ask("log", run="secret", attempt=1, name="main.log")
    assert "aaaa" not in json.dumps([run, log])
    assert "shortbutsecret" not in json.dumps(run)
    settings = {each["key"]: each["value"] for each in run["settings"]}
    assert settings["clip"] == ".inf"
    assert settings["judge.api_key"] == "REDACTED"


def test_damaged_files_hide_no_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "damaged")
    (folder / "settings.yaml").write_text("a: &a [1]\nb: {<<: *a\n- - : ][")
    (folder / "env.json").write_text('{"deep": ' + "[" * 100_000)
    (folder / "settings.origin.json").write_text("[1, 2]")
    (folder / "events.jsonl").write_text('{"event": "data"}\n[1]\n{"event": \n{"event": "finished"}\n{"event": "to')
    (folder / "logs/attempt_x").mkdir()
    (folder / "eval/step_000004/summary.json").write_text('{"sums": {"greedy": {"accuracy": "high"}, "x": 3}, "y": 1}')
    os.symlink("/etc/passwd", folder / "command.txt")
    os.mkfifo(folder / "logs/attempt_1/pipe.log")
    run = Asked(tmp_path, cache=tmp_path / "cache")("run", run="damaged")
    assert [event["event"] for event in run["events"]] == ["data", "finished"]
    assert (run["command"], run["settings"], run["environment"]) == ("", [], {})
    assert [log["name"] for log in run["attempts"][0]["logs"]] == []
    assert {each["step"] for each in run["evaluations"]} == {0, 8}


def test_aliases_of_aliases_are_no_tree_that_fills_the_memory(tmp_path: Path) -> None:
    lines = ["l0: &l0 [x, x]"] + [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" for n in range(1, 20)]
    folder = make_run(tmp_path, "bomb")
    (folder / "settings.yaml").write_text("\n".join(lines))
    assert len(json.dumps(Asked(tmp_path, cache=tmp_path / "c")("run", run="bomb"))) < 1_000_000


def test_metrics_come_by_column_with_null_for_what_json_lacks(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "mine")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "phase": "grpo", "train/loss": NaN, "late": 1e999, "big": 1' + "0" * 400 + "}\n")
        file.write('{"step": 10, "phase": "grpo", "train/lo\n')
        file.write('{"step": "11"}\n' + "[" * 60_000 + "\n")
        file.write('{"step": 12, "phase": "grpo", "late": 3}\n{"step": 13, "phase": "gr')
    metrics = Asked(tmp_path, cache=tmp_path / "cache")("metrics", run="mine")
    assert metrics["steps"] == [*range(1, 10), 12]
    assert metrics["damaged"] == 3
    assert metrics["phases"] == ["sft", "grpo"]
    assert metrics["phase"] == [0] * 4 + [1] * 6
    values = metrics["values"]
    assert values["time/step"] == [2.0] * 8 + [None] * 2  # written as time/step_s by an earlier version
    assert values["late"] == [None] * 9 + [3]
    assert values["train/loss"][-3:] == [0.125, None, None]
    assert "big" not in values
    series = metrics["evaluations"]["eval/sums/greedy"]
    assert [(step, value, n) for step, value, _, _, n in series] == [(0, 0.0, 8), (4, 0.25, 8), (8, 0.75, 8)]


def test_an_evaluation_whose_answers_are_gone_stays_in_the_curves(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "mine", outcomes={})
    row = {"step": 6, "eval/sums/greedy/avg@1": 0.5, "eval/sums/greedy/ci_lo": 0.4, "time/evaluate": 2.5}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    metrics = Asked(tmp_path, cache=tmp_path / "cache")("metrics", run="mine")
    assert metrics["evaluations"] == {"eval/sums/greedy": [[6, 0.5, 0.4, None, None]]}
    assert metrics["evaluating"] == 2.5
    assert max(metrics["steps"]) == 8


def test_of_many_rows_every_nth_comes_with_both_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "MAX_ROWS", 50)
    folder = make_run(tmp_path, "long")
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, 1_001):
            file.write(json.dumps({"step": step, "phase": "grpo", "loss": step / 2, "half": 1}) + "\n")
            if step % 100 == 0:
                file.write(json.dumps({"step": step, "eval/t/greedy/avg@1": 0.5}) + "\n")
    metrics = Asked(tmp_path, cache=tmp_path / "cache")("metrics", run="long")
    assert metrics["steps"] == [*range(1, 1_001, metrics["stride"]), 1_000]
    assert 25 <= len(metrics["steps"]) <= 51
    assert metrics["values"]["loss"] == [step / 2 for step in metrics["steps"]]
    assert len(metrics["evaluations"]["eval/t/greedy"]) == 10


def test_metrics_of_a_long_run_are_quick(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "long")
    line = {f"group/metric_{number}": 1 / (number + 3) for number in range(60)}
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps({"step": step, "phase": "grpo", **line}) + "\n" for step in range(1, 2_001))
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    begin = time.process_time()
    metrics = ask("metrics", run="long")
    assert time.process_time() - begin < 3  # 0.25 s on a free core
    assert len(metrics["values"]) == 60
    assert len(metrics["steps"]) == 2_000


def test_metrics_follow_their_file(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "live")
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    assert len(ask("metrics", run="live")["steps"]) == 8
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 9, "phase": "grpo"}\n')
    assert ask("metrics", run="live")["steps"][-1] == 9


def test_a_log_is_read_backwards_in_windows_of_whole_lines(tmp_path: Path) -> None:
    folder = make_run(tmp_path, "mine")
    text = "".join(f"line {number} of the log, é\n" for number in range(20_000))
    (folder / "logs/attempt_1/main.log").write_text(text)
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    parts: list[str] = []
    end: int | None = None
    while end != 0:
        window: dict[str, Any] = {} if end is None else {"end": end}
        log = ask("log", run="mine", attempt=1, name="main.log", **window)
        assert log["end"] - log["start"] <= 128 << 10
        assert log["bytes"] == len(text.encode())
        parts.insert(0, log["text"])
        end = log["start"]
    assert len(parts) > 3
    assert "".join(parts) == text


@pytest.mark.parametrize(
    "name", ["../../settings.yaml", "/etc/passwd", "..", "link.log", "pipe.log", "folder", "none.log", "a\\b"]
)
def test_nothing_but_regular_files_below_logs_is_a_log(tmp_path: Path, name: str) -> None:
    folder = make_run(tmp_path, "mine")
    logs = folder / "logs/attempt_1"
    os.symlink("/etc/passwd", logs / "link.log")
    os.mkfifo(logs / "pipe.log")
    (logs / "folder").mkdir()
    with pytest.raises(Refused):
        Asked(tmp_path, cache=tmp_path / "cache")("log", run="mine", attempt=1, name=name)


def test_evaluations_have_the_figures_of_their_summaries(ask: Asked, runs: Path) -> None:
    found = ask("evaluations", run="whole")["evaluations"]
    assert [each["step"] for each in found] == sorted(each["step"] for each in found)
    summary = read_json(runs / "whole/eval/step_000008/summary.json", {})
    last = next(each for each in found if (each["step"], each["task"], each["decoding"]) == (8, "maths", "sampled"))
    assert last["rows"] is True
    assert last["figures"] == {name: value for name, value in summary["maths"]["sampled"].items() if name != "by"}


def test_an_evaluation_has_bounds_subjects_and_votes(ask: Asked, runs: Path) -> None:
    reply = ask("evaluation", run="whole", step=4, task="maths", decoding="sampled")
    rows = [row for row in read_lines(runs / "whole/eval/step_000004/maths.jsonl") if row["decoding"] == "sampled"]
    expected = compute_bounds(rows)
    assert reply["bounds"] == {
        name: list(bounds.ends) if bounds.ends else None
        for name, bounds in expected.items()
        if not name.startswith("reasoning")
    }
    assert (reply["previous"], reply["next"]) == (0, 8)
    cells = {(cell["subject"], cell["level"]): cell for cell in reply["cross"]}
    assert len(cells) == 6
    own = [row["correct"] for row in rows if (row["subject"], row["level"]) == ("algebra", 1)]
    cell = cells["algebra", "1"]
    assert (cell["n"], cell["right"]) == (2, sum(own) / len(own))
    assert cell["lo"] <= cell["right"] <= cell["hi"]
    votes = reply["votes"]
    assert sum(each["problems"] for each in votes["problems"]) == 12
    assert sum(each["problems"] * each["right"] for each in votes["problems"]) == sum(row["correct"] for row in rows)
    assert set(votes["maj"]) == {"2", "4"}


def test_an_evaluation_of_which_answers_are_lost_has_no_intervals_of_the_others(tmp_path: Path) -> None:
    folder = make_whole_run(tmp_path)
    path = folder / "eval/step_000008/maths.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    greedy = [line for line in lines if json.loads(line)["decoding"] == "greedy"]
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    assert ask("evaluation", run="whole", step=8, task="maths", decoding="greedy")["lost"] is None
    for kept in (len(greedy) - 1, 5, 0):  # within the last problem, before it, and nothing at all
        path.write_text("".join(greedy[:kept]))
        reply = ask("evaluation", run="whole", step=8, task="maths", decoding="greedy")
        assert (reply["lost"], reply["figures"]["n"], reply["rows"]) == ({"stored": kept, "of": 12}, 12, True)
        assert (reply["bounds"], reply["cross"], reply["votes"]["problems"]) == ({}, [], [])
    path.write_text("".join(greedy))
    assert ask("evaluation", run="whole", step=8, task="maths", decoding="sampled")["lost"] == {"stored": 0, "of": 48}


def test_an_evaluation_without_answers_still_has_its_figures(tmp_path: Path) -> None:
    folder = make_whole_run(tmp_path)
    (folder / "eval/step_000008/maths.jsonl").unlink()
    ask = Asked(tmp_path, cache=tmp_path / "cache")
    reply = ask("evaluation", run="whole", step=8, task="maths", decoding="greedy")
    assert reply["figures"]["n"] == 12
    assert (reply["rows"], reply["bounds"], reply["cross"]) == (False, {}, [])
    with pytest.raises(Refused, match="no evaluation of other"):
        ask("evaluation", run="whole", step=8, task="other", decoding="greedy")
