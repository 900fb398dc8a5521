"""Servers as processes of this machine: start, wait for, watch, restart and end them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from qed.errors import QedError
from qed.guards.signals import check_signals
from qed.net.client import HttpClient, RequestError
from qed.net.ports import reserve_port
from qed.serving import supervisor

GRACE = 10.0  # seconds between SIGTERM and SIGKILL
TICK = 0.2  # seconds between two checks of a server that is starting
LOOK = 2.0  # seconds between two checks of a running server
ALIVE_SECONDS = 10.0  # for a reply of /health
SILENT_SECONDS = 120.0  # without a reply of /health, after which a server counts as hanging
TAIL = 20  # lines of the log in an error
LOGS_KEPT = 5  # the number of newest logs to keep per server
PORT_ATTEMPTS = 3
MOST_RESTARTS = 5  # in a row
STEADY_SECONDS = 300.0  # an end after running this long counts as the first one again
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0  # seconds before a restart, doubled with each in a row
TAKEN = ("address already in use", "errno 98", "errno 48")
# Variables that tell a process its rank; a server is not a rank.
RANK_VARIABLES = frozenset(
    ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "QED_LAUNCHER"]
)


class ServerError(QedError):
    """A server does not start, or has ended; the message includes the end of its log."""


@dataclass(frozen=True)
class ServerSpec:
    """How to start a server.

    Args:
        name: the name in messages and names of logs.
        command: returns the command, given the port of the loopback address on which it must listen.
        environment: all environment variables of the server.
        logs: the folder of its logs.
        check: raises a QedError if the server at an address is not the expected one; called once it is healthy.
        port: the port; 0 lets the operating system choose.
        seconds: the deadline from the start until it is healthy.
    """

    name: str
    command: Callable[[int], Sequence[str]]
    environment: Mapping[str, str]
    logs: Path
    check: Callable[[str], None] = field(default=lambda url: None)
    port: int = 0
    seconds: float = 900.0


class ServerProcess:
    """A server, across restarts. `url` changes with a restart unless the port is given.

    It is thread-safe. `stop` is final, and aborts a `start` in another thread.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.url = ""
        self.log = spec.logs
        self.restarts = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.group = 0  # the server's process id, which is also that of its group
        self._in_a_row = 0
        self._began = 0.0
        self._stopping = threading.Event()
        self._lock = threading.RLock()

    @property
    def alive(self) -> bool:
        """Return whether the process is running; see `is_healthy` for whether it answers."""
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises:
            ServerError: it has ended, is not healthy in time, or `stop` was called.
            Interrupted: a stop signal was received.
        """
        with self._lock:
            for attempt in range(1, PORT_ATTEMPTS + 1):
                with self._reserve_port() as port:
                    try:
                        self._launch(port)
                        self._wait_until_healthy()
                        self.spec.check(self.url)
                        return
                    except ServerError:
                        again = self.spec.port == 0 and attempt < PORT_ATTEMPTS and self._lost_its_port()
                        self._kill()
                        if not again:
                            raise
                    except BaseException:
                        self._kill()
                        raise

    def restart(self, worked: bool = False) -> None:
        """End what is left of the server and restart it, after a pause that doubles with each restart in a row.

        A failed start counts as one more restart.

        Args:
            worked: whether it has done work since its start, which resets the count.

        Raises:
            ServerError: it was restarted `MOST_RESTARTS` times in a row, or `stop` was called.
            Interrupted: a stop signal was received.
        """
        with self._lock:
            tail = self.read_tail()
            self._kill()
            if worked or time.monotonic() - self._began > STEADY_SECONDS:
                self._in_a_row = 0
            while self._in_a_row < MOST_RESTARTS:
                self._in_a_row += 1
                self.restarts += 1
                pause = FIRST_WAIT * 2 ** (self._in_a_row - 2) if self._in_a_row > 1 else 0.0
                if self._stopping.wait(min(LONGEST_WAIT, pause)):
                    raise ServerError(f"{self.spec.name} was stopped while it waited to restart.")
                try:
                    return self.start()
                except ServerError:
                    tail = self.read_tail()
                    if self._stopping.is_set():
                        raise
            raise ServerError(
                f"{self.spec.name} has ended {self._in_a_row + 1} times in a row, so it is not restarted. "
                f"The end of its log, {self.log}:\n{tail}"
            )

    def is_healthy(self, seconds: float = ALIVE_SECONDS) -> bool | None:
        """Query /health: True for status 200, False for another status or an ended process, None for no reply."""
        if not self.alive:
            return False
        client = HttpClient(self.url)
        try:
            return client.request("GET", "/health", seconds=seconds).status == 200
        except RequestError:
            return None
        finally:
            client.close()

    def watch(self, say: Callable[[str], None]) -> None:
        """Restart the server whenever it ends, reports that it is unhealthy, or hangs; return after `stop`.

        Raises:
            ServerError: it does not restart.
        """
        answered = time.monotonic()
        while not self._stopping.wait(LOOK):
            healthy = self.is_healthy()
            if healthy:
                answered = time.monotonic()
            elif healthy is False or time.monotonic() - answered > SILENT_SECONDS:
                why = "does not answer" if healthy is None else "is unhealthy" if self.alive else "has ended"
                say(f"{self.spec.name} {why} and is being restarted; its log is {self.log}.")
                try:
                    self.restart()
                except ServerError:
                    if self._stopping.is_set():
                        return
                    raise
                answered = time.monotonic()
                say(f"{self.spec.name} is back at {self.url}.")

    def stop(self) -> None:
        """End the server and its child processes for good; SIGTERM first."""
        self.ask_to_stop()
        self._kill(GRACE + 5)

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the server without waiting; it is not restarted. Safe in signal handlers."""
        self._stopping.set()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def read_tail(self, lines: int = TAIL) -> str:
        """Return the last lines of the log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2**16))
                return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-lines:])
        except OSError:
            return ""

    @contextmanager
    def _reserve_port(self) -> Iterator[int]:
        if self.spec.port:
            self._require_free(self.spec.port)
            yield self.spec.port
        else:
            with reserve_port() as port:
                yield port

    def _require_free(self, port: int) -> None:
        with socket.socket() as holder:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind(("127.0.0.1", port))
            except OSError as error:
                raise ServerError(
                    f"{self.spec.name} cannot listen on port {port}: {error.strerror or error}. Choose another port, "
                    "or leave it out to use a free one."
                ) from error

    def _launch(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        command = supervisor.build_command(os.getpid(), GRACE, list(self.spec.command(port)))
        with _open_log(self.spec.logs, self.spec.name) as log:
            self.log = Path(log.name)
            self.process = subprocess.Popen(
                command,
                env=dict(self.spec.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._began = time.monotonic()
        assert self.process.stdout is not None
        with self.process.stdout as out:
            self.group = int(out.readline() or 0)

    def _wait_until_healthy(self) -> None:
        name, deadline = self.spec.name, time.monotonic() + self.spec.seconds
        while True:
            if self._stopping.wait(TICK):
                raise ServerError(f"{name} was stopped while it was starting.")
            check_signals("serving.start")
            if not self.alive:
                code = self.process.returncode if self.process is not None else 0
                raise ServerError(
                    f"{name} ended with exit code {code} while it was starting. The end of its log, {self.log}:\n"
                    f"{self.read_tail()}"
                )
            if self.is_healthy(TICK * 10):
                return
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{name} is not ready after {self.spec.seconds:g} seconds. The end of its log, {self.log}:\n"
                    f"{self.read_tail()}"
                )

    def _lost_its_port(self) -> bool:
        return any(sign in self.read_tail(200).lower() for sign in TAKEN)

    def _kill(self, patience: float = 0.0) -> None:
        """End the process group; give the supervisor `patience` seconds to do so first."""
        if self.process is None:
            return
        if patience:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        if self.group and self.process.poll() is None:
            with suppress(OSError):
                os.killpg(self.group, signal.SIGKILL)
        if self.process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience or GRACE)  # the supervisor ends with the server
        with suppress(OSError):
            self.process.kill()
        self.process.wait()


def _open_log(folder: Path, name: str) -> IO[bytes]:
    """Open the next log of a server; only its newest logs are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = name.replace(" ", "_").replace("/", "_")
    while True:
        numbers = sorted(int(path.stem.rsplit(".", 1)[1]) for path in folder.glob(f"{stem}.[0-9]*.log"))
        with suppress(FileExistsError):  # a server of another process uses it
            log = (folder / f"{stem}.{numbers[-1] + 1 if numbers else 1}.log").open("xb")
            break
    for number in numbers[: -LOGS_KEPT + 1]:
        (folder / f"{stem}.{number}.log").unlink(missing_ok=True)
    return log


@contextmanager
def run_servers(
    specs: Sequence[ServerSpec], say: Callable[[str], None] = lambda line: None
) -> Iterator[list[ServerProcess]]:
    """Start servers concurrently, and yield them once all are healthy; they end with the block.

    Raises:
        ServerError: one of them does not start.
        Interrupted: a stop signal was received.
    """
    servers = [ServerProcess(spec) for spec in specs]
    try:
        start_servers(servers)
        for server in servers:
            say(f"{server.spec.name} is ready at {server.url}; its log is {server.log}.")
        yield servers
    finally:
        for server in servers:
            server.ask_to_stop()
        for server in servers:
            server.stop()


def start_servers(servers: Sequence[ServerProcess]) -> None:
    """Start servers concurrently; if one fails, abort the start of the others.

    Raises:
        ServerError: one of them does not start.
        Interrupted: a stop signal was received.
    """
    errors: list[BaseException] = []

    def start(server: ServerProcess) -> None:
        try:
            server.start()
        except BaseException as error:  # noqa: BLE001 -- raised below, in the thread that waits
            errors.append(error)
            for other in servers:
                other.ask_to_stop()

    threads = [threading.Thread(target=start, args=(server,), daemon=True) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def copy_environment(**changes: str) -> dict[str, str]:
    """Return a copy of this process's environment for a server, without rank variables and with changes."""
    return {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES} | changes
