"""The engine: the process that owns a served model, and the asyncio client that sends it requests.

The process only computes; its parent speaks HTTP. Requests and replies travel in bulk through a pipe. One thread reads
and another writes the parent's end, so that a slow reader never delays a step.
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import signal
import subprocess
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from qed.errors import DataError, Diverged, ModelError, QedError, UsageError
from qed.serving.engine_start import EngineProcess, start_process
from qed.serving.messages import (
    Abort,
    AnswerAborted,
    Batch,
    EngineDied,
    EngineInfo,
    EngineStats,
    Failure,
    Generation,
    ModelSource,
    Pause,
    PauseMode,
    PauseTimeout,
    Plain,
    Progress,
    Replies,
    Request,
    Requests,
    Scored,
    Scoring,
    Steps,
    Update,
)
from qed.types import Completion

START_SECONDS = 3600.0  # to load a model, which may have to be downloaded
CONTROL_SECONDS = 600.0  # for new weights, scores and the like
# The errors of the process that are raised here with the same class.
KINDS = (QedError, UsageError, DataError, ModelError, Diverged, AnswerAborted, PauseTimeout)
END_SECONDS = 10.0  # for the process to end after a request to stop


class Engine:
    """A model in a separate process. Call all methods from the same event loop.

    Args:
        source: the model, and how it computes.
        on_exit: called in the event loop with the reason if the process ends without `stop`.
    """

    info: EngineInfo

    def __init__(self, source: ModelSource, on_exit: Callable[[str], None] | None = None) -> None:
        self.source, self.on_exit = source, on_exit
        self.version = source.version
        self.alive = False
        self._reason = "it was not started"
        self._stopping = False
        self._calls: dict[int, asyncio.Queue[Any]] = {}
        self._numbers = itertools.count()
        self._outbox: queue.SimpleQueue[tuple[int, Request] | None] = queue.SimpleQueue()

    async def start(self, seconds: float = START_SECONDS, process: EngineProcess | None = None) -> EngineInfo:
        """Start the process and load the model; an engine can be started only once.

        Args:
            seconds: the deadline for both.
            process: a process that was started before and waits for its model; None starts one.

        Raises:
            QedError: the model cannot be loaded, for the reason that the process gives; or `seconds` have passed.
        """
        self._loop = asyncio.get_running_loop()
        self._process, connection = process or start_process()
        self.alive = True
        ready = next(self._numbers)  # the process sends this number once the model is loaded
        self._calls[ready] = asyncio.Queue()
        for target in (self._write, self._read):
            threading.Thread(target=target, args=(connection,), name="engine pipe", daemon=True).start()
        try:
            async with asyncio.timeout(seconds):
                info = await self._take(ready)
        except BaseException as error:
            await self.stop()
            if isinstance(error, TimeoutError):
                raise EngineDied(f"The model was not loaded within {seconds:g} s; the engine was stopped.") from None
            raise
        assert isinstance(info, EngineInfo)
        self.info = info
        return info

    async def stop(self) -> None:
        """End the process; pending requests raise `EngineDied`."""
        self._stopping = True
        if not self.alive:
            return
        self._send(next(self._numbers), Plain("stop"))
        if not await asyncio.to_thread(_wait, self._process, END_SECONDS):
            self._process.kill()
            await asyncio.to_thread(_wait, self._process, END_SECONDS)
        self._end("it was stopped")

    def generate(self, generation: Generation) -> AsyncGenerator[Progress]:
        """Sample an answer; closing the generator aborts it.

        Yields:
            New tokens as they are sampled, or all at once without `generation.stream`; the last has a `stop_reason`.

        Raises:
            UsageError: the answer does not fit into the model's context window, or has invalid parameters.
            AnswerAborted: a pause aborted it.
            EngineDied: the process has ended.
        """
        return self._call(generation)

    async def batch(self, batch: Batch, on_step: Callable[[int], None] | None = None) -> list[list[Completion]]:
        """Sample batches apart from the API's answers, bitwise equal to the native sampler; cancelling aborts them.

        Args:
            batch: prompts, seeds and parameters.
            on_step: called with the number of steps so far, a few times per second.

        Returns:
            The completions of each prompt, one batch after another.

        Raises:
            AnswerAborted: a pause aborted it.
            EngineDied: the process has ended.
        """
        async with aclosing(self._call(batch)) as replies:
            async for reply in replies:
                if not isinstance(reply, Steps):
                    completions: list[list[Completion]] = reply
                    return completions
                if on_step is not None:
                    on_step(reply.count)
        raise AssertionError

    async def score(self, scoring: Scoring) -> list[Scored]:
        """Compute the log-probs of given outputs as the learner does, even while the engine is paused."""
        scored: list[Scored] = await self._ask(scoring, CONTROL_SECONDS)
        return scored

    async def check(self, seconds: float) -> None:
        """Return once the engine's loop has answered.

        Raises:
            QedError: it has not answered within `seconds`.
        """
        await self._ask(Plain("check"), seconds)

    async def pause(self, mode: PauseMode, seconds: float) -> None:
        """Stop starting answers; running ones may finish within `seconds`, or are aborted, by `mode`.

        Raises:
            PauseTimeout: answers are still running after `seconds`; the engine is not paused.
        """
        await self._ask(Pause(mode, seconds), seconds + CONTROL_SECONDS)

    async def resume(self) -> None:
        """Resume starting answers."""
        await self._ask(Plain("resume"), CONTROL_SECONDS)

    async def update(self, folder: Path, version: int) -> None:
        """Load the weights of a complete folder, all or nothing; running answers finish first, and no new ones start.

        Raises:
            ModelError: the folder is incomplete or does not fit the model; the weights and the version are unchanged.
        """
        await self._ask(Update(str(folder), version), CONTROL_SECONDS)
        self.version = version

    async def sleep(self) -> None:
        """Free the device's memory after the running answers; others wait until `wake`. On CPU the weights stay."""
        await self._ask(Plain("sleep"), CONTROL_SECONDS)

    async def wake(self) -> None:
        """Move the weights back to the device."""
        await self._ask(Plain("wake"), CONTROL_SECONDS)

    async def read_stats(self) -> EngineStats:
        """Return the engine's counts."""
        stats: EngineStats = await self._ask(Plain("stats"), CONTROL_SECONDS)
        return stats

    async def _ask(self, request: Request, seconds: float) -> Any:
        """Return the only reply to a request."""
        try:
            async with asyncio.timeout(seconds), aclosing(self._call(request)) as replies:
                return await anext(replies)
        except TimeoutError:
            name = request.kind if isinstance(request, Plain) else type(request).__name__.lower()
            raise QedError(f"The engine did not answer '{name}' within {seconds:g} s: its loop hangs.") from None

    async def _call(self, request: Request) -> AsyncGenerator[Any]:
        """Send a request and yield its replies; closing the iterator before the last one aborts it."""
        if not self.alive:
            raise self._died()
        call = next(self._numbers)
        self._calls[call] = asyncio.Queue()
        self._send(call, request)
        ended = False
        try:
            while not ended:
                reply = await self._take(call)
                ended = not isinstance(reply, Steps) and getattr(reply, "stop_reason", "") is not None
                yield reply
        except QedError:
            ended = True
            raise
        finally:
            del self._calls[call]
            if not ended and self.alive:
                self._send(next(self._numbers), Abort(call))

    async def _take(self, call: int) -> Any:
        reply = await self._calls[call].get()
        if isinstance(reply, Failure):
            raise _build_error(reply)
        if isinstance(reply, EngineDied):
            raise EngineDied(str(reply))
        return reply

    def _send(self, call: int, request: Request) -> None:
        self._outbox.put((call, request))

    def _write(self, connection: Connection) -> None:
        """Send the requests in the outbox; runs in a thread."""
        with suppress(OSError):
            connection.send(self.source)
            while (first := self._outbox.get()) is not None:
                requests: Requests = [first]
                with suppress(queue.Empty):
                    while (more := self._outbox.get_nowait()) is not None:
                        requests.append(more)
                connection.send(requests)

    def _read(self, connection: Connection) -> None:
        """Pass replies to the event loop; once the pipe closes, find out how the process ended. Runs in a thread."""
        with suppress(RuntimeError):  # the event loop was closed
            with suppress(EOFError, OSError):
                while True:
                    self._loop.call_soon_threadsafe(self._deliver, connection.recv())
            if not _wait(self._process, END_SECONDS):
                self._process.kill()
                _wait(self._process, END_SECONDS)
            self._loop.call_soon_threadsafe(self._end, _describe_exit(self._process.returncode))

    def _deliver(self, replies: Replies) -> None:
        for call, reply in replies:
            if call in self._calls:
                self._calls[call].put_nowait(reply)

    def _end(self, reason: str) -> None:
        if not self.alive:
            return
        self.alive, self._reason = False, reason
        self._outbox.put(None)
        for replies in self._calls.values():
            replies.put_nowait(self._died())
        if self.on_exit is not None and not self._stopping:
            self.on_exit(reason)

    def _died(self) -> EngineDied:
        if self._stopping:
            return EngineDied("The engine is stopping.")
        return EngineDied(f"The engine's process is not running: {self._reason}.")


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return whether a process ends within some seconds."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        killed = " (the system kills a process when memory runs out)" if code == -signal.SIGKILL else ""
        return f"it was killed by {signal.Signals(-code).name}{killed}"
    return f"it ended with exit code {code}; its last lines above say why"


def _build_error(failure: Failure) -> QedError:
    """Build the error that a failure describes; an unexpected one becomes a QedError that names it."""
    kind = next((kind for kind in KINDS if kind.__name__ == failure.kind), None)
    return kind(failure.message) if kind else QedError(f"The engine failed with {failure.kind}: {failure.message}")
