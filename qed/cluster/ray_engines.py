"""Inference servers on a Ray cluster: actors besides the learners, each of which runs a server behind a gate.

The command creates the actors, which reserve what the servers need. Rank 0 decides what they serve once it has written
its model, and requests restarts of lost servers; the worker of every rank forwards that. Ray restarts an actor whose
node was lost.

This module requires ray.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
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
from qed.serving.placed import Order, Place, Places, read_orders
from qed.serving.processes import ServerProcess

TOKEN = "QED_SERVE_TOKEN"  # environment variable of `qed serve`
LOOK = 1.0  # seconds between two queries of an actor
OWN = ("OMP_NUM_THREADS",)  # variables that Ray sets by what it reserves for an actor


class EngineHost:
    """An actor that runs a server.

    Args:
        job: the job of the run, for its folder and environment.
        key: the key that requests must carry.
    """

    def __init__(self, job: Job, key: str) -> None:
        self.key = key
        for name in OWN:
            os.environ.pop(name, None)
        os.environ.update(job.environment)
        with suppress(OSError):  # a missing folder matters only for relative paths
            os.chdir(job.cwd)
        self._place = Place()
        self._server: ServerProcess | None = None
        self._thread = threading.Thread()
        self._gate = Gate(ray.util.get_node_ip_address(), key, self._find_port)

    def serve(self, order: Order) -> None:
        """End the server of an earlier order, and start that of this one in a thread."""
        if order.number == self._place.number:
            return
        self._place = Place(order.number)
        if self._server is not None:
            self._server.stop()
            self._thread.join()
        self._server = ServerProcess(order.build_spec(**{TOKEN: self.key}))
        self._thread = threading.Thread(target=self._start, args=(self._server, order.number), daemon=True)
        self._thread.start()

    def report(self) -> Place:
        """Return the address and state of the server."""
        return self._place

    def _start(self, server: ServerProcess, number: str) -> None:
        """Start a server; if its order is outdated by then, change nothing."""
        try:
            server.start()
            place = Place(number, self._gate.url)
        except Exception as error:  # noqa: BLE001 -- told to the run, whatever it is
            known = str(error) if isinstance(error, QedError) else f"{type(error).__name__}: {error}"
            place = Place(number, error=f"On node {ray.util.get_node_ip_address()}: {known}")
        if number == self._place.number:
            self._place = place

    def _find_port(self) -> int:
        server = self._server
        return (urlsplit(server.url).port or 0) if server is not None and server.alive else 0


def start_hosts(engines: Engines, job: Job) -> list[Any]:
    """Create the actors of the servers; Ray places them as soon as there are resources."""
    actor = ray.remote(EngineHost).options(
        num_cpus=engines.resources.get("CPU", 0.0),
        num_gpus=engines.resources.get("GPU", 0.0),
        max_restarts=job.failures,
        max_concurrency=2,  # so that `report` answers while `serve` stops an earlier server
        scheduling_strategy="DEFAULT" if "GPU" in engines.resources else "SPREAD",
    )
    return [actor.remote(job, job.environment[KEY_VARIABLE]) for _ in range(engines.count)]


class Relay:
    """Relays a rank's orders to the actors and their addresses to the rank; a worker calls `tick` repeatedly.

    Args:
        hosts: the handles of the actors.
        folder: the folder of the rank.
        shared: see `Places`.
        failures: how often an actor is restarted.
    """

    def __init__(self, hosts: Sequence[Any], folder: Path, shared: bool, failures: int) -> None:
        self.hosts, self.folder = hosts, folder
        self.places = Places(shared, failures, tuple(Place() for _ in hosts))
        self._asked: list[Any] = [None] * len(hosts)
        self._next = [0.0] * len(hosts)
        folder.mkdir(parents=True, exist_ok=True)
        self.places.write(folder)

    def tick(self) -> None:
        """Do what is currently due, without waiting."""
        orders: Sequence[Order | None] = read_orders(self.folder) or [None] * len(self.hosts)
        servers = tuple(self._ask(index, order) for index, order in enumerate(orders))
        if servers != self.places.servers:
            self.places = replace(self.places, servers=servers)
            self.places.write(self.folder)

    def _ask(self, index: int, order: Order | None) -> Place:
        """Query an actor, read an answer that has arrived, and repeat an order that it has not followed."""
        asked, now, place = self._asked[index], time.monotonic(), self.places.servers[index]
        if asked is None:
            if now >= self._next[index] and not place.gone:
                self._asked[index] = self.hosts[index].report.remote()
            return place
        if not ray.wait([asked], timeout=0)[0]:
            return place
        self._asked[index], self._next[index] = None, now + LOOK
        place = self._read(asked)
        if order and not place.gone and place.number != order.number:
            self.hosts[index].serve.remote(order)
        return place

    def _read(self, asked: Any) -> Place:
        """Return an actor's answer; an empty place while Ray restarts it."""
        try:
            place: Place = ray.get(asked)
            return place
        except ActorDiedError as error:
            reason = " ".join(str(error).split())[:300]
            return Place(error=f"It was lost more than {self.places.failures} times: {reason}", gone=True)
        except RayError:
            return Place()
