"""The sampler on inference servers: sends and receives token ids, and tolerates lost servers."""

from __future__ import annotations

import math
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Protocol

import torch
from torch import nn

from qed.errors import QedError, UsageError
from qed.guards.signals import check_signals
from qed.net.deadlines import CancelScope
from qed.sampling.base import PromptBatch, Sampling
from qed.sampling.parts import join_parts, list_places, split_places, take_part
from qed.sampling.server.balance import Balancer, Hooks
from qed.sampling.server.checks import check_room, check_sampling
from qed.sampling.server.dialect import Job, Reader, Server, ServerLost
from qed.sampling.server.recognise import recognise
from qed.types import Completion

SCORED_AT_ONCE = 32  # rows that a qed server scores in one request


class Sync(Protocol):
    """Sends new weights to servers."""

    def __call__(self, model: nn.Module, version: int) -> None:
        """Send them the weights of a model."""
        ...

    def prepare(self, model: nn.Module, version: int) -> Callable[[], None]:
        """Copy the weights of a model, and return a function that sends the copy to the servers."""
        ...


class ServerSampler:
    """Samples on inference servers, all of one engine. `generate` may be called from several threads.

    With qed servers, a call is split into as many parts of consecutive prompts as there are servers, even if some are
    lost, so the answers depend only on that number, up to rounding. With one server they are those of the native
    sampler, even if it keeps prefixes. With other engines, each answer is a separate request, and they manage their own
    caches.

    Args:
        tokenizer: finds stop strings, to check how answers end.
        ends: token ids that end an answer.
        rows_per_batch: largest number of concurrent requests per server, if each is for a single answer.
        precision: precision of the learner.
        seconds: time without progress after which a request is retried, and for which all servers may be lost.
    """

    remote = True  # it does not read this process's weights while it samples
    handed_over: str | None = None

    def __init__(
        self, tokenizer: Any, ends: Sequence[int], rows_per_batch: int, precision: torch.dtype, seconds: float
    ) -> None:
        self.reader = Reader(tokenizer, tuple(ends))
        self.rows_per_batch, self.precision, self.seconds = rows_per_batch, precision, seconds
        self.version: int | None = None  # oldest version of the weights that servers may have
        self.newest = 0  # version of the weights that were sent last or are being sent
        self.allowed: frozenset[int | None] = frozenset()  # versions that answers may have; empty allows any
        self.rounding: torch.dtype | None = None  # the servers' precision if it is not the learner's
        self.sync: Sync | None = None  # sends new weights to the servers
        self.on_lost: Callable[[Server], None] | None = None  # called when a server died or hangs
        self.on_return: Callable[[Server], None] | None = None  # called before a lost server with old weights is used
        self._hooks = Hooks[Server](self._report_lost, self._prepare_return)
        self._balancer = Balancer[Server]([], rows_per_batch, seconds, self._hooks)
        self._lock = threading.Lock()
        self._of_thread = threading.local()  # `session`: that of calls which continue their answers

    @property
    def servers(self) -> list[Server]:
        """The servers, in the order of their addresses; `healthy` is False for those not in use."""
        return [slot.server for slot in self._balancer.slots]

    @property
    def window(self) -> int:
        """Return the longest sequence that every server accepts, in tokens."""
        return min((server.capabilities.window for server in self.servers), default=1 << 30)

    @property
    def counts(self) -> Counter[str]:
        """Numbers of retried requests (`asked_again`) and lost servers (`servers_lost`)."""
        return self._balancer.counts

    def count_finished(self, index: int) -> int:
        """Return how many requests the server at an index has answered, across restarts."""
        return self._balancer.slots[index].finished

    @property
    def exact_logps(self) -> bool:
        """Return whether all servers report log-probs equal to the learner's and compute in its precision."""
        precision = str(self.precision).removeprefix("torch.")
        found = [server.capabilities for server in self.servers]
        return bool(found) and all(each.exact_logps and each.precision == precision for each in found)

    def set_servers(self, urls: Sequence[str], model: str = "", samples: bool = True) -> None:
        """Use the servers at these addresses from now on.

        Args:
            urls: the addresses.
            model: name of the model to use if they serve several.
            samples: whether they are used to sample, not only to score.

        Raises:
            UsageError: no server answers at an address, an address is given twice, or their engines differ.
        """
        servers = [recognise(url, self.reader, self.seconds, model, samples) for url in urls]
        if len({server.url for server in servers}) != len(servers):
            raise UsageError(f"An address is given twice: {', '.join(urls)}.")
        dialects = {server.dialect for server in servers}
        if len(dialects) > 1:
            raise UsageError(f"The servers have different engines ({', '.join(sorted(dialects))}); use one engine.")
        # A batch fills a qed server; other engines batch requests themselves.
        limit = 1 if servers and servers[0].batches else self.rows_per_batch
        self._balancer = Balancer(servers, limit, self.seconds, self._hooks)

    def replace_server(self, index: int, url: str) -> None:
        """Replace a server by the one at another address, for example after a restart.

        Raises:
            UsageError: no server answers there, or it has another engine.
        """
        server, before = recognise(url, self.reader, self.seconds), self.servers[index]
        if server.dialect != before.dialect:
            raise UsageError(f"The server {url} does not have the engine {before.dialect} of its predecessor.")
        self._balancer.replace(index, server)

    @contextmanager
    def keep_prefixes(self) -> Iterator[None]:
        """Within the context, let qed servers cache their computations for answers that later calls continue."""
        self._of_thread.session = uuid.uuid4().hex
        try:
            yield
        finally:
            self._of_thread.session = ""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix_lengths: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """Generate one completion for each seed of each prompt; see `Sampler`.

        Raises:
            UsageError: a prompt is too long for a server, or the servers cannot report what the learner needs.
            QedError: all servers are lost for too long, or a reply is invalid.
        """
        return self.generate_batches([PromptBatch(prompts, seeds, sampling, prefix_lengths)])[0]

    def generate_batches(self, batches: Sequence[PromptBatch]) -> list[list[list[Completion]]]:
        """Generate the completions of several batches at once; see `generate`."""
        servers, places = self._require_servers(), list_places(batches)
        for server in servers:
            for batch in batches:
                check_sampling(batch.sampling, server.url, server.capabilities)
            check_room(Job(batches), server.url, server.capabilities)
        count = len(servers) if servers[0].batches else len(places)
        parts = [part for part in split_places(places, max(1, count)) if part]
        session = getattr(self._of_thread, "session", "")
        jobs = [Job(take_part(batches, part), session) for part in parts]
        rows = self._balancer.run([(job, job.tokens) for job in jobs], self._complete, _tick)
        return join_parts(batches, parts, [list(chain.from_iterable(own)) for own in rows])

    def stream(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, on_tokens: Callable[[list[int]], None]
    ) -> Completion:
        """Generate one completion and stream it as it grows, if the engine can; see `HFSampler.stream`.

        Raises:
            QedError: no server answers. Streamed text cannot be taken back, so the request is not retried.
        """
        server = min(self._require_servers(), key=lambda each: not each.healthy)
        check_room(Job([PromptBatch([prompt], [[seed]], sampling)]), server.url, server.capabilities)
        try:
            return server.stream(prompt, seed, sampling, on_tokens)
        except ServerLost as error:
            raise QedError(f"The server {server.url} did not finish its answer: {error}.") from error

    def score(self, rows: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float = 1.0) -> list[list[float]]:
        """Return the log-probs of outputs given prompts, under the full distribution at a temperature.

        Args:
            rows: token ids of a prompt and an output, each.
            temperature: divides the logits.

        Raises:
            UsageError: the servers cannot score at this temperature, or cannot score such long sequences.
            QedError: all servers are lost for too long, or one returns invalid log-probs or a wrong number of them.
        """
        size = SCORED_AT_ONCE if self._require_servers()[0].batches else 1
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        jobs = [(part, sum(len(prompt) + len(output) for prompt, output in part)) for part in parts]

        def work(server: Server, part: Sequence[Any], on_progress: Any, scope: Any) -> list[list[float]]:
            return _score(server, part, temperature)

        return [logps for part in self._balancer.run(jobs, work, _tick) for logps in part]

    def load(self, weights: nn.Module, version: int) -> None:
        """Send the servers new weights through `sync`; without it they keep their own, as in an evaluation."""
        if self.sync is not None:
            self.newest = version
            self.sync(weights, version)
            self.version = version

    def prepare(self, weights: nn.Module, version: int) -> Callable[[], None]:
        """Copy new weights for the servers, and return a function that sends them from any thread."""
        if self.sync is None:
            return lambda: None
        load = self.sync.prepare(weights, version)

        def give() -> None:
            self.newest = version
            load()
            self.version = version

        return give

    def close(self) -> None:
        """Cancel all requests."""
        for server in self.servers:
            server.close()

    def _complete(
        self, server: Server, job: Job, on_progress: Callable[[], None], scope: CancelScope
    ) -> list[list[Completion]]:
        least = self.version
        rows = server.complete(job, on_progress, scope)
        versions = {completion.version for row in rows for completion in row}
        if self.allowed and (others := (versions | {server.read_version()}) - self.allowed):
            raise UsageError(
                f"The server {server.url} received other weights meanwhile (version {others.pop()} instead of "
                f"{', '.join(map(str, self.allowed))}): a training run updates it. Use a separate server."
            )
        if least is not None:
            # A version newer than any of this run's belongs to another run.
            newest = max(least, self.newest)
            if any(version is None or not least <= version <= newest for version in versions):
                raise ServerLost(f"{server.url} sampled with another version of the weights than {least}", "stale")
        return rows

    def _report_lost(self, server: Server) -> None:
        if self.on_lost is not None:
            with self._lock:
                self.on_lost(server)

    def _prepare_return(self, server: Server) -> None:
        """Make sure that a server that is back has the current weights.

        Raises:
            ServerLost: it has other weights.
        """
        if self.version is None or server.read_version() == self.version:
            return
        if self.on_return is not None:
            with self._lock:
                self.on_return(server)
        if (version := server.read_version()) != self.version:
            raise ServerLost(f"{server.url} has weights of version {version} in place of {self.version}", "stale")

    def _require_servers(self) -> list[Server]:
        servers = self.servers
        if not servers:
            raise UsageError("The sampler has no server: give one with --sampling.url http://127.0.0.1:8000.")
        return servers


def _score(
    server: Server, rows: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float
) -> list[list[float]]:
    """Request the log-probs of outputs given prompts, and check that each token has a finite one."""
    try:
        found = server.score([prompt for prompt, _ in rows], [output for _, output in rows], temperature)
        scored = [[float(value) for value in each] for each in found]
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise QedError(
            f"The reply of the server {server.url} has no log-probs of the requested tokens "
            f"({type(error).__name__}: {error})."
        ) from error
    if [len(each) for each in scored] != [len(output) for _, output in rows]:
        raise QedError(f"The server {server.url} returned a different number of log-probs than requested.")
    if not all(math.isfinite(value) for each in scored for value in each):
        raise QedError(
            f"The server {server.url} returned log-probs that are not finite: its model computes NaN or infinity, as "
            "float16 weights may."
        )
    return scored


def _tick(progress: bool) -> None:
    check_signals("rollout", progress)
