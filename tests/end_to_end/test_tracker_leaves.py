"""The trackers of the shelf, each read back by its own reader; W&B from a small server on this machine."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cutting import ONLINE, STEPS, cut
from wandb_server import WandbServer, serve

from qed.errors import UsageError
from qed.runs.run import Run, read_json, read_lines
from qed.trackers.process import track_run
from qed.trackers.start import require_installed

KEY = "0123456789abcdef0123456789abcdef01234567"
ALARM = {"name": "made_up", "step": 2, "phase": "grpo", "told": "No answer could be read: 1 < 2 | `*x*`."}


def needs(library: str) -> pytest.MarkDecorator:
    """Skip a test where a library is not installed; it is not imported here."""
    try:
        require_installed([library])
    except UsageError as error:
        return pytest.mark.skip(str(error))
    return pytest.mark.trackers


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, uncut: Callable[[list[Any]], Path], data: Any) -> Path:
    """A run of four steps without a tracker, with an alarm."""
    arguments = ["grpo", "--tasks", data[0], *ARGUMENTS]
    run = cut(uncut(arguments), STEPS, tmp_path_factory.mktemp("runs") / "mine")
    Run(run).event("alarm", **ALARM)
    return run


ARGUMENTS = ["--model", "new:tiny", "--steps", STEPS, "--run.threads", 1, "--evaluation.problems", 4, *ONLINE]
ARGUMENTS += ["--sampling.max_tokens", 6, "--run.on_no_signal", "warn", "--run.preflight", "false"]


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    copy = cut(finished, STEPS, tmp_path / "mine")
    (copy / "report.html").write_text("<p>The report</p>")
    return copy


def rewind(run: Path, step: int) -> None:
    """Make the run one that was resumed from a step and has other values since: what a tracker has seen is old."""
    rows = read_lines(run / "metrics.jsonl")
    for row in rows:
        if row["step"] > step and "train/loss" in row:
            row["train/loss"] += 1.0
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def show(run: Path, tracker: str, **given: Any) -> None:
    """Show a run that is over."""
    assert track_run(run, tracker, given, lambda seconds: True).complete


@needs("tensorboard")
def test_tensorboard(run: Path) -> None:
    events = importlib.import_module("tensorboard.backend.event_processing.event_accumulator")
    show(run, "tensorboard")
    home = run / "trackers" / "tensorboard"
    opened = events.EventAccumulator(str(home), size_guidance={"scalars": 0})
    opened.Reload()  # as an open TensorBoard, which has seen the attempt before
    rewind(run, 2)
    time.sleep(1.1)  # a file is named after its second, and its reader looks for names after the last one
    show(run, "tensorboard", tags=["x"])
    assert sum(path.stat().st_size > 0 for path in home.glob("events.out.tfevents.*")) == 1
    read = events.EventAccumulator(str(home), size_guidance={"tensors": 0, "scalars": 0})
    opened.Reload()
    read.Reload()
    rows = read_lines(run / "metrics.jsonl")
    for name in {name for row in rows for name, value in row.items() if isinstance(value, float)}:
        expected = [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in rows if name in row]
        for reader in (opened, read):
            assert [(event.step, event.value) for event in reader.Scalars(name)] == expected, name

    def texts(tag: str) -> list[tuple[int, str]]:
        return [(event.step, event.tensor_proto.string_val[0].decode()) for event in read.Tensors(tag)]

    assert [step for step, _ in texts("rollouts")] == list(range(1, STEPS + 1))
    assert [step for step, _ in texts("evaluation")] == [0, STEPS]
    assert "accuracy" in texts("evaluation")[0][1]
    assert "learner.steps" in texts("settings")[0][1]
    assert texts("alarms/made_up") == [(2, ALARM["told"])]
    assert "report.html" in texts("report")[0][1]
    assert "_hparams_/session_start_info" in read.summary_metadata


@needs("trackio")
def test_trackio(run: Path) -> None:
    show_apart(run, "trackio")
    rewind(run, 2)
    show_apart(run, "trackio")
    code = (
        "import json\nfrom trackio.sqlite_storage import SQLiteStorage as S\nimport trackio\n"
        "(run,) = trackio.Api().runs('qed')\n"
        "print(json.dumps([run.name, run.config, run.alerts(), S.get_logs('qed', run.name)], default=str))"
    )
    environment = {**os.environ, "TRACKIO_DIR": str(run / "trackers" / "trackio")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name, config, alerts, logs = json.loads(done.stdout.splitlines()[-1])
    assert name == "mine"
    assert config["learner.steps"] == STEPS
    assert ALARM["told"] in [alert["text"] for alert in alerts]
    losses = [(row["step"], row["train/loss"]) for row in read_lines(run / "metrics.jsonl") if "train/loss" in row]
    assert [(log["step"], log["train/loss"]) for log in logs if "train/loss" in log] == losses
    assert sorted(log["step"] for log in logs if "rollouts" in log) == list(range(1, STEPS + 1))
    assert sorted(log["step"] for log in logs if "evaluation" in log) == [0, STEPS]
    assert list((run / "trackers" / "trackio" / "artifacts").rglob("*"))


def show_apart(run: Path, tracker: str, **environment: str) -> str:
    """Show a run by the command line in a process of its own: these libraries keep their settings in globals."""
    command = [sys.executable, "-m", "qed", "track", str(run), "--to", tracker]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def set_home(folder: Path, server: WandbServer | None = None) -> dict[str, str]:
    """The environment of somebody who has a key, and nothing else of W&B's."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    where = {"WANDB_BASE_URL": server.address} if server else {"WANDB_MODE": "offline"}
    return {"HOME": str(home), "WANDB_API_KEY": KEY, "WANDB_ERROR_REPORTING": "false", **where}


def assert_shown(server: WandbServer, run: Path) -> None:
    """The server holds one run, with every step once, in the values of the run's folder, and all that belongs to it."""
    state = read_json(run / "trackers" / "wandb" / "state.json", {})
    assert list(server.history) == [state["id"]]
    lines = server.history[state["id"]]
    assert [line["_step"] for line in lines] == list(range(STEPS + 1))
    merged: dict[int, dict[str, Any]] = {}
    for row in read_lines(run / "metrics.jsonl"):
        merged.setdefault(row["step"], {}).update(row)
    for line in lines:
        expected = {name: value for name, value in merged[line["_step"]].items() if name != "step"}
        assert {name: line[name] for name in expected} == pytest.approx(expected)
    about = server.runs[state["id"]]
    assert (about["project"], about["displayName"]) == ("qed", "mine")
    assert json.loads(about["config"])["learner"]["value"]["steps"] == STEPS
    tables = {name.split("/")[0]: json.loads(text) for name, text in server.files.items() if "table.json" in name}
    rollouts = json.loads(server.files["rollouts/000001-000010.table.json"])
    column = rollouts["columns"].index("step")
    assert {row[column] for row in rollouts["data"]} == set(range(1, STEPS + 1))
    evaluation = json.loads(server.files["evaluation.table.json"])
    assert {"step", "task", "measure", "value", "low", "high"} <= set(evaluation["columns"])
    assert {row[0] for row in evaluation["data"]} == {0, STEPS}
    assert "alarms.table.json" in tables
    assert server.files["report.html"] == (run / "report.html").read_bytes()
    assert server.exits[state["id"]] == 0
    assert server.unknown == []


def assert_no_key(*folders: Path) -> None:
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        assert KEY.encode() not in path.read_bytes(), path


@needs("wandb")
def test_wandb_offline_is_one_run_that_can_be_synced(run: Path, tmp_path: Path) -> None:
    environment = set_home(tmp_path)
    show_apart(run, "wandb", **environment)
    rewind(run, 2)
    told = show_apart(run, "wandb", **environment)
    (folder,) = (run / "trackers" / "wandb" / "wandb").glob("offline-run-*")
    assert told == f"wandb sync {folder}"
    with serve() as server:
        command = [str(Path(sys.executable).with_name("wandb")), "sync", str(folder)]
        online = {**os.environ, **set_home(tmp_path, server)}
        for _ in range(2):  # a second time, as after another attempt: the same run, and no step twice
            done = subprocess.run(
                command, cwd=tmp_path, env=online, capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, done.stderr
            (folder / f"run-{folder.name.rpartition('-')[2]}.wandb.synced").unlink(missing_ok=True)
    assert_shown(server, run)
    assert_no_key(run, tmp_path / "home")


@needs("wandb")
def test_wandb_online_begins_anew_under_the_same_id(run: Path, tmp_path: Path) -> None:
    with serve() as server:
        environment = set_home(tmp_path, server)
        show_apart(run, "wandb", **environment)
        rewind(run, 2)
        address = show_apart(run, "wandb", **environment)
    assert address == f"{server.address}/me/qed/runs/{read_json(run / 'trackers' / 'wandb' / 'state.json', {})['id']}"
    assert_shown(server, run)
    assert_no_key(run, tmp_path / "home")
    assert not any(path.is_file() for path in (tmp_path / "home").rglob("*"))


@needs("wandb")
def test_wandb_without_a_network_does_not_hold_training(
    qed: Callable[..., Any],
    command: Callable[..., list[Any]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Its service process ends with the tracker, too."""
    for name, value in set_home(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # refuses
    monkeypatch.setattr("qed.trackers.start.LAST_SECONDS", 3.0)
    run = tmp_path / "run"
    done = qed(*command("grpo", *ONLINE), "--out", run, "--run.trackers", "wandb")
    assert done.code == 0, done.err
    assert f"`qed track {run} --to wandb`" in " ".join(done.out.split())
    deadline = time.monotonic() + 30
    while (left := list_services(run)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []
    assert_no_key(run, tmp_path / "home")


def list_services(run: Path) -> list[str]:
    """The processes that write in the run's folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            files = [os.readlink(file) for file in (path / "fd").iterdir()]
        except OSError:
            continue
        found += [file for file in files if file.startswith(f"{run}/trackers") and int(path.name) != os.getpid()]
    return found
