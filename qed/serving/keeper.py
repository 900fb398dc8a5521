"""Keep an engine running: start it, and restart it with its weights if its process dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from qed.errors import QedError
from qed.serving.engine import Engine
from qed.serving.engine_start import EngineProcess
from qed.serving.messages import EngineInfo, ModelSource
from qed.serving.refusals import RETRY, Refused

MOST_STARTS = 5  # failed starts in a row, after which the server gives up
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between two starts, doubled each time
STEADY_SECONDS = 60.0  # a death after running this long counts as the first one again
PAUSE_SECONDS = 5.0  # to pause a restarted engine, which has nothing to do

State = Literal["starting", "ready", "restarting", "failed", "stopped"]
Build = Callable[[ModelSource, Callable[[str], None]], Engine]


class EngineKeeper:
    """The engine of a server, across restarts.

    Loaded weights, a pause and sleep belong to the server, so they are restored in a restarted engine.

    Args:
        source: the model.
        say: prints a line for people.
        build: creates an engine from a source and a function to call when its process ends.
    """

    def __init__(self, source: ModelSource, say: Callable[[str], None], build: Build = Engine) -> None:
        self.source, self._say, self._build = source, say, build
        self.engine: Engine | None = None
        self.state: State = "starting"
        self.reason = ""
        self.restarts = 0
        self.paused = self.asleep = False
        self._settled = asyncio.Event()  # set unless the engine is starting
        self.given_up = asyncio.Event()  # set when the engine will not be restarted any more
        self._deaths = 0
        self._begun = 0.0
        self._task: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        """The version of the weights."""
        return self.source.version

    async def start(self, process: EngineProcess | None = None) -> None:
        """Start the engine, in the given process if there is one.

        Raises:
            QedError: the model cannot be loaded.
        """
        engine = self._build(self.source, self._note_exit)
        await engine.start(process=process)
        self._use(engine)

    def _use(self, engine: Engine) -> None:
        self.engine, self.state, self.reason = engine, "ready", ""
        self._begun = asyncio.get_running_loop().time()
        self._settled.set()

    async def stop(self) -> None:
        """Stop the engine; pending requests get an error."""
        self.state = "stopped"
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self.engine is not None:
            await self.engine.stop()

    @property
    def info(self) -> EngineInfo:
        """The description of the engine, or of the last one.

        Raises:
            Refused: none has started yet.
        """
        if self.engine is None:
            raise Refused(503, "The engine has not started.", headers=RETRY)
        return self.engine.info

    async def check(self, seconds: float) -> None:
        """Return once the engine's loop has answered; wait for an engine that is starting.

        Raises:
            QedError: it has not answered within `seconds`, or will not be restarted any more.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()
        await self.require().check(max(0.0, deadline - loop.time()))

    def require(self) -> Engine:
        """Return the engine.

        Raises:
            Refused: it is not running, with status 503.
        """
        if self.engine is None or self.state != "ready":
            raise Refused(503, f"The engine is not running ({self.state}). {self.reason}".strip(), headers=RETRY)
        return self.engine

    async def update(self, folder: Path, version: int) -> None:
        """Load weights, also into engines that start later.

        The sender of weights keeps only the newest folder, so an engine that starts later loads its model from there,
        unless the folder has no complete model.

        Raises:
            QedError: they cannot be loaded; the previous ones are kept.
        """
        await self.require().update(folder, version)
        model = self.source.model
        if (folder / "config.json").is_file():
            model = replace(model, name=str(folder), revision="")
        self.source = replace(self.source, model=model, weights=str(folder), version=version)

    async def pause(self, mode: Literal["wait", "abort"], seconds: float) -> None:
        """Pause the engine, and engines that start later.

        Raises:
            PauseTimeout: answers are still running after `seconds`.
        """
        await self.require().pause(mode, seconds)
        self.paused = True

    async def resume(self) -> None:
        """End a pause."""
        self.paused = False
        await self.require().resume()

    async def sleep(self) -> None:
        """Free the device's memory, also in engines that start later."""
        await self.require().sleep()
        self.asleep = True

    async def wake(self) -> None:
        """Move the weights back to the device."""
        self.asleep = False
        await self.require().wake()

    def _note_exit(self, reason: str) -> None:
        """Restart the engine in a task; the engine calls this when its process has ended."""
        if self.state != "ready":
            return  # the start itself raises the error
        life = asyncio.get_running_loop().time() - self._begun
        self._deaths = 1 if life > STEADY_SECONDS else self._deaths + 1
        self.state, self.reason = "restarting", f"Its process has ended: {reason}."
        self._settled.clear()
        self._say(f"The engine's process has ended: {reason}. Restarting it.")
        self._task = asyncio.get_running_loop().create_task(self._restart())

    async def _restart(self) -> None:
        """Start the engine with growing waits until it runs or has failed too often."""
        while self._deaths <= MOST_STARTS:
            if self._deaths > 1:
                await asyncio.sleep(min(FIRST_WAIT * 2 ** (self._deaths - 2), LONGEST_WAIT))
            try:
                await self._start_again()
            except (QedError, OSError) as error:
                self._deaths += 1
                self.reason = f"The last start failed: {error}"
                self._say(f"The engine does not start: {error}")
            else:
                return
        self.state = "failed"
        self._settled.set()
        self.given_up.set()

    async def _start_again(self) -> None:
        engine = self._build(self.source, self._note_exit)
        await engine.start()
        try:
            # Only the client that paused the server or put it to sleep may end that, not a crash.
            if self.paused:
                await engine.pause("abort", PAUSE_SECONDS)
            if self.asleep:
                await engine.sleep()
        except BaseException:
            await engine.stop()
            raise
        self._use(engine)
        self.restarts += 1
        self._say(f"The engine is running again, with the weights of version {self.version}.")
