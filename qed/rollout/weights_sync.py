"""Loads the learner's weights into inference servers, and checks that they have arrived.

For every server: pause, load from a folder, clear the prefix caches, resume in any case, then compare version and probe
(see `qed.rollout.probe`) with the learner. Nothing that was sampled between resuming and the comparison is used if the
comparison fails, because it ends the run. Servers are updated side by side, each answer is of one version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from qed.errors import QedError
from qed.guards.signals import check_signals
from qed.rollout.probe import Learner, Probed, Reading, Stale, Values, read_probe, require_change, require_reading
from qed.rollout.weights_folder import Format, WeightsFolder, Writes
from qed.training.parallel import ALONE, Parallel
from qed.training.scoring import Score
from qed.types import Rollout

ADAPTER = "qed"  # the name of the adapters that servers get; each version of them is another one, qed@12
WAIT = 60.0  # seconds until answers in progress are aborted and asked again
ALIVE = 10.0  # seconds in which a server says that it lives
TICK = 0.5  # seconds between two looks at the threads


class Memory:
    """The learner's scores of a version, computed once; after `close` those that are not known are 0.

    A server may be revived while the learner has moved on, or is in use by another thread. Precisions that no
    comparison has needed then count as without rounding.
    """

    def __init__(self, score: Score) -> None:
        self.score: Score | None = score
        self.known: dict[Any, list[tuple[float, ...]]] = {}

    def __call__(self, rows: Sequence[Rollout], precision: torch.dtype) -> list[tuple[float, ...]]:
        """Return the log-probs of rows in a precision."""
        key = precision, tuple((tuple(row.prompt), tuple(row.output)) for row in rows)
        if key not in self.known:
            if self.score is None:
                return [(0.0,) * len(row.output) for row in rows]
            self.known[key] = [*map(tuple, self.score(rows, precision))]
        return self.known[key]

    def close(self) -> None:
        """Let the model go."""
        self.score = None


@dataclass(frozen=True)
class Present:
    """What the servers have: a version in a folder, and the learner that made it, with its values of the probe.

    `memory` is what the learner scores with.
    """

    version: int
    folder: Path
    learner: Learner
    memory: Memory
    values: Values


@dataclass
class WeightsSync:
    """The updates of a run's servers: a callable of the model and the version, for `ServerSampler.sync`.

    Args:
        servers: of the sampler.
        folder: of the versions; None on other ranks than the first.
        write: returns what writes a model's version.
        kind: complete weights or adapters.
        build_learner: returns how the learner computes with a model.
        probe: the rows of the probe.
        parallel: the ranks; the first one talks to the servers.
        restart: starts a dead server again; None where servers are not the run's own.
        note: tells the servers of another rank which version and which adapters they have.
    """

    servers: Sequence[Updated]
    folder: WeightsFolder | None
    write: Callable[[Any], Writes]
    kind: Format
    build_learner: Callable[[Any], Learner]
    probe: Sequence[Rollout]
    parallel: Parallel = ALONE
    restart: Callable[[Updated], None] | None = None
    note: Callable[[Updated, int, str], None] | None = None
    version: int | None = None  # that the servers have; None before the first update
    present: Present | None = None  # on the first rank
    figures: dict[str, float] = field(default_factory=dict)  # of the last update, for the metrics
    _before: dict[int, tuple[Values, Values]] = field(default_factory=dict)  # the server's and the learner's, by server
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __call__(self, model: Any, version: int) -> None:
        """Load the model's weights into all servers; all ranks must call it.

        Raises:
            Stale: a server has reported the update as done, and has other weights.
            QedError: a server that is alive refuses the weights, or a dead one cannot be started again.
        """
        folder = self._write(model, version)
        with self.parallel.gather_weights(model):
            self.parallel.run_on_first(lambda: self._update_all(self._read_learner(model, version, folder)))
        self._finish(version)

    def prepare(self, model: Any, version: int) -> Callable[[], None]:
        """Write the model's weights, and return what loads them into all servers, from any thread; for one rank."""
        present = self._read_learner(model, version, self._write(model, version))
        for precision in (torch.float32, torch.bfloat16):  # the rounding, which the model will not tell any more
            present.memory(self.probe, precision)
        present.memory.close()

        def load() -> None:
            self._update_all(present)
            self._finish(version)

        return load

    def revive(self, server: Updated) -> None:
        """Start a dead server again, and load the present weights, before it gets work.

        Raises:
            QedError: it does not start, or does not take the weights.
        """
        with self._lock:
            if self._is_present(server):  # an update has found it dead meanwhile
                return
            self._restart(server)
            self.catch_up(server)

    def catch_up(self, server: Updated) -> None:
        """Load the present weights into a server that was out of reach, before it gets work again.

        Raises:
            QedError: it does not take them.
        """
        with self._lock:
            if self.present is not None:
                self._before.pop(id(server), None)
                self._judge(server, self.present, self._exchange(server, self.present))

    def _write(self, model: Any, version: int) -> Path:
        """Write the version on the first rank; the others take part in gathering."""
        began = time.perf_counter()
        files, folder = self.write(model), self.folder
        if folder is None:
            files(Path(), self.parallel.rank)
        name = f"step_{version:06d}"
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
        """Update all servers side by side, and compare them one by one."""
        began = time.perf_counter()
        with self._lock:
            self.present = present
            with ThreadPoolExecutor(len(self.servers), thread_name_prefix="weights") as pool:
                futures = [pool.submit(self._exchange_or_restart, server, present) for server in self.servers]
                while wait(futures, TICK).not_done:
                    check_signals("sync")  # each request has a deadline of its own
            for server, future in zip(self.servers, futures, strict=True):
                self._judge(server, present, future.result())
            present.memory.close()
        self.figures["sampler/update_seconds"] = time.perf_counter() - began

    def _finish(self, version: int) -> None:
        """Let this rank know which version the servers have."""
        self.version = version
        if self.note is not None and not self.parallel.is_first:
            for server in self.servers:
                self.note(server, version, name_adapter(version) if self.kind == "adapter" else "")

    def _exchange_or_restart(self, server: Updated, present: Present) -> Reading:
        """Load weights into a server; if it is dead, start it again first."""
        try:
            return self._exchange(server, present)
        except Stale:
            raise
        except QedError as error:
            if _is_alive(server):
                raise QedError(
                    f"{server.url} has not taken the weights of step {present.version}: {error} It goes on with its "
                    "older weights, so the run ends here; resume it once the server takes new ones."
                ) from error
        self._restart(server)
        self._before.pop(id(server), None)
        return self._exchange(server, present)

    def _exchange(self, server: Updated, present: Present) -> Reading:
        """Load weights into a server, and read the probe."""
        _pause(server)
        try:
            if self.kind == "adapter":
                server.load_adapter(name_adapter(present.version), present.folder)
            else:
                server.load_weights(present.folder, present.version)
            server.clear_caches()
        except BaseException:
            with suppress(QedError):
                server.resume()
            raise
        server.resume()
        has = server.read_version()
        if has != present.version:
            raise Stale(
                f"{server.url} has not taken the weights of step {present.version}: it reported the update as done, "
                f"but says that it has version {has}. Does another run use it? Restart it, and resume the run."
            )
        return read_probe(server, self.probe)

    def _judge(self, server: Updated, present: Present, reading: Reading) -> None:
        """Compare a server's reading with the learner, and with what it read before the update."""
        require_reading(server, present.version, reading, self.probe, present.learner)
        before = self._before.get(id(server))
        if before is not None:
            require_change(server, present.version, (before[0], reading.values), (before[1], present.values))
        self._before[id(server)] = reading.values, present.values

    def _restart(self, server: Updated) -> None:
        if self.restart is None:
            raise QedError(f"The server {server.url} does not answer. Start it again, and resume the run.")
        self.restart(server)

    def _is_present(self, server: Updated) -> bool:
        """Whether a server is alive and has the present version."""
        if not _is_alive(server):
            return False
        try:
            return server.read_version() == self.version
        except QedError:
            return False


def name_adapter(version: int) -> str:
    """Return the name of a version's adapters: an engine may keep caches under a name, so each has its own."""
    return f"{ADAPTER}@{version}"


def _pause(server: Updated) -> None:
    """Let the answers in progress end; abort those that take too long, which are asked again."""
    try:
        server.pause("wait", WAIT)
    except QedError:
        server.pause("abort", WAIT)


def _is_alive(server: Updated) -> bool:
    try:
        return server.alive(ALIVE)
    except QedError:
        return False
