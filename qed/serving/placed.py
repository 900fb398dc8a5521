"""Servers that a cluster has placed, as a rank of the run sees them: through a folder on the rank's own machine.

A rank on a cluster is a process of its own that does not know the cluster's library. What has started it relays: the
rank writes what the servers must serve into `wanted.json`, and reads in `servers.json` where they are now.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from qed.errors import QedError
from qed.guards.signals import check_signals
from qed.net.client import HttpClient, RequestError
from qed.runs.run import write_whole
from qed.sampling.server.dialect import KEY_VARIABLE
from qed.serving.processes import ServerSpec, copy_environment

FOLDER = "QED_PLACED_SERVERS"  # environment variable of a rank whose servers a cluster has placed
WANTED, SERVERS = "wanted.json", "servers.json"
START_SECONDS = 1_200.0  # until all servers must answer: vLLM compiles a large model for minutes
HEALTH_SECONDS = 10.0
LOOK = 0.2
PORT, PYTHON = "{port}", "{python}"  # in a command for another machine
NO_PORT = 2**31 - 1  # stands for the port while a command is built
# The cluster says which devices a server has.
PLACING = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")

Found = TypeVar("Found")


@dataclass(frozen=True)
class Order:
    """What a server must serve, as values that JSON has; see `ServerSpec`.

    Args:
        number: unique.
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

    @classmethod
    def read(cls, folder: Path) -> Order | None:
        """Return what the rank of this folder wants; None if it has not asked yet."""
        try:
            values = json.loads((folder / WANTED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(**{**values, "command": tuple(values["command"])})

    def build_spec(self, index: int, **changes: str) -> ServerSpec:
        """Return the spec of one of the servers, for the machine of this process."""
        words = [sys.executable if word == PYTHON else word for word in self.command]
        return ServerSpec(
            name=f"{self.name} {index}",
            command=lambda port: [word.replace(PORT, str(port)) for word in words],
            environment=copy_environment(**self.changes, **changes),
            logs=Path(self.logs),
            seconds=self.seconds,
        )


@dataclass(frozen=True)
class Places:
    """Where the servers are, as the cluster says.

    Args:
        count: of the servers.
        shared: whether one may be on another machine, so that weights must be on storage that all machines share.
        number: of the order that they follow; empty before the first.
        urls: an address for each; empty while it is being started.
        error: why one cannot be started; empty if none.
    """

    count: int
    shared: bool
    number: str = ""
    urls: tuple[str, ...] = ()
    error: str = ""

    def write(self, folder: Path) -> None:
        """Write them for the rank of this folder."""
        write_whole(folder / SERVERS, json.dumps(asdict(self)).encode())

    @classmethod
    def read(cls, folder: Path) -> Places:
        """Return the latest ones."""
        values = json.loads((folder / SERVERS).read_text(encoding="utf-8"))
        return cls(**{**values, "urls": tuple(values["urls"])})


class PlacedServers:
    """The servers of a run on a cluster. Their key is in the environment variable `KEY_VARIABLE`.

    Args:
        folder: through which the cluster is asked.
        seconds: until a server must answer.
    """

    def __init__(self, folder: Path, seconds: float = START_SECONDS) -> None:
        self.folder, self.seconds = folder, seconds
        places = Places.read(folder)
        self.count, self.shared = places.count, places.shared

    def read_urls(self) -> list[str]:
        """Return the present addresses; empty ones are of servers that are being started."""
        return list(Places.read(self.folder).urls)

    def start(self, spec: ServerSpec) -> list[str]:
        """Start all servers, those of an earlier call again, and return their addresses; for rank 0 alone.

        Args:
            spec: of each server, with folders that all machines see.

        Raises:
            QedError: one does not start, or not in time.
        """
        order = Order.make(spec)
        write_whole(self.folder / WANTED, json.dumps(asdict(order)).encode())

        def find() -> list[str] | None:
            places = Places.read(self.folder)
            ready = places.number == order.number and places.urls and all(places.urls)
            return list(places.urls) if ready else None

        return self._wait(find, f"The {self.count} servers on the cluster", order.number)

    def restart(self, index: int, lost: str = "") -> str:
        """Return the address of a server that was lost once it answers again, there or elsewhere.

        The cluster notices by itself that a server has died or hangs, and starts it again.

        Args:
            index: of the server.
            lost: its address before, for the message.

        Raises:
            QedError: it was lost too often, or does not answer in time.
        """

        def find() -> str | None:
            urls = Places.read(self.folder).urls
            url = urls[index] if urls else ""
            return url if url and answers(url) else None

        return self._wait(find, f"Server {index} on the cluster ({lost or 'lost'})")

    def _wait(self, find: Callable[[], Found | None], name: str, number: str = "") -> Found:
        """Wait until something is found, or an error is reported: of the order of this number, if one is given."""
        end = time.monotonic() + self.seconds
        while time.monotonic() < end:
            places = Places.read(self.folder)
            if places.error and number in ("", places.number):
                raise QedError(f"{name}: {places.error}")
            if (found := find()) is not None:
                return found
            check_signals("servers")  # a model may take longer to load than the watchdog waits
            time.sleep(LOOK)
        raise QedError(f"{name}: no answer within {self.seconds:g} s. Their logs say more.")


def find_placed_servers() -> PlacedServers | None:
    """Return the servers that a cluster has placed for this process; None if there are none."""
    folder = os.environ.get(FOLDER)
    return PlacedServers(Path(folder)) if folder else None


def answers(url: str, seconds: float = HEALTH_SECONDS) -> bool:
    """Return whether a server says that it is healthy."""
    client = HttpClient(url, KEY_VARIABLE)
    try:
        return client.request("GET", "/health", seconds=seconds).status == 200
    except RequestError:
        return False
    finally:
        client.close()
