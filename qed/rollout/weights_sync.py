"""Loads the learner's weights into inference servers, and checks that they have arrived.

For every server: pause, load from a folder, clear the prefix caches, resume in any case, then compare version and probe
(see `qed.rollout.probe`) with the learner. If the comparison fails, the run ends, so nothing sampled between resuming
and the comparison is used. Servers are updated in parallel; each answer comes from a single version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from qed.errors import QedError, ServersGone
from qed.guards.signals import check_signals
from qed.rollout.probe import Learner, Reading, Stale, Values, read_probe, require_change, require_reading
from qed.rollout.weights_folder import Format, WeightsFolder, Writes, name_version
from qed.sampling.server.dialect import NotDrained, Server, ServerLost
from qed.sampling.server.sampler import ServerSampler
from qed.training.parallel import ALONE, Parallel
from qed.training.scoring import Score
from qed.types import Rollout

ADAPTER = "qed"  # name prefix of the adapters on servers; each version has its own name, such as qed@12
WAIT = 60.0  # seconds until answers in progress are aborted and requested again
ALIVE = 10.0  # seconds for a server to answer that it is alive
ATTEMPTS = 3  # attempts to reach a server that was lost while loading weights
TICK = 0.5  # seconds between checks of the threads
NEAR = 0.25  # share of the rounding tolerance; after a restart a server may differ several times as much


class Memory:
    """Caches the learner's scores of a version; after `close`, returns only cached ones.

    A server may be revived when the learner has moved on or is in use by another thread. An uncached precision then
    returns the scores of a cached one, so that the tolerance is the floor of the rounding.
    """

    def __init__(self, score: Score) -> None:
        self.score: Score | None = score
        self.known: dict[Any, dict[torch.dtype, list[tuple[float, ...]]]] = {}  # of rows, by precision

    def __call__(self, rows: Sequence[Rollout], precision: torch.dtype) -> list[tuple[float, ...]]:
        """Return the log-probs of rows in a precision."""
        known = self.known.setdefault(tuple((tuple(row.prompt), tuple(row.output)) for row in rows), {})
        if precision not in known:
            if self.score is None:
                return next(iter(known.values()))
            known[precision] = [*map(tuple, self.score(rows, precision))]
        return known[precision]

    def measure(self, rows: Sequence[Rollout]) -> None:
        """Cache the scores that measure the model's rounding error, which is impossible after `close`."""
        for precision in (torch.float32, torch.bfloat16):
            self(rows, precision)

    def close(self) -> None:
        """Release the model."""
        self.score = None


@dataclass(frozen=True)
class Present:
    """The servers' current weights: a version in a folder, and the learner that produced it, with its probe values.

    `memory` caches the learner's scores.
    """

    version: int
    folder: Path
    learner: Learner
    memory: Memory
    values: Values


@dataclass
class WeightsSync:
    """Updates a run's servers: a callable that takes the model and the version, for `ServerSampler.sync`.

    Args:
        sampler: sampler whose servers get the weights.
        folder: folder of the versions; None on ranks other than the first.
        write: returns a writer of a model's version.
        kind: complete weights or adapters.
        build_learner: returns the learner's computation for a model.
        probe: rows of the probe.
        parallel: the ranks; only the first talks to the servers.
        restart: restarts a dead server and returns it; None if the run did not start the servers.
    """

    sampler: ServerSampler
    folder: WeightsFolder | None
    write: Callable[[Any], Writes]
    kind: Format
    build_learner: Callable[[Any], Learner]
    probe: Sequence[Rollout]
    parallel: Parallel = ALONE
    restart: Callable[[Server], Server] | None = None
    version: int | None = None  # that the servers have; None before the first update
    present: Present | None = None  # on the first rank
    asleep: bool = False  # whether the servers have freed their devices' memory
    figures: dict[str, float] = field(default_factory=dict)  # of the last update, for the metrics
    _before: dict[Server, tuple[Values, Values]] = field(default_factory=dict)  # the server's and the learner's
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __call__(self, model: Any, version: int) -> None:
        """Load the model's weights into all servers; all ranks must call this.

        Raises:
            Stale: a server has reported the update as done, but has other weights.
            QedError: a live server rejects the weights, or a dead one cannot be restarted.
        """
        folder = self._write(model, version)
        self._wake()
        with self.parallel.gather_weights(model):
            self.parallel.run_on_first(lambda: self._update_all(self._read_learner(model, version, folder)))
        self._finish(version)

    def prepare(self, model: Any, version: int) -> Callable[[], None]:
        """Write the model's weights, and return a function that loads them into all servers from any thread.

        All ranks must call this; the returned function does nothing on ranks other than the first.
        """
        path = self._write(model, version)
        with self.parallel.gather_weights(model):
            present = self._read_learner(model, version, path)
            present.memory.measure(self.probe)
        present.memory.close()
        if self.folder is not None:
            self.folder.pinned.add(path.name)

        def load() -> None:
            if self.folder is not None:
                self._update_all(present)
                self.folder.pinned.discard(path.name)
            self._finish(version)

        return load

    def rest(self) -> None:
        """Let idle servers free their devices' memory until the next update."""
        if not self.asleep:
            self.parallel.run_on_first(lambda: self._ask_each(Server.sleep))
            self.asleep = True

    def _wake(self) -> None:
        if self.asleep:
            self.parallel.run_on_first(lambda: self._ask_each(Server.wake))
            self.asleep = False

    def _ask_each(self, ask: Callable[[Server], None]) -> None:
        for server in self.sampler.servers:
            try:
                ask(server)
            except ServerLost as error:
                raise QedError(f"{server.url} failed to free or reallocate its device's memory: {error}.") from error

    def revive(self, server: Server) -> None:
        """Restart a dead server and load the current weights before it gets work.

        Raises:
            QedError: it does not start, or fails to load the weights.
        """
        with self._lock:
            if not self._is_present(server):  # an update may have restarted it meanwhile
                self.catch_up(self._restart(server, "it does not answer"))

    def catch_up(self, server: Server) -> None:
        """Load the current weights into a server that was unreachable, before it gets work again.

        Raises:
            QedError: it fails to load them.
        """
        with self._lock:
            if self.present is not None:
                self._before.pop(server, None)
                self._judge(*self._exchange_or_restart(server, self.present), self.present)

    def _write(self, model: Any, version: int) -> Path:
        """Write the version on the first rank; the others take part in gathering."""
        began = time.perf_counter()
        files, folder, name = self.write(model), self.folder, name_version(version)
        # Servers may have been started with the same weights that they get first.
        found = self.parallel.run_on_first(lambda: folder.find(name) if folder and self.version is None else None)
        if found is not None:
            return found
        if folder is None:
            files(Path(), self.parallel.rank)
        path = self.parallel.run_on_first(lambda: folder.write(name, version, self.kind, files) if folder else Path())
        self.figures["sampler/write_seconds"] = time.perf_counter() - began
        return path

    def _read_learner(self, model: Any, version: int, folder: Path) -> Present:
        """Compute the learner's values of the probe."""
        learner = self.build_learner(model)
        memory = Memory(learner.score)
        values = tuple(memory(self.probe, learner.precision))
        return Present(version, folder, replace(learner, score=memory), memory, values)

    def _update_all(self, present: Present) -> None:
        """Update all servers in parallel, and check them one by one."""
        began = time.perf_counter()
        check_signals("weights")
        with self._lock:
            self.present = present
            with ThreadPoolExecutor(len(self.sampler.servers), thread_name_prefix="weights") as pool:
                futures = [pool.submit(self._exchange_or_restart, each, present) for each in self.sampler.servers]
                while wait(futures, TICK).not_done:
                    check_signals("weights")  # each request has its own deadline
            for future in futures:
                self._judge(*future.result(), present)
            present.memory.close()
        self.figures["sampler/update_seconds"] = time.perf_counter() - began

    def _finish(self, version: int) -> None:
        """Record on this rank which version the servers have."""
        self.version = version
        for server in () if self.parallel.is_first else self.sampler.servers:
            server.note_weights(version, name_adapter(version) if self.kind == "adapter" else None)

    def _exchange_or_restart(self, server: Server, present: Present) -> tuple[Server, Reading]:
        """Load weights into a server; if it is lost, first wait for it or restart it."""
        for _ in range(ATTEMPTS):
            try:
                return server, self._exchange(server, present)
            except ServerLost:
                server = self._bring_back(server)
        raise QedError(f"{server.url} was lost {ATTEMPTS} times while loading the weights of step {present.version}.")

    def _bring_back(self, server: Server) -> Server:
        """Return a lost server once it answers; if it does not and the run started it, restart it.

        Raises:
            Interrupted: a stop signal has arrived.
        """
        end = time.monotonic() + self.sampler.seconds
        while True:
            check_signals("weights")
            try:
                server.alive(ALIVE)
                return server
            except ServerLost as failure:
                error = failure
            dead = error.kind == "lost" and self.restart is not None
            if dead or time.monotonic() >= end:
                return self._restart(server, str(error))
            time.sleep(TICK)

    def _exchange(self, server: Server, present: Present) -> Reading:
        """Load weights into a server, and read the probe.

        Raises:
            ServerLost: it did not answer.
            Stale: it has other weights.
            QedError: it rejects the weights.
        """
        try:
            self._load(server, present)
        except QedError as error:
            raise QedError(
                f"{server.url} has not taken the weights of step {present.version}: {error} It continues with its "
                "older weights, so the run ends here; resume it once the server can load new ones."
            ) from error
        has = server.read_version()
        if has != present.version:
            raise Stale(
                f"{server.url} has not taken the weights of step {present.version}: it reported the update as done, "
                f"but says that it has version {has}. Does another run use it? Restart it, and resume the run."
            )
        return read_probe(server, self.probe)

    def _load(self, server: Server, present: Present) -> None:
        """Pause a server, load weights, clear its caches, and resume it in any case."""
        try:
            _pause(server)
            if self.kind == "adapter":
                server.load_adapter(name_adapter(present.version), present.folder)
            else:
                server.load_weights(present.folder, present.version)
            server.clear_caches()
        except BaseException:
            with suppress(QedError, ServerLost):
                server.resume()
            raise
        server.resume()

    def _judge(self, server: Server, reading: Reading, present: Present) -> None:
        """Compare a server's probe results with the learner's, and with those before the update."""
        check = require_reading(server, present.version, reading, self.probe, present.learner)
        if check.largest > NEAR * check.tolerance.largest or check.mean > NEAR * check.tolerance.mean:
            present.memory.measure(self.probe)
        before = self._before.get(server)
        if before is not None:
            require_change(server, present.version, (before[0], reading.values), (before[1], present.values))
        self._before[server] = reading.values, present.values

    def _restart(self, server: Server, reason: str) -> Server:
        if self.restart is None:
            raise ServersGone(f"The server {server.url} is lost ({reason}). Restart it, and resume the run.")
        self._before.pop(server, None)
        return self.restart(server)

    def _is_present(self, server: Server) -> bool:
        """Return whether a server is alive and has the current version."""
        try:
            return _is_alive(server) and server.read_version() == self.version
        except (QedError, ServerLost):
            return False


def name_adapter(version: int) -> str:
    """Return the name of a version's adapters: engines may cache by name, so each version has its own."""
    return f"{ADAPTER}@{version}"


def _pause(server: Server) -> None:
    """Let answers in progress finish; abort those that take too long, to be requested again."""
    try:
        server.pause("wait", WAIT)
    except NotDrained:
        server.pause("abort", WAIT)


def _is_alive(server: Server) -> bool:
    try:
        server.alive(ALIVE)
    except ServerLost:
        return False
    return True
