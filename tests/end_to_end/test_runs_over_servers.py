"""A run over servers is the run that samples in its own process, whatever becomes of the servers, and leaves nothing.

By default one run over one server; `pytest -m faults` kills servers and trainers.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cutting import ONLINE, STEPS, TIMES, by_chance, forked, write_data
from ranks import run_ranks
from safetensors.torch import load_file
from waiting import wait_until

from qed.loops.servers import BASE, RunServers
from qed.models.weights_folder import MARKER
from qed.rollout.weights_folder import WeightsFolder
from qed.runs import manifest
from qed.runs.run import read_lines
from qed.sampling.server.native import NativeServer
from qed.serving.processes import ServerSpec, copy_environment, run_servers

MARK = "QED_TEST_OF_SERVERS"  # an environment variable that every process of a run inherits
SETTINGS = [
    "--model",
    "new:tiny",
    "--seed",
    3,
    "--run.save_every",
    1,
    "--run.threads",
    1,
    "--steps",
    STEPS,
    "--lr",
    1e-3,
]
SETTINGS += ["--evaluation.problems", 2, "--sampling.max_tokens", 6, "--run.on_no_signal", "warn", *ONLINE]
KILLS = 4  # of a run
# What a run over servers tells besides.
OF_SERVERS = ("sampler/", "rollout/", "sampler_check/")


@pytest.fixture(autouse=True)
def _graded_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qed.rollout.collector.grade", by_chance)


@pytest.fixture(scope="module")
def problems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("problems"))[0]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the weights travel."""
    return tmp_path / "weights"


@pytest.fixture
def command(problems: Path, place: Path) -> Callable[..., list[object]]:
    return lambda *more: ["grpo", "--tasks", problems, *SETTINGS, "--sampling.weights_folder", place, *more]


@pytest.fixture
def _marked(monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path) -> Iterator[None]:
    """Fails a test that leaves a process or weights behind."""
    monkeypatch.setenv(MARK, str(tmp_path))
    yield
    wait_until(lambda: not list_left(tmp_path) and not any(place.glob("*")))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[RunServers]:
    """The servers of the runs of this process."""
    made: list[RunServers] = []

    def make(*given: Any) -> RunServers:
        made.append(RunServers(*given))
        return made[-1]

    monkeypatch.setattr("qed.loops.setup.RunServers", make)
    return made


def list_left(mark: Path) -> list[int]:
    """The processes that a run of this test has started, and that live."""
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stopped = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not stopped and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def read_rows(run: Path) -> list[dict[str, Any]]:
    rows = read_lines(run / "metrics.jsonl")
    return [{name: value for name, value in row.items() if not name.startswith((*TIMES, *OF_SERVERS))} for row in rows]


def read_answers(run: Path) -> dict[str, Any]:
    found = sorted([*run.glob("rollouts/*.jsonl.zst"), *run.glob("eval/*/*.jsonl")])
    return {str(path.relative_to(run)): read_lines(path) for path in found}


def assert_equal_runs(one: Path, other: Path) -> None:
    """Answers, metrics and weights are the same, bit by bit."""
    assert read_answers(one) == read_answers(other)
    assert read_rows(one) == read_rows(other)
    assert len(read_answers(one)) >= 2
    files = [
        json.loads((manifest.list_checkpoints(run)[STEPS] / manifest.NAME).read_text())["files"] for run in (one, other)
    ]
    weights = [{name: what for name, what in each.items() if name.endswith(".safetensors")} for each in files]
    assert weights[0] == weights[1]
    assert weights[0]


@pytest.fixture(scope="module")
def alone(problems: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run in one process."""
    out = tmp_path_factory.mktemp("alone") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("qed.rollout.collector.grade", by_chance)
        code, said = forked(["grpo", "--tasks", problems, *SETTINGS, "--out", out], out.with_name("said"))
    assert code == 0, said
    return out


@pytest.mark.usefixtures("_marked")
def test_one_server_gives_the_bits_of_the_process(
    qed: Callable[..., Any], command: Callable[..., list[object]], alone: Path, tmp_path: Path, place: Path
) -> None:
    out = tmp_path / "run"
    done = qed(*command("--sampling.servers", 1, "--out", out))
    assert done.code == 0, done.err
    assert_equal_runs(alone, out)
    rows = [row for row in read_lines(out / "metrics.jsonl") if "train/rows" in row]
    for step, row in enumerate(rows, 1):
        assert row["rollout/version_min"] == row["rollout/version_max"] == step - 1
        assert row["rollout/staleness_mean"] == row["sampler/asked_again"] == row["sampler/servers_lost"] == 0
        assert 0 <= row["sampler/logp_gap_mean"] <= row["sampler/logp_gap_p99"] <= row["sampler/logp_gap_max"] < 1e-4
        assert row["sampler/update_seconds"] > 0
    assert "servers" in [row["event"] for row in read_lines(out / "events.jsonl")]
    assert any((out / "logs" / "servers").iterdir())
    assert "url: []" in (out / "settings.yaml").read_text()  # what the user gave


@pytest.mark.faults
@pytest.mark.usefixtures("_marked")
def test_two_servers_differ_by_rounding(
    qed: Callable[..., Any], command: Callable[..., list[object]], alone: Path, tmp_path: Path
) -> None:
    done = qed(*command("--sampling.servers", 2, "--out", tmp_path / "run"))
    assert done.code == 0, done.err
    first = [read_lines(run / "rollouts" / "step_000001.jsonl.zst") for run in (alone, tmp_path / "run")]
    assert [row["tokens"] for row in first[0]] == [row["tokens"] for row in first[1]]
    ends = [
        load_file(manifest.list_checkpoints(run)[STEPS] / "hf" / "model.safetensors")
        for run in (alone, tmp_path / "run")
    ]
    assert all((one - ends[1][name]).abs().max() < 1e-2 for name, one in ends[0].items())


@pytest.mark.faults
@pytest.mark.parametrize(("count", "seed"), [(1, 0), (1, 1), (2, 2), (2, 3), (2, 4)])
@pytest.mark.usefixtures("_marked")
def test_killed_servers_lose_no_answer(
    qed: Callable[..., Any],
    command: Callable[..., list[object]],
    started: list[RunServers],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    count: int,
    seed: int,
) -> None:
    """The same number of servers gives the same bits, whichever of them sample: two to four kills a run."""
    options = ("--sampling.servers", count)
    done = qed(*command(*options, "--out", tmp_path / "whole"))
    assert done.code == 0, done.err
    calls, chance, kills = itertools.count(), random.Random(seed), []
    complete = NativeServer.complete

    def kill() -> None:
        process = started[-1].processes[chance.randrange(count)]
        if process.alive:
            kills.append(process.group)
            os.killpg(process.group, signal.SIGKILL)

    def complete_or_die(self: NativeServer, *given: Any) -> Any:
        if next(calls) % 5 == 2 and len(kills) < KILLS:  # a server that dies more often in a row is given up
            threading.Timer(chance.choice([0.0, 0.01, 0.1]), kill).start()
        return complete(self, *given)

    monkeypatch.setattr(NativeServer, "complete", complete_or_die)
    done = qed(*command(*options, "--out", tmp_path / "killed"))
    assert done.code == 0, done.err
    assert_equal_runs(tmp_path / "whole", tmp_path / "killed")
    events = [row["event"] for row in read_lines(tmp_path / "killed" / "events.jsonl")]
    assert events.count("server_restarted") >= len(kills) - 1  # the last one may die after its last answer
    assert len(kills) >= 2


@pytest.mark.faults
@pytest.mark.parametrize(
    "fault", ["update:kill:3", "weights:kill:2", "rollout:kill:4", "rollout:sigterm:4", "update:error:2"]
)
@pytest.mark.usefixtures("_marked")
def test_a_trainer_that_ends_takes_its_servers_along(
    qed: Callable[..., Any], command: Callable[..., list[object]], alone: Path, tmp_path: Path, place: Path, fault: str
) -> None:
    """However it ends; and the resumed run is the one that was never cut."""
    out = tmp_path / "run"
    given = command("--sampling.servers", 1, "--out", out)
    code, said = forked(given, tmp_path / "said", fault)
    assert code != 0, said
    wait_until(lambda: not list_left(tmp_path) and not any(place.glob("*")))
    more = ["--resume"] if manifest.list_checkpoints(out) else ["--overwrite"]
    done = qed(*given, *more)
    assert done.code == 0, done.err
    assert_equal_runs(alone, out)


@pytest.mark.faults
@pytest.mark.usefixtures("_marked")
def test_weights_that_a_server_refuses_end_the_run(
    qed: Callable[..., Any],
    command: Callable[..., list[object]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """The folder of step 2 is cut short behind the run's back."""
    write = WeightsFolder.write
    resumed: list[str] = []
    resume = NativeServer._resume

    def write_and_damage(self: WeightsFolder, name: str, *given: Any) -> Path:
        path = write(self, name, *given)
        if name == "step_000002":
            file = path / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-1000])
            assert (path / MARKER).is_file()
        return path

    def note_and_resume(self: NativeServer) -> None:
        resume(self)
        resumed.append(self.url)

    monkeypatch.setattr(WeightsFolder, "write", write_and_damage)
    monkeypatch.setattr(NativeServer, "_resume", note_and_resume)
    done = qed(*command("--sampling.servers", 1, "--out", tmp_path / "run"))
    assert done.code == 1
    assert "has not taken the weights of step 2" in done.err
    assert resumed[-1].startswith("http://127.0.0.1:")
    assert len(resumed) == 3


@pytest.mark.faults
@pytest.mark.usefixtures("_marked")
def test_adapters_travel_alone(
    qed: Callable[..., Any], command: Callable[..., list[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = ("--model.lora_rank", 4)
    sizes: list[int] = []
    write = WeightsFolder.write

    def measure(self: WeightsFolder, name: str, *given: Any) -> Path:
        path = write(self, name, *given)
        if name != BASE:
            sizes.append(sum(file.stat().st_size for file in path.glob("*.safetensors")))
            assert not (path / "config.json").exists()
        return path

    monkeypatch.setattr(WeightsFolder, "write", measure)
    runs = tmp_path / "alone", tmp_path / "served"
    for run, more in zip(runs, ((), ("--sampling.servers", 1)), strict=True):
        done = qed(*command(*lora, *more, "--out", run))
        assert done.code == 0, done.err
    assert len(sizes) == STEPS + 1
    whole = manifest.list_checkpoints(runs[0])[STEPS] / "hf" / "model.safetensors"
    assert max(sizes) < whole.stat().st_size / 4
    assert_equal_runs(*runs)


@pytest.mark.faults
@pytest.mark.parametrize("shard", ["none", "full"])
@pytest.mark.usefixtures("_marked")
def test_ranks_sample_on_the_same_servers(
    command: Callable[..., list[object]], alone: Path, tmp_path: Path, shard: str
) -> None:
    """The first rank starts them and gives them weights, for which the others take part in gathering."""
    out = run_ranks(command("--sampling.servers", 1, "--parallel.shard", shard), 2, tmp_path / "run")
    rows = [[row for row in read_rows(run) if "train/rows" in row] for run in (alone, out)]
    assert [row["reward/mean"] for row in rows[0]] == pytest.approx([row["reward/mean"] for row in rows[1]], abs=0.2)
    measured = [row for row in read_lines(out / "metrics.jsonl") if "rollout/version_max" in row]
    assert [row["rollout/version_max"] for row in measured] == list(range(STEPS))
    assert max(row["sampler/logp_gap_max"] for row in measured) < 1e-4


@pytest.mark.faults
@pytest.mark.usefixtures("_marked")
def test_an_offline_phase_evaluates_on_servers_with_its_weights(
    qed: Callable[..., Any], problems: Path, tmp_path: Path, place: Path
) -> None:
    given = ["sft", "--tasks", problems, *SETTINGS[: -len(ONLINE)], "--evaluation.every", 2, "--learner.batch_size", 4]
    runs = tmp_path / "alone", tmp_path / "served"
    more = ("--sampling.servers", 1, "--sampling.weights_folder", place)
    for run, options in zip(runs, ((), more), strict=True):
        done = qed(*given, *options, "--out", run)
        assert done.code == 0, done.err
    assert_equal_runs(*runs)


@pytest.mark.faults
@pytest.mark.usefixtures("_marked")
def test_servers_that_run_already_are_trained_and_left_running(
    qed: Callable[..., Any], command: Callable[..., list[object]], alone: Path, tmp_path: Path
) -> None:
    """The model that they begin with is another checkpoint of the same shape."""
    model = manifest.list_checkpoints(alone)[2] / "hf"
    line = [sys.executable, "-m", "qed", "serve", str(model), "--threads", "1", "--precision", "float32"]
    spec = ServerSpec("server", lambda port: [*line, "--port", str(port)], copy_environment(), tmp_path / "logs")
    with run_servers([spec]) as (server,):
        options = ("--sampling.sampler", "server", "--sampling.url", server.url)
        done = qed(*command(*options, "--out", tmp_path / "run"))
        assert done.code == 0, done.err
        assert_equal_runs(alone, tmp_path / "run")
        assert server.is_healthy()
        server.stop()
        done = qed(*command(*options, "--out", tmp_path / "other"))
        assert done.code == 2
        assert "No server answers" in done.err
