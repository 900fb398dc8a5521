"""Servers that a cluster has placed, as a rank of the run sees them: through a folder on the rank's own machine.

A rank on a cluster is a process of its own that does not know the cluster's library. What has started it relays: the
rank writes what each server must serve into `wanted.json`, and reads in `servers.json` where it is.
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
SLACK = 120.0  # seconds to place a server, besides those that it has to start
LONGEST_PAUSE = 30.0  # seconds before a restart, doubled with each
LOOK = 0.2
PORT, PYTHON = "{port}", "{python}"  # in a command for another machine
NO_PORT = 2**31 - 1  # stands for the port while a command is built
# The cluster says which devices a server has.
PLACING = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Order:
    """What one server must serve, as values that JSON has; see `ServerSpec`.

    Args:
        number: unique; with another one the server is started again.
        name: of the server.
        command: with marks for the port and for this Python.
        changes: of the machine's environment variables.
        logs: the folder of its logs, on storage that all machines share.
        seconds: from the start until it must be healthy.
    """

    number: str
    name: str
    command: tuple[str, ...]
    changes: Mapping[str, str]
    logs: str
    seconds: float

    @classmethod
    def make(cls, spec: ServerSpec) -> Order:
        """Return the order for servers such as those of a spec."""
        command = [PORT.join(str(word).split(str(NO_PORT))) for word in spec.command(NO_PORT)]
        here = copy_environment()
        changes = {
            name: value for name, value in spec.environment.items() if here.get(name) != value and name not in PLACING
        }
        words = tuple(PYTHON if word == sys.executable else word for word in command)
        return cls(secrets.token_hex(8), spec.name, words, changes, str(spec.logs.absolute()), spec.seconds)

    def build_spec(self, **changes: str) -> ServerSpec:
        """Return the spec of the server on the machine of this process, with changes of its environment."""
        words = [sys.executable if word == PYTHON else word for word in self.command]
        return ServerSpec(
            name=self.name,
            command=lambda port: [word.replace(PORT, str(port)) for word in words],
            environment=copy_environment(**self.changes, **changes),
            logs=Path(self.logs),
            seconds=self.seconds,
        )


def read_orders(folder: Path) -> list[Order]:
    """Return what the rank of a folder wants, one order for each server; nothing if it has not asked yet."""
    try:
        found = json.loads((folder / WANTED).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    return [Order(**{**values, "command": tuple(values["command"])}) for values in found]


@dataclass(frozen=True)
class Place:
    """A server, as the cluster sees it: the order that it follows, its address once it answers, or what has failed.

    `gone` says that the cluster does not bring it back.
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
        failures: how often each may be started again.
        servers: in order.
    """

    shared: bool
    failures: int
    servers: tuple[Place, ...]

    def write(self, folder: Path) -> None:
        """Write them for the rank of this folder."""
        write_whole(folder / SERVERS, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, folder: Path) -> Places:
        """Return the latest ones."""
        values = json.loads((folder / SERVERS).read_text(encoding="utf-8"))
        return cls(**{**values, "servers": tuple(Place(**each) for each in values["servers"])})


class PlacedServers:
    """The servers of a run on a cluster, which rank 0 starts. Their key is in QED_SERVE_TOKEN.

    Args:
        folder: through which the cluster is asked.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        places = Places.read(folder)
        self.count, self.shared, self.failures = len(places.servers), places.shared, places.failures
        self.restarts = [0] * self.count
        self._orders: list[Order] = []

    def start(self, specs: Sequence[ServerSpec]) -> list[str]:
        """Start all servers, those of an earlier run of the learners again, and return their addresses.

        Args:
            specs: one for each, with folders that all machines see.

        Raises:
            QedError: one does not start, or not in time.
        """
        self._orders = [Order.make(spec) for spec in specs]
        self._write_orders()
        return [self._wait(index) for index in range(self.count)]

    def restart(self, index: int, spec: ServerSpec) -> str:
        """Start a server that was lost again, there or elsewhere, and return its address.

        Args:
            index: of the server.
            spec: may serve another folder than before.

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
        """Return the address of a server once it follows its order."""
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
            f"{order.name} on the cluster is not ready after {order.seconds:g} s. `ray status` says whether there is "
            f"room for it; its logs are in {order.logs}."
        )


def _pause(seconds: float) -> None:
    """Wait, and obey signals; waiting for a server is progress, because it has a deadline of its own."""
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
