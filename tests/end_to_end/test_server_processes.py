"""Servers as processes: they start, are waited for, come back when they die, and never outlive the one who asked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from qed.net.client import HttpClient
from qed.net.ports import reserve_port
from qed.serving import processes
from qed.serving.processes import ServerError, ServerProcess, ServerSpec, run_servers

SERVER = """
import http.server, os, signal, socketserver, subprocess, sys, time
port, *orders = sys.argv[1:]
if "grandchild" in orders:
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
    print("grandchild", child.pid, flush=True)
if "stubborn" in orders:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "broken" in orders:
    print("the model has no weights")
    sys.exit(3)
status = 503 if "sick" in orders else 200

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *rest):
        pass

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    allow_reuse_address = True

try:
    server = Server(("127.0.0.1", int(port)), Handler)
except OSError as error:
    sys.exit(f"error: {error}")
print("ready", flush=True)
server.serve_forever()
"""


def is_running(process: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.02)


@pytest.fixture
def spec(tmp_path: Path) -> Callable[..., ServerSpec]:
    """Builds a server that does what it is told."""
    script = tmp_path / "server.py"
    script.write_text(SERVER)

    def build(*orders: str, name: str = "toy", port: int = 0, seconds: float = 60.0) -> ServerSpec:
        def command(at: int) -> list[str]:
            return [sys.executable, "-I", "-S", str(script), str(at), *orders]

        return ServerSpec(name, command, dict(os.environ), tmp_path / "logs", port=port, seconds=seconds)

    return build


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOOK": 0.05, "TICK": 0.02, "FIRST_WAIT": 0.01}.items():
        monkeypatch.setattr(processes, name, value)


def read_grandchild(server: ServerProcess) -> int:
    return int(server.log.read_text().split("grandchild ")[1].split()[0])


def test_servers_start_side_by_side_and_end_with_the_block(spec: Callable[..., ServerSpec]) -> None:
    lines: list[str] = []
    with run_servers([spec("grandchild", name="a"), spec("grandchild", name="b")], lines.append) as servers:
        assert len({server.url for server in servers}) == 2
        assert all(HttpClient(server.url).request("GET", "/health", seconds=10).status == 200 for server in servers)
        started = [pid for server in servers for pid in (server.group, read_grandchild(server))]
        assert all(is_running(pid) for pid in started)
    assert [line.split(" is ready")[0] for line in lines] == ["a", "b"]
    wait_for(lambda: not any(is_running(pid) for pid in started))


def test_a_server_that_ends_while_it_starts_is_reported_with_its_log(spec: Callable[..., ServerSpec]) -> None:
    server = ServerProcess(spec("broken"))
    with pytest.raises(ServerError, match=r"ended with exit code 3(.|\n)*the model has no weights"):
        server.start()
    assert server.log.exists()
    assert not server.alive


def test_when_one_does_not_start_the_others_end(spec: Callable[..., ServerSpec]) -> None:
    pids: list[int] = []
    with (
        pytest.raises(ServerError, match="no weights"),
        run_servers([spec("sick", name="a"), spec("broken", name="b")]),
    ):
        pids.append(0)
    assert not pids


def test_a_server_that_is_never_healthy_has_a_deadline(spec: Callable[..., ServerSpec]) -> None:
    server = ServerProcess(spec("sick", "grandchild", seconds=1.0))
    with pytest.raises(ServerError, match="not ready after 1 seconds"):
        server.start()
    wait_for(lambda: not is_running(server.group))
    wait_for(lambda: not is_running(read_grandchild(server)))


def test_a_server_of_another_kind_is_refused_and_ended(spec: Callable[..., ServerSpec]) -> None:
    def refuse(url: str) -> None:
        raise ServerError(f"{url} is not ours")

    wanted = spec()
    server = ServerProcess(ServerSpec(wanted.name, wanted.command, wanted.environment, wanted.logs, refuse))
    with pytest.raises(ServerError, match="is not ours"):
        server.start()
    wait_for(lambda: not is_running(server.group))


def test_an_error_while_a_port_is_reserved_is_told_as_it_is() -> None:
    with pytest.raises(OSError, match="no space"), reserve_port():
        raise OSError("no space")


def test_a_port_that_is_taken_is_named(spec: Callable[..., ServerSpec]) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(ServerError, match=f"cannot listen on port {port}"):
            ServerProcess(spec(port=port)).start()


def test_a_server_that_loses_its_port_gets_another(spec: Callable[..., ServerSpec]) -> None:
    wanted = spec()
    ports: list[int] = []
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()

        def command(port: int) -> list[str]:
            ports.append(port)
            return list(wanted.command(holder.getsockname()[1] if len(ports) == 1 else port))

        with run_servers([ServerSpec(wanted.name, command, wanted.environment, wanted.logs)]) as servers:
            assert servers[0].url.endswith(f":{ports[1]}")


def test_a_killed_server_comes_back_and_a_hopeless_one_does_not(
    spec: Callable[..., ServerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "MOST_RESTARTS", 2)
    lines: list[str] = []
    server = ServerProcess(spec("grandchild"))
    server.start()
    first, grandchild = server.group, read_grandchild(server)
    errors: list[ServerError] = []

    def watch() -> None:
        try:
            server.watch(lines.append)
        except ServerError as error:
            errors.append(error)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: len(lines) == 2)
        assert "has ended and is being restarted" in lines[0]
        assert server.is_healthy()
        wait_for(lambda: not is_running(grandchild))
        os.kill(server.group, signal.SIGKILL)
        wait_for(lambda: len(lines) == 4)
        os.kill(server.group, signal.SIGKILL)
        watcher.join(60)
        assert "3 times in a row" in str(errors[0])
        assert server.restarts == 2
        assert len(list(server.log.parent.iterdir())) == 3, "each start has a log"
    finally:
        server.stop()
        watcher.join(60)


def test_stopping_breaks_off_a_start(spec: Callable[..., ServerSpec]) -> None:
    server = ServerProcess(spec("sick"))
    errors: list[BaseException] = []

    def start() -> None:
        try:
            server.start()
        except ServerError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    wait_for(lambda: server.group)
    server.stop()
    thread.join(60)
    assert "was stopped while it was starting" in str(errors[0])
    wait_for(lambda: not is_running(server.group))


def test_a_server_that_ignores_sigterm_is_killed(
    spec: Callable[..., ServerSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.2)
    server = ServerProcess(spec("stubborn", "grandchild"))
    server.start()
    server.stop()
    wait_for(lambda: not is_running(server.group))
    wait_for(lambda: not is_running(read_grandchild(server)))


PARENT = """
import os, sys, threading
from pathlib import Path
from qed.serving.processes import ServerProcess, ServerSpec

command = lambda port: [sys.executable, "-I", "-S", sys.argv[1], str(port), "grandchild"]
server = ServerProcess(ServerSpec("toy", command, dict(os.environ), Path(sys.argv[2])))
starter = threading.Thread(target=server.start)  # the server outlives the thread that has started it
starter.start()
starter.join()
print(server.group, server.process.pid, server.log, flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("victim", ["parent", "supervisor"])
def test_a_server_ends_with_the_one_who_asked_for_it(
    spec: Callable[..., ServerSpec], tmp_path: Path, victim: str
) -> None:
    """SIGKILL leaves a parent no time to end anything."""
    spec()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "server.py"), str(tmp_path / "logs")], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        server, supervisor, log = parent.stdout.readline().decode().split()
        grandchild = int(Path(log).read_text().split("grandchild ")[1].split()[0])
        assert is_running(int(server))
        os.kill(parent.pid if victim == "parent" else int(supervisor), signal.SIGKILL)
        try:
            wait_for(lambda: not is_running(int(server)))
            if victim == "parent":
                wait_for(lambda: not is_running(grandchild))
                wait_for(lambda: not is_running(int(supervisor)))
        finally:
            parent.kill()
            if is_running(grandchild):
                os.kill(grandchild, signal.SIGKILL)
