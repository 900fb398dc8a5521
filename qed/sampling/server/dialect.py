"""The common interface of inference servers: sample, score, load new weights, and report health.

A dialect is one engine's implementation. Requests are sent once; the balancer decides whether to retry them.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from qed.errors import QedError, UsageError
from qed.net.client import HttpClient, RequestError
from qed.net.deadlines import CancelScope
from qed.sampling.base import PromptBatch, PromptRequest, Sampling
from qed.sampling.hf import find_stop_ids
from qed.types import Completion

KEY_VARIABLE = "QED_SERVE_TOKEN"  # environment variable with the key of the servers that a run samples from
CONTROL = 60.0  # seconds for a request that changes a server's state without computing
LOADING = 1800.0  # seconds to load weights
SETTLE = 1.0  # seconds for replies already sent by a paused server to arrive
MAX_REPLY = 2**30  # bytes of a batch's reply
BUSY = {408, 425, 429, 503}  # HTTP status of a healthy server that does not accept this request yet
LOST = {500, 502, 504, 529}
Mode = Literal["wait", "abort"]


class ServerLost(Exception):
    """Raised if a server did not answer a request properly; the request is retried elsewhere or later.

    Args:
        reason: description that names the server.
        kind: `lost`: it died or hangs; `busy`: it accepts no requests at present; `stale`: it has old weights.
    """

    def __init__(self, reason: str, kind: Literal["lost", "busy", "stale"] = "lost") -> None:
        super().__init__(reason)
        self.kind = kind


class AskAgain(Exception):
    """Raised if a pause ended a request before its answer was complete."""


class NotDrained(QedError):
    """Raised if a server could not finish its running answers within the deadline of a pause."""


@dataclass(frozen=True)
class Capabilities:
    """What a server is and can do.

    `records` tells whether it reports the support of truncated distributions, `exact_logps` whether it says that its
    log-probs equal the learner's; `window` is its longest sequence, including the prompt.
    """

    engine: str
    engine_version: str
    model: str
    window: int
    precision: str = ""
    exact_logps: bool = False
    records: bool = False
    streams: bool = False
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """The answers requested from a server in one request; requests with the same `session` continue its answers."""

    batches: Sequence[PromptBatch]
    session: str = ""

    @property
    def tokens(self) -> int:
        """The largest number of tokens of its prompts and answers together."""
        return sum(len(each.prompt) + len(each.seeds) * each.sampling.max_tokens for each in self.list_prompts())

    def list_prompts(self) -> Iterator[PromptRequest]:
        """Yield the prompts of all batches."""
        for batch in self.batches:
            yield from batch.list_prompts()


@dataclass(frozen=True)
class Reader:
    """Determines how an answer ends: the tokenizer that finds stop strings, and the end tokens."""

    tokenizer: Any
    ends: tuple[int, ...]
    _found: dict[tuple[str, ...], tuple[int, ...]] = field(default_factory=dict, repr=False)

    def find_ends(self, stop: tuple[str, ...]) -> tuple[int, ...]:
        """Return the tokens that end an answer: `ends`, and added tokens that contain a stop string."""
        if stop not in self._found:
            self._found[stop] = (*self.ends, *find_stop_ids(self.tokenizer, stop))
        return self._found[stop]


@dataclass(frozen=True)
class Flight:
    """A pending request: its cancel scopes, and the server's weights and adapter when it was sent."""

    scopes: tuple[CancelScope, ...]
    version: int | None
    adapter: str | None


class Server(ABC):
    """A server in one of the dialects. It may be used from several threads.

    Args:
        client: HTTP client for its address.
        capabilities: capabilities found by `recognise`.
        reader: determines how answers end.
        seconds: timeout of a request without progress.
    """

    dialect: str
    batches = False  # whether it takes whole batches, so that a single server is bit-identical to this process

    def __init__(self, client: HttpClient, capabilities: Capabilities, reader: Reader, seconds: float) -> None:
        self.client, self.capabilities, self.reader, self.seconds = client, capabilities, reader, seconds
        self.url = client.url
        self.version: int | None = None  # of its weights, if known
        self.adapter: str | None = None  # name of the LoRA adapter that it samples with
        self.healthy, self.paused = True, False
        self._flights: dict[int, CancelScope] = {}
        self._changed = threading.Condition()

    @abstractmethod
    def complete(
        self, job: Job, on_progress: Callable[[], None], scope: CancelScope | None = None
    ) -> list[list[Completion]]:
        """Sample the answers of a job; return all of them or raise.

        Args:
            job: the prompts, seeds and sampling parameters.
            on_progress: called when the server makes progress.
            scope: cancels the request.

        Raises:
            ServerLost: the server did not answer.
            AskAgain: the server was paused during the request.
            QedError: the server rejects the request, or its answer contradicts itself.
        """

    @abstractmethod
    def score(
        self, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], temperature: float = 1.0
    ) -> list[list[float]]:
        """Return the log-probs of outputs given prompts, under the full distribution at a temperature."""

    def tokenize(self, text: str) -> list[int] | None:
        """Return the token ids of a text without special tokens; None if the server cannot tokenise."""
        body = {"model": self.capabilities.model, "prompt": text, "add_special_tokens": False}
        try:
            found = self.client.ask("POST", "/tokenize", body, seconds=CONTROL)["tokens"]
            return [int(token) for token in found]
        except (RequestError, KeyError, TypeError, ValueError):
            return None

    def stream(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, on_tokens: Callable[[list[int]], None]
    ) -> Completion:
        """Sample one answer and stream it as it grows; see `HFSampler.stream`."""
        ((completion,),) = self.complete(Job([PromptBatch([prompt], [[seed]], sampling)]), lambda: None)
        on_tokens(list(completion.tokens))
        return completion

    @abstractmethod
    def alive(self, seconds: float) -> None:
        """Check that the server is alive with a request that needs little or no computation.

        Raises:
            ServerLost: it did not answer in time.
        """

    @abstractmethod
    def load_weights(self, folder: Path, version: int) -> None:
        """Load weights of a version from a folder in Hugging Face format.

        Raises:
            QedError: the server could not load them and keeps its old ones.
        """

    @abstractmethod
    def load_adapter(self, name: str, folder: Path) -> None:
        """Use a LoRA adapter for sampling from now on; its name has the form name@version."""

    @abstractmethod
    def clear_caches(self) -> None:
        """Clear the cached keys and values of all prompts, which belong to the old weights."""

    def sleep(self) -> None:
        """Free the device's memory, if the engine can."""
        self.ask("POST", "/sleep?level=1")

    def wake(self) -> None:
        """Allocate the device's memory again."""
        self.ask("POST", "/wake_up")

    def read_version(self) -> int | None:
        """Return the version of the weights; None if unknown."""
        return self.version

    def note_weights(self, version: int, adapter: str | None = None) -> None:
        """Record which weights another process has loaded into the server."""
        self.version, self.adapter = version, adapter

    def pause(self, mode: Mode, seconds: float) -> None:
        """Stop sampling until `resume`: send no new requests, and end the running ones.

        Args:
            mode: `wait` lets running answers finish; `abort` ends them, and they are retried after `resume`.
            seconds: deadline.

        Raises:
            NotDrained: running answers have not finished; the server may or may not be paused.
            ServerLost: the server did not answer.
        """
        with self._changed:
            self.paused = True
        self._pause(mode, seconds)
        # Requests that arrived after the pause wait at the server: later weights would answer them, but under the
        # version of the weights before.
        if not self.wait_for_flights(SETTLE):
            with self._changed:
                flights = list(self._flights.values())
            for scope in flights:
                scope.cancel()

    def resume(self) -> None:
        """Resume sampling."""
        try:
            self._resume()
        finally:
            # Even if the server is gone: once it is back, requests find out whether it is still paused.
            with self._changed:
                self.paused = False

    def wait_for_flights(self, seconds: float) -> bool:
        """Wait until no request is pending, and return whether none is."""
        end = time.monotonic() + seconds
        with self._changed:
            while self._flights and (left := end - time.monotonic()) > 0:
                self._changed.wait(left)
            return not self._flights

    def ask(self, method: str, path: str, content: Any = None, seconds: float = CONTROL) -> Any:
        """Send a request other than for sampling, and return its reply.

        Raises:
            ServerLost: there was no reply.
            QedError: the server rejects it.
        """
        try:
            return self.client.ask(method, path, content, seconds=seconds, max_bytes=MAX_REPLY)
        except RequestError as error:
            raise self.explain(error) from error

    def close(self) -> None:
        """Cancel all requests."""
        self.client.close()

    @contextmanager
    def fly(self, scope: CancelScope | None) -> Iterator[Flight]:
        """Track a request that is sent within the context.

        Raises:
            AskAgain: the server is paused, or was paused before the answer was complete.
            ServerLost, QedError: in place of the block's RequestError.
        """
        own = CancelScope()
        with self._changed:
            if self.paused:
                raise AskAgain
            self._flights[id(own)] = own
            flight = Flight((own, scope) if scope else (own,), self.version, self.adapter)
        try:
            yield flight
        except RequestError as error:
            if error.kind == "timed out":
                raise ServerLost(f"{error}; a larger sampling.request_seconds allows more") from error
            raise self.explain(error) from error
        finally:
            with self._changed:
                del self._flights[id(own)]
                self._changed.notify_all()

    def explain(self, error: RequestError) -> Exception:
        """Return the error to raise for a failed request."""
        if error.kind == "cancelled":
            return AskAgain()
        if error.status in (401, 403):
            return UsageError(
                f"The server {self.url} refuses the key: {error}. Put its key into the environment variable "
                f"{KEY_VARIABLE}."
            )
        if error.kind != "status" or error.status in LOST:
            return ServerLost(str(error))
        if error.status in BUSY:
            return ServerLost(str(error), "busy")
        return QedError(f"The server {self.url} does not fulfil the request: {error}.")

    @abstractmethod
    def _pause(self, mode: Mode, seconds: float) -> None: ...

    @abstractmethod
    def _resume(self) -> None: ...


def find_status(error: BaseException) -> int:
    """Return the HTTP status behind an error of `Server.ask`; 0 if there was no reply."""
    cause = error.__cause__
    return cause.status if isinstance(cause, RequestError) else 0


def has_timed_out(error: BaseException) -> bool:
    """Return whether an error of `Server.ask` is a timeout."""
    cause = error.__cause__
    return isinstance(cause, RequestError) and cause.kind == "timed out"
