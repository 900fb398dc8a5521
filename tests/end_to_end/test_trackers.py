"""Trackers: told all that a run records, each step once; and whatever happens to one, training does not notice.

The tracker of these tests writes down what it is told, or does what no tracker should.
"""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from cutting import ONLINE, STEPS, assert_same, cut, forked
from run_folders import make_whole_run

from qed.config.plugins import list_leaves
from qed.errors import DataError, UsageError
from qed.runs.run import Run, read_json, read_lines
from qed.trackers import process, start
from qed.trackers.follow import SAMPLE, GrowingLines, RunFollower, list_figures

RECORDER = '''
"""Writes down what it is told."""
import json
import os
import time

class Recorder:
    where = "a file"

    def __init__(self, run):
        self.file = (run.home / "told.jsonl").open("w")
        about = {"id": run.id, "name": run.name, "project": run.project, "group": run.group, "tags": list(run.tags)}
        self.tell("make", 0, {**about, "method": run.config["method"], "command": open("/proc/self/cmdline").read()})

    def tell(self, kind, step, content):
        self.file.write(json.dumps([kind, step, content]) + "\\n")
        self.file.flush()

    def log_metrics(self, step, values):
        self.tell("metrics", step, values)

    def log_evaluation(self, step, table):
        self.tell("evaluation", step, table)

    def log_rollouts(self, step, table):
        self.tell("rollouts", step, table)

    def log_alarm(self, step, name, text, is_new):
        self.tell("alarm", step, [name, text, is_new])

    def flush(self):
        self.tell("flush", 0, os.getpid())

    def close(self, ending, report):
        self.tell("close", 0, [ending, str(report or "")])

make = Recorder
'''
# What a tracker may do instead, and what training says of it.
MISHAPS = {
    "it hangs from the beginning": ("def make(run):\n    import time; time.sleep(1000)\n", "had not sent everything"),
    "it hangs in a step": (
        RECORDER.replace('self.tell("metrics", step, values)', "time.sleep(1000)"),
        "had not sent everything",
    ),
    "it hangs at the end": (
        RECORDER.replace('self.tell("close"', 'time.sleep(1000); self.tell("close"'),
        "had not sent everything",
    ),
    "it dies": (RECORDER.replace('self.tell("metrics", step, values)', "os._exit(3)"), "ended with code 3"),
    "it dies at the end": (
        RECORDER.replace('self.tell("close"', 'os._exit(3); self.tell("close"'),
        "ended with code 3",
    ),
    "the network refuses": (
        "def make(run):\n    raise ConnectionRefusedError('no network, key sk-proj-AbCdEfGhIjKlMnOpQrStUvWx')\n",
        "ConnectionRefusedError: no network, key REDACTED",
    ),
}
GRPO = ("grpo", *ONLINE)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def tracker(tmp_path: Path) -> Path:
    """The file of the tracker."""
    file = tmp_path / "recorder.py"
    file.write_text(RECORDER)
    return file


def told(run: Path) -> list[Any]:
    """What the tracker of a run was told in its last attempt."""
    return read_told(run / "trackers" / "recorder" / "told.jsonl")


def read_told(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def rows_of(run: Path) -> list[Any]:
    """The metrics of a run, as a tracker is told them."""
    return [[row.pop("step"), row] for row in read_lines(run / "metrics.jsonl")]


def test_it_is_told_all_that_the_run_records(
    qed: Callable[..., Any], command: Callable[..., list[Any]], tracker: Path, tmp_path: Path
) -> None:
    run = tmp_path / "mine"
    options = ["--run.project", "reasoning", "--run.tags", "a,b", "--run.group", "g"]
    done = qed(*command(*GRPO), "--out", run, "--run.trackers", tracker, *options)
    assert done.code == 0, done.err
    assert "a file" in done.out
    heard = told(run)
    about = {"name": "mine", "project": "reasoning", "group": "g", "tags": ["a", "b"], "method": "grpo"}
    assert heard[0][2].items() >= about.items()
    assert [[step, content] for kind, step, content in heard if kind == "metrics"] == rows_of(run)
    tables = {step: content for kind, step, content in heard if kind == "evaluation"}
    assert sorted(tables) == [0, STEPS]
    accuracy = next(row for row in tables[STEPS] if row["measure"] == "accuracy")
    assert accuracy["low"] <= accuracy["value"] <= accuracy["high"]
    samples = {step: content for kind, step, content in heard if kind == "rollouts"}
    assert sorted(samples) == list(range(1, STEPS + 1))
    assert all(len(sample) == 20 and {"text", "reward", "correct"} <= set(sample[0]) for sample in samples.values())
    assert heard[-1] == ["close", 0, ["finished", str((run / "report.html").resolve())]]
    assert read_json(run / "trackers" / "recorder" / "state.json", {})["complete"]
    # Other commands start no tracker, so its code needs no permission there, and need not even be there.
    tracker.unlink()
    for words in (("evaluate", "--model", run, "--greedy", "--limit", 1, "--out", tmp_path / "e"), ("export", run)):
        done = qed(*words, *(["--out", tmp_path / "x"] if words[0] == "export" else []))
        assert done.code == 0, done.err
    shown = qed("debug-generations", run, "--problems", 1, "--answers", 1, "--json")
    assert shown.code == 0, shown.err
    assert len(json.loads(shown.out)["answers"]) == 1


def test_a_resumed_run_has_each_step_once_with_the_values_of_the_last_attempt(
    qed: Callable[..., Any], command: Callable[..., list[Any]], tracker: Path, tmp_path: Path
) -> None:
    arguments = [*command(*GRPO), "--run.trackers", tracker]
    assert qed(*arguments, "--out", tmp_path / "first").code == 0
    before = {step: row for step, row in rows_of(tmp_path / "first") if "train/loss" in row}
    run = cut(tmp_path / "first", 2, tmp_path / "again")
    change = ["--lr", 0.01, "--allow-change", "learner.lr", "--run.project", "other", "--resume", "--out", run]
    done = qed(*arguments, *change)
    assert done.code == 0, done.err
    heard = [[step, content] for kind, step, content in told(run) if kind == "metrics"]
    assert heard == rows_of(run)
    steps = [step for step, row in heard if "train/loss" in row]
    assert steps == list(range(1, STEPS + 1))
    after = {step: row["optim/lr"] for step, row in heard if "train/loss" in row}
    assert [after[step] == before[step]["optim/lr"] for step in steps] == [True, True, False, False]
    first, again = (told(folder)[0][2] for folder in (tmp_path / "first", run))
    assert again["id"] == first["id"]
    assert (first["project"], again["project"]) == ("", "other")


@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_mishap_does_not_touch_training(
    qed: Callable[..., Any],
    command: Callable[..., list[Any]],
    uncut: Callable[[list[Any]], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    mishap: str,
) -> None:
    code, words = MISHAPS[mishap]
    if "hangs" in mishap:
        monkeypatch.setattr(start, "LAST_SECONDS", 1.5)
    (tmp_path / "bad.py").write_text(code)
    run = tmp_path / "run"
    done = qed(*command(*GRPO), "--out", run, "--run.trackers", tmp_path / "bad.py")
    assert done.code == 0
    events = [row for row in read_lines(run / "events.jsonl") if row["event"] == "tracker_failed"]
    assert [row["tracker"] for row in events] == [str(tmp_path / "bad.py")]
    assert words in events[0]["reason"]
    said = " ".join(done.out.split())
    assert words in said
    assert f"`qed track {run} --to {tmp_path / 'bad.py'}`" in said
    (run / "events.jsonl").write_text(
        "".join(line for line in (run / "events.jsonl").open() if "tracker_failed" not in line)
    )
    assert_same(run, uncut(command(*GRPO)))


def test_training_that_is_killed_ends_its_tracker(
    command: Callable[..., list[Any]], tracker: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    arguments = [*command(*GRPO), "--out", run, "--run.trackers", tracker]
    code, _ = forked(arguments, tmp_path / "log", "save:kill:6")
    assert code == -9
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and (heard := told(run))[-1:] != [["close", 0, ["killed", ""]]]:
        time.sleep(0.1)
    assert heard[-1] == ["close", 0, ["killed", ""]]
    assert [[step, content] for kind, step, content in heard if kind == "metrics"] == rows_of(run)
    number = next(content for kind, _, content in heard if kind == "flush")
    while time.monotonic() < deadline and Path(f"/proc/{number}").exists():
        time.sleep(0.1)
    assert not Path(f"/proc/{number}").exists()


def test_no_key_is_in_a_file_or_a_command_line(
    qed: Callable[..., Any],
    command: Callable[..., list[Any]],
    tracker: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    key = "0123456789abcdef0123456789abcdef01234567"
    monkeypatch.setenv("WANDB_API_KEY", key)
    run = tmp_path / "run"
    failing = tmp_path / "failing.py"
    failing.write_text(
        "import os, sys\ndef make(run):\n    key = os.environ['WANDB_API_KEY']\n    print(key, file=sys.stderr)\n"
        "    raise ValueError(f'the server refuses {key}')\n"
    )
    done = qed(*command("sft", "--learner.batch_size", 10), "--out", run, "--run.trackers", f"{tracker},{failing}")
    assert done.code == 0
    assert "qed.trackers.process" in told(run)[0][2]["command"]
    assert "the server refuses REDACTED" in read_json(run / "trackers" / "failing" / "state.json", {})["error"]
    for path in run.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path
    assert key not in done.out + done.err


def test_a_missing_library_is_told_before_the_first_step(
    qed: Callable[..., Any], command: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(start, "importlib", nothing)
    for more in ([], ["--dry-run"]):
        done = qed(*command(*GRPO), "--out", tmp_path / "run", "--run.trackers", "wandb", *more)
        assert done.code == 2
        assert "pip install 'qed[wandb]'" in done.err
    assert not (tmp_path / "run").exists()


def test_every_tracker_has_an_extra_of_its_name() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(list_leaves("trackers")) == {"tensorboard", "trackio", "wandb"} <= set(extras)


def test_a_mere_folder_of_its_name_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B leaves a folder `wandb` in the working directory."""
    folder = SimpleNamespace(origin=None)
    monkeypatch.setattr(start, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: folder)))
    with pytest.raises(UsageError, match="not installed"):
        start.require_installed(["wandb"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--run.trackers", "wanb"], "Did you mean 'wandb'?"),
        (["--run.trackers", "wandb,wandb"], "names a tracker twice"),
        (["--report-to", "wandb"], "'--run.trackers'"),
        (["--trainer.logger", "wandb"], "'--run.trackers'"),
        (["--trainer.project_name", "x"], "'--run.project'"),
        (["--wandb-project", "x"], "'--run.project'"),
        (["--trainer.experiment_name", "x"], "a run is named by its folder, run.out"),
    ],
)
def test_a_name_that_is_not_quite_right_gets_a_hint(qed: Callable[..., Any], arguments: list[str], words: str) -> None:
    done = qed("grpo", *arguments)
    assert done.code == 2
    assert words in done.err


def test_a_run_can_be_shown_afterwards_again_and_again(qed: Callable[..., Any], tracker: Path, tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    (run / "settings.yaml").write_text("method: grpo\nrun: {project: p, tags: [x]}\n")
    assert qed("track", run, "--to", tracker).out == "a file\n"
    first = told(run)
    assert first[0][2]["tags"] == ["x"]
    assert qed("track", run, "--to", tracker, "--project", "q", "--name", "better").code == 0
    again = told(run)
    assert [line for line in again[1:] if line[0] != "flush"] == [line for line in first[1:] if line[0] != "flush"]
    assert (again[0][2]["id"], again[0][2]["project"], again[0][2]["name"]) == (first[0][2]["id"], "q", "better")
    with process._lock_home(process.find_home(run, str(tracker)), 0.0):
        refused = qed("track", run, "--to", tracker)
    assert refused.code == 2
    assert "Another process is showing this run" in refused.err
    assert told(run) == again
    with (run / "metrics.jsonl").open("a") as file:
        file.write("{broken\n")
    damaged = qed("track", run, "--to", tracker)
    assert (damaged.code, "cannot be read" in damaged.err) == (3, True)
    assert told(run) == again  # what was shown is not taken away for it


def test_a_disk_without_locks_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refused)
    with process._lock_home(tmp_path, 0.0):
        pass


def test_lines_that_are_half_written_wait(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = GrowingLines(path)
    assert lines.read() == []
    text = "".join(json.dumps({"step": step, "text": "ä\u2028"}, ensure_ascii=False) + "\n" for step in range(3))
    seen: list[Any] = []
    for byte in text.encode():
        with path.open("ab") as file:
            file.write(bytes([byte]))
        seen += lines.read()
    assert [row["step"] for row in seen] == [0, 1, 2]
    path.write_bytes(path.read_bytes() + b"{broken\n")
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 4, cannot"):
        lines.read()


def test_an_alarm_of_a_step_that_is_repeated_is_told_once(tmp_path: Path) -> None:
    run = Run(tmp_path)
    follower = RunFollower(tmp_path)
    for step in (1, 2):
        run.metrics({"step": step})
    for step in (2, 3):  # the attempt before was killed after step 3, and its step 3 is to be repeated
        run.event("alarm", name="no_signal", step=step, phase="grpo", told="…")
    run.event("resumed", attempt=2, changed=[])
    assert [(item.kind, item.step) for item in follower.read()] == [("metrics", 1), ("metrics", 2), ("alarm", 2)]
    run.metrics({"step": 3})
    run.event("alarm", name="no_signal", step=3, phase="grpo", told="…")
    assert [(item.kind, item.step) for item in follower.read()] == [("metrics", 3), ("alarm", 3)]
    assert follower.ending == "killed"
    run.event("finished", step=3)
    assert list(follower.read()) == []
    assert follower.ending == "finished"


def test_a_sample_is_spread_over_the_step(tmp_path: Path) -> None:
    run = make_whole_run(tmp_path)
    rows = [{"group_id": str(number // 8), "text": "x" * 9000, "reward": 0.0} for number in range(128)]
    (run / "rollouts").mkdir()
    packed = zstandard.ZstdCompressor().compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    (run / "rollouts" / "step_000005.jsonl.zst").write_bytes(packed)
    (sample,) = (item.content for item in RunFollower(run).read() if item.kind == "rollouts")
    assert len(sample) == SAMPLE
    assert len({row["group_id"] for row in sample}) == 16
    assert all(len(row["text"]) == 8001 for row in sample)
    figures = list(list_figures(read_json(run / "eval" / "step_000008" / "summary.json", {})))
    measures = {row["measure"] for row in figures}
    assert {"accuracy", "pass@4", "maj@4", "format"} <= measures
    assert all(row["low"] <= row["value"] <= row["high"] for row in figures if row["low"] is not None)
