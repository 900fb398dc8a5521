"""Servers that a cluster has placed, as a rank of the run sees them: through a folder on the rank's own machine.

A rank on a cluster is a separate process that does not use Ray itself. Its launcher relays: the rank writes what each
server must serve to `wanted.json`, and reads from `servers.json` where it is.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from qed.errors import QedError
from qed.guards.signals import check_signals
from qed.runs.run import write_whole
from qed.serving.processes import ServerSpec, copy_environment

FOLDER = "QED_PLACED_SERVERS"  # environment variable of a rank whose servers a cluster has placed
WANTED, SERVERS = "wanted.json", "servers.json"
SLACK = 120.0  # seconds to place a server, in addition to those for its start
LONGEST_PAUSE = 30.0  # the most seconds before a restart; the pause doubles with each
LOOK = 0.2
PORT, PYTHON = "{port}", "{python}"  # in a command for another machine
NO_PORT = 2**31 - 1  # stands for the port while a command is built
# The cluster decides which devices a server has.
PLACING = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Order:
    """What one server must serve, as JSON-compatible values; see `ServerSpec`.

    Args:
        number: a unique number; a new number restarts the server.
        name: the name of the server.
        command: the command, with placeholders for the port and for this Python.
        changes: changes to the machine's environment variables.
        logs: the folder of its logs, on storage that all machines share.
        seconds: the deadline from the start until it is healthy.
    """

    number: str
    name: str
    command: tuple[str, ...]
    changes: Mapping[str, str]
    logs: str
    seconds: float

    @classmethod
    def make(cls, spec: ServerSpec) -> Order:
        """Return the order for a server with this spec."""
        command = [PORT.join(str(word).split(str(NO_PORT))) for word in spec.command(NO_PORT)]
        here = copy_environment()
        changes = {
            name: value for name, value in spec.environment.items() if here.get(name) != value and name not in PLACING
        }
        words = tuple(PYTHON if word == sys.executable else word for word in command)
        return cls(secrets.token_hex(8), spec.name, words, changes, str(spec.logs.absolute()), spec.seconds)

    def build_spec(self, **changes: str) -> ServerSpec:
        """Return the spec of the server on this process's machine, with changes to its environment."""
        words = [sys.executable if word == PYTHON else word for word in self.command]
        return ServerSpec(
            name=self.name,
            command=lambda port: [word.replace(PORT, str(port)) for word in words],
            environment=copy_environment(**self.changes, **changes),
            logs=Path(self.logs),
            seconds=self.seconds,
        )


def read_orders(folder: Path) -> list[Order]:
    """Return the orders that a rank has written to its folder, one per server; empty if there are none yet."""
    try:
        found = json.loads((folder / WANTED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [Order(**{**values, "command": tuple(values["command"])}) for values in found]


@dataclass(frozen=True)
class Place:
    """A server, as the cluster sees it: the order that it follows, its address once it answers, or what has failed.

    `gone` means that the cluster will not restart it.
    """

    number: str = ""
    url: str = ""
    error: str = ""
    gone: bool = False


@dataclass(frozen=True)
class Places:
    """All servers of a run, as the cluster sees them.

    Args:
        shared: whether one may be on another machine, so that weights must be on storage that all machines share.
        failures: how often each may be restarted.
        servers: the servers, in order.
    """

    shared: bool
    failures: int
    servers: tuple[Place, ...]

    def write(self, folder: Path) -> None:
        """Write the servers to a rank's folder."""
        write_whole(folder / SERVERS, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, folder: Path) -> Places:
        """Read the latest servers from a rank's folder."""
        values = json.loads((folder / SERVERS).read_text(encoding="utf-8"))
        return cls(**{**values, "servers": tuple(Place(**each) for each in values["servers"])})


class PlacedServers:
    """The servers of a run on a cluster, which rank 0 starts. Their key is in QED_SERVE_TOKEN.

    Args:
        folder: the folder for communication with the cluster.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        places = Places.read(folder)
        self.count, self.shared, self.failures = len(places.servers), places.shared, places.failures
        self.restarts = [0] * self.count
        self._orders: list[Order] = []

    def start(self, specs: Sequence[ServerSpec]) -> list[str]:
        """Start all servers, restart those left by an earlier attempt of the learners, and return their addresses.

        Args:
            specs: one spec per server, with folders that all machines can access.

        Raises:
            QedError: one does not start in time.
        """
        self._orders = [Order.make(spec) for spec in specs]
        self._write_orders()
        return [self._wait(index) for index in range(self.count)]

    def restart(self, index: int, spec: ServerSpec) -> str:
        """Restart a lost server, on the same machine or another one, and return its address.

        Args:
            index: the index of the server.
            spec: its spec, possibly with another model folder than before.

        Raises:
            QedError: it was lost more often than `cluster.max_failures`, or does not start.
        """
        self.restarts[index] += 1
        if self.restarts[index] > self.failures:
            raise QedError(
                f"{spec.name} was lost {self.restarts[index]} times, and cluster.max_failures is {self.failures}. Its "
                f"logs are in {spec.logs}; the run resumes from its last checkpoint with --resume."
            )
        _pause(min(LONGEST_PAUSE, 2.0 ** (self.restarts[index] - 1)) if self.restarts[index] > 1 else 0.0)
        self._orders[index] = Order.make(spec)
        self._write_orders()
        return self._wait(index)

    def _write_orders(self) -> None:
        write_whole(self.folder / WANTED, json.dumps([asdict(order) for order in self._orders]).encode())

    def _wait(self, index: int) -> str:
        """Return the address of a server once it has carried out its order."""
        order = self._orders[index]
        end = time.monotonic() + order.seconds + SLACK
        while time.monotonic() < end:
            place = Places.read(self.folder).servers[index]
            if place.error and (place.gone or place.number == order.number):
                raise QedError(f"{order.name} on the cluster has failed. {place.error}")
            if place.url and place.number == order.number:
                return place.url
            _pause(LOOK)
        raise QedError(
            f"{order.name} on the cluster is not ready after {order.seconds:g} s. `ray status` shows whether there are "
            f"resources for it; its logs are in {order.logs}."
        )


def _pause(seconds: float) -> None:
    """Wait, and check for signals; waiting for a server counts as progress, because it has its own deadline."""
    end = time.monotonic() + seconds
    while True:
        check_signals("servers")
        if (left := end - time.monotonic()) <= 0:
            return
        time.sleep(min(LOOK, left))


def find_placed_servers() -> PlacedServers | None:
    """Return the servers that a cluster has placed for this process; None if there are none."""
    folder = os.environ.get(FOLDER)
    return PlacedServers(Path(folder)) if folder else None
