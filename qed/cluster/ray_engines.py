"""Inference servers on a Ray cluster: actors beside the learners, each of which runs a server behind a gate.

The command makes the actors, which reserve what the servers need. Rank 0 says what they serve, once it has written its
model; the worker of every rank tells its rank where the servers are. Ray starts an actor again whose node was lost, an
actor its server.

Only a process that has ray may import this module.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import ray
from ray.exceptions import ActorDiedError, RayError

from qed.cluster.placing import Engines
from qed.cluster.ray_control import Job
from qed.errors import QedError
from qed.sampling.server.dialect import KEY_VARIABLE
from qed.serving.gate import Gate
from qed.serving.placed import Order, Places
from qed.serving.processes import ServerProcess

TOKEN = "QED_SERVE_TOKEN"  # environment variable of `qed serve`
LOOK = 1.0  # seconds between two questions to an actor
OWN = ("OMP_NUM_THREADS",)  # which Ray sets to what it reserves for an actor


@dataclass(frozen=True)
class HostState:
    """The order that an actor follows, the address of its server once that has started, and why it cannot.

    `gone` says that Ray does not start the actor again.
    """

    number: str = ""
    url: str = ""
    error: str = ""
    gone: bool = False


class EngineHost:
    """An actor: runs a server, watches it and starts it again.

    Args:
        index: of the server.
        job: of the run, for its folder and environment.
        key: that requests must carry.
    """

    def __init__(self, index: int, job: Job, key: str) -> None:
        self.index, self.job, self.key = index, job, key
        for name in OWN:
            os.environ.pop(name, None)
        os.environ.update(job.environment)
        with suppress(OSError):  # `serve` says so
            os.chdir(job.cwd)
        self._state = HostState()
        self._server: ServerProcess | None = None
        self._thread = threading.Thread()
        self._gate = Gate(ray.util.get_node_ip_address(), key, self._find_port)

    def serve(self, order: Order) -> None:
        """Start the server of an order in a thread, and end that of an earlier one."""
        if order.number == self._state.number:
            return
        self._state = HostState(order.number)
        if self._server is not None:
            self._server.stop()
            self._thread.join()
        self._server = ServerProcess(order.build_spec(self.index, **{TOKEN: self.key}))
        self._thread = threading.Thread(target=self._run, args=(self._server, order.number), daemon=True)
        self._thread.start()

    def report(self) -> HostState:
        """Return the present state."""
        return self._state

    def _run(self, server: ServerProcess, number: str) -> None:
        """Start a server and watch it; an order that is not the present one any more changes nothing."""
        try:
            server.start()
            self._change(HostState(number, self._gate.url))
            server.watch(lambda line: None)
        except Exception as error:  # noqa: BLE001 -- told to the run, whatever it is
            known = str(error) if isinstance(error, QedError) else f"{type(error).__name__}: {error}"
            self._change(HostState(number, error=f"on node {ray.util.get_node_ip_address()}: {known}"))

    def _change(self, state: HostState) -> None:
        if state.number == self._state.number:
            self._state = state

    def _find_port(self) -> int:
        server = self._server
        return (urlsplit(server.url).port or 0) if server is not None and server.alive else 0


def start_hosts(engines: Engines, job: Job) -> list[Any]:
    """Make the actors of the servers; Ray places them as soon as there is room."""
    actor = ray.remote(EngineHost).options(
        num_cpus=engines.resources.get("CPU", 0.0),
        num_gpus=engines.resources.get("GPU", 0.0),
        max_restarts=job.failures,
        max_concurrency=2,  # `report` answers while `serve` ends an earlier server
        scheduling_strategy="DEFAULT" if "GPU" in engines.resources else "SPREAD",
    )
    return [actor.remote(index, job, job.environment[KEY_VARIABLE]) for index in range(engines.count)]


class Relay:
    """Tells the actors what a rank wants, and the rank where they are; a worker calls `tick` again and again.

    Args:
        hosts: the handles of the actors.
        folder: of the rank.
        shared: as for `Places`.
        failures: how often an actor is started again.
    """

    def __init__(self, hosts: Sequence[Any], folder: Path, shared: bool, failures: int) -> None:
        self.hosts, self.folder, self.failures = hosts, folder, failures
        self.places = Places(len(hosts), shared)
        self.states = [HostState() for _ in hosts]
        self._asked: list[Any] = [None] * len(hosts)
        self._next = [0.0] * len(hosts)
        folder.mkdir(parents=True, exist_ok=True)
        self.places.write(folder)

    def tick(self) -> None:
        """Do what is to be done now, without waiting."""
        order = Order.read(self.folder)
        for index in range(len(self.hosts)):
            self._ask(index, order)
        number = order.number if order else max(state.number for state in self.states)
        if not number:
            return
        urls = tuple(state.url if state.number == number else "" for state in self.states)
        failed = (state.error for state in self.states if state.error and (state.gone or state.number == number))
        places = Places(len(self.hosts), self.places.shared, number, urls, next(failed, ""))
        if places != self.places:
            self.places = places
            places.write(self.folder)

    def _ask(self, index: int, order: Order | None) -> None:
        """Ask an actor for its state, take an answer that has come, and repeat the order if it does not follow it."""
        asked, now = self._asked[index], time.monotonic()
        if asked is None:
            if now >= self._next[index]:
                self._asked[index] = self.hosts[index].report.remote()
            return
        if not ray.wait([asked], timeout=0)[0]:
            return
        self._asked[index], self._next[index] = None, now + LOOK
        self.states[index] = self._read(index, asked)
        state = self.states[index]
        if order and not state.gone and state.number != order.number:
            self.hosts[index].serve.remote(order)

    def _read(self, index: int, asked: Any) -> HostState:
        """Return an actor's state; an empty one while Ray starts it again."""
        try:
            state: HostState = ray.get(asked)
            return state
        except ActorDiedError as error:
            reason = " ".join(str(error).split())[:300]
            return HostState(error=f"server {index} was lost more than {self.failures} times: {reason}", gone=True)
        except RayError:
            return HostState()
