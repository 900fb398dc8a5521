"""Inference servers on a Ray cluster of two nodes on this machine: found, killed, moved, ended with the command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from cutting import SHARED, TIMES, write_data

from qed.errors import QedError
from qed.net.client import HttpClient, RequestError
from qed.runs.run import read_lines
from qed.sampling.server.dialect import KEY_VARIABLE
from qed.serving.placed import PlacedServers
from qed.serving.processes import ServerSpec, copy_environment

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'qed[ray]'")

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.xdist_group("ray")]

PATIENCE = 300.0  # seconds
KEY = "the-key"
# Says which process it is, and that it has the token and the environment of its order.
SERVER = """
import http.server, os, sys, json
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps([os.getpid(), os.getppid(), os.environ["QED_SERVE_TOKEN"], os.environ["MORE"]]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
Found = TypeVar("Found")


def wait_for(find: Callable[[], Found | None]) -> Found:
    end = time.monotonic() + PATIENCE
    while (found := find()) is None:
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two nodes with one CPU each, to which this process is connected."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 -- an extra

    folder = tempfile.mkdtemp(prefix="qed-")  # short: the path of a socket has 107 characters
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20, "temp_dir": folder}
    made = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    made.add_node(**node)
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def start(tmp_path: Path, count: int, failures: int) -> tuple[Any, PlacedServers, list[Any]]:
    """Make actors, and what the worker of a rank does for them, by hand."""
    from qed.cluster.placing import Engines  # noqa: PLC0415
    from qed.cluster.ray_control import Job  # noqa: PLC0415
    from qed.cluster.ray_engines import Relay, start_hosts  # noqa: PLC0415 -- needs ray

    job = Job((), "run", str(tmp_path), {KEY_VARIABLE: KEY}, failures)
    hosts = start_hosts(Engines(count, {"CPU": 1.0}, True), job)
    relay = Relay(hosts, tmp_path / "mail", True, failures)
    return relay, PlacedServers(tmp_path / "mail"), hosts


@pytest.fixture
def spec(tmp_path: Path) -> ServerSpec:
    program = tmp_path / "server.py"
    program.write_text(SERVER, encoding="utf-8")
    command = [sys.executable, str(program)]
    return ServerSpec("server", lambda port: [*command, str(port)], copy_environment(MORE="more"), tmp_path / "logs")


def ask(url: str) -> list[Any] | None:
    client = HttpClient(url, KEY_VARIABLE)
    try:
        found: list[Any] = client.ask("GET", "/", seconds=5)
        return found
    except RequestError:
        return None
    finally:
        client.close()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


def relay_while_waiting(relay: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the worker's ticks in the place of the rank's waiting."""
    monkeypatch.setattr("qed.serving.placed.check_signals", lambda _: relay.tick())


def is_gone(process: int) -> bool | None:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return True if state == "Z" else None


@pytest.mark.usefixtures("cluster")
def test_servers_are_started_lost_and_started_again(
    tmp_path: Path, spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, servers, hosts = start(tmp_path, 2, 1)
    relay_while_waiting(relay, monkeypatch)
    urls = servers.start([spec, spec])
    first = [wait_for(lambda url=url: ask(url)) for url in urls]  # type: ignore[misc]
    assert first[0][2:] == first[1][2:] == [KEY, "more"]
    assert first[0][0] != first[1][0]

    # A server that has died is started again behind the same gate, and the other one stays.
    os.kill(first[0][0], signal.SIGKILL)
    assert wait_for(lambda: is_gone(first[0][0]))
    assert servers.restart(0, spec) == urls[0]
    second = wait_for(lambda: ask(urls[0]))
    assert second[0] != first[0][0]
    assert ask(urls[1]) == first[1]

    # An actor that is lost takes its server with it, and comes back behind another gate.
    ray.kill(hosts[1], no_restart=False)
    assert wait_for(lambda: is_gone(first[1][0]))
    moved = servers.restart(1, spec)
    assert moved != urls[1]
    assert wait_for(lambda: ask(moved))[0] != first[1][0]

    # Learners that have started again find no server of the earlier attempt.
    again = PlacedServers(tmp_path / "mail").start([spec, spec])
    third = [wait_for(lambda url=url: ask(url)) for url in again]  # type: ignore[misc]
    assert is_gone(second[0])
    for host in hosts:
        ray.kill(host)
    for process, *_ in third:
        assert wait_for(lambda process=process: is_gone(process))  # type: ignore[misc]


@pytest.mark.usefixtures("cluster")
def test_a_server_that_is_lost_too_often_or_never_starts_is_an_error(
    tmp_path: Path, spec: ServerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, servers, hosts = start(tmp_path, 1, 0)
    relay_while_waiting(relay, monkeypatch)
    broken = ServerSpec("server", lambda port: [sys.executable, "-c", "1/0"], spec.environment, spec.logs)
    with pytest.raises(QedError, match=r"(?s)On node .*ended with exit code 1.*ZeroDivisionError"):
        servers.start([broken])
    servers.start([spec])  # an earlier error is not one of this order
    with pytest.raises(QedError, match=r"cluster\.max_failures is 0"):
        servers.restart(0, spec)
    ray.kill(hosts[0])
    with pytest.raises(QedError, match="It was lost more than 0 times"):
        PlacedServers(tmp_path / "mail").start([spec])


GRPO = ["grpo", "--tasks", "problems.jsonl", "--data.reward", "./mine.py", *SHARED, "--lr", 1e-3, "--steps", 6]
GRPO += ["--sampling.problems_per_step", 5, "--sampling.group_size", 4, "--run.watchdog", 120]
REWARD = """
from qed.types import Grade
def reward(rollout):
    right = sum(rollout.output) % 2 == 0
    return Grade(reward=float(right), correct=right, format_ok=True, extracted=None)
"""


def find_processes(home: Path, *words: bytes) -> list[int]:
    """The processes in a folder whose command lines have these words."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            if process.name.isdigit() and os.readlink(process / "cwd") == str(home):
                command = (process / "cmdline").read_bytes().split(b"\0")
                if set(words) <= set(command) and b"-c" not in command:  # not the supervisor
                    found.append(int(process.name))
    return found


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run, without what differs between two equal runs."""
    left_out = (*TIMES, "sampler/")
    return [
        {key: value for key, value in row.items() if not key.startswith(left_out)}
        for row in read_lines(run / "metrics.jsonl")
    ]


def test_a_run_over_placed_servers_is_that_over_local_ones_also_if_one_is_killed(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path)
    (tmp_path / "mine.py").write_text(REWARD, encoding="utf-8")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cluster.add_node(num_cpus=1)

    def start_run(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "qed", *GRPO, *arguments]
        return subprocess.Popen(
            list(map(str, command)), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    here = start_run("--sampling.servers", 2, "--out", "here")
    _, errors = here.communicate(timeout=2 * PATIENCE)
    assert here.returncode == 0, errors
    there = start_run("--cluster", cluster.address, "--cluster.learners", 1, "--cluster.engines", 2, "--out", "there")
    try:
        metrics = tmp_path / "there" / "metrics.jsonl"
        wait_for(lambda: True if metrics.is_file() and metrics.read_bytes().count(b"\n") >= 2 else None)
        servers = find_processes(tmp_path, b"serve")
        os.kill(servers[0], signal.SIGKILL)
        _, errors = there.communicate(timeout=2 * PATIENCE)
    finally:
        there.kill()
    assert there.returncode == 0, errors
    assert read_metrics(tmp_path / "there") == read_metrics(tmp_path / "here")
    weights = [(tmp_path / run / "final" / "hf" / "model.safetensors").read_bytes() for run in ("here", "there")]
    assert weights[0] == weights[1]
    events = [row["event"] for row in read_lines(tmp_path / "there" / "events.jsonl")]
    assert events.count("server_restarted") == 1
    assert wait_for(lambda: find_processes(tmp_path, b"serve") == [] or None)
    assert not list((tmp_path / "there").glob("**/qed-weights-*"))
