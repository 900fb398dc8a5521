"""The loop of the engine's process: one thread owns the model, and handles requests between two steps."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import asdict
from multiprocessing.connection import Connection

from qed.errors import QedError
from qed.sampling.hf import prepare_for_sampling
from qed.serving.engine_answers import Answers
from qed.serving.engine_jobs import BatchJob, Counts, GivenUp
from qed.serving.engine_model import EngineModel
from qed.serving.messages import (
    Abort,
    AnswerAborted,
    Batch,
    EngineStats,
    Failure,
    Generation,
    ModelSource,
    Pause,
    PauseTimeout,
    Plain,
    Replies,
    Reply,
    Request,
    Scoring,
    Update,
)

READY = 0  # the call number of the message that the model is loaded


def run_engine(connection: Connection) -> None:
    """Load the model whose source is received first, and answer requests until the pipe is closed."""
    source = connection.recv()
    assert isinstance(source, ModelSource)
    try:
        loop = EngineLoop(connection, EngineModel(source))
    except Exception as error:  # noqa: BLE001 -- whatever it is, the other side reports it
        connection.send([(READY, build_failure(error))])
        return
    loop.run()


def build_failure(error: BaseException) -> Failure:
    """Describe an error."""
    return Failure(type(error).__name__, str(error) or "no message")


class EngineLoop:
    """Samples, and handles requests between two steps.

    A request that changes or moves the weights waits until nothing runs, and no new answer starts before it.

    Args:
        connection: the connection to the requesting process.
        model: the model of the engine.
    """

    def __init__(self, connection: Connection, model: EngineModel) -> None:
        self.connection, self.model = connection, model
        # Instead of `connection.poll`, which registers the descriptor again at each of these many calls.
        self.poller = select.poll()
        self.poller.register(connection.fileno(), select.POLLIN | select.POLLHUP)
        self.counts = Counts()
        self.outbox: Replies = [(READY, model.describe(os.getpid()))]
        self.answers = Answers(model, self.counts, self.send, self.fail, self._serve_meanwhile)
        self.batches: deque[tuple[int, Batch]] = deque()
        self.job: BatchJob | None = None
        self.scorings: deque[tuple[int, Scoring]] = deque()
        self.changes: deque[tuple[int, Update | Plain]] = deque()  # changes that wait until nothing runs
        self.pausing: dict[int, float] = {}  # pauses that wait until nothing runs, with their deadlines
        self.paused = self.asleep = self.stopped = False
        self.prepared: ExitStack | None = None  # the contexts in which the model samples

    def send(self, call: int, reply: Reply) -> None:
        """Queue a reply, to be sent with the others of this step."""
        self.outbox.append((call, reply))

    def fail(self, call: int, error: BaseException) -> None:
        """Reply with the reason why a call failed."""
        self.send(call, build_failure(error))

    def run(self) -> None:
        """Run until a request to stop.

        Raises:
            EOFError: the other side has closed the pipe.
        """
        while not self.stopped:
            self._flush()
            self._receive(wait=not self._has_work())
            self._change()
            self._score()
            self._sample()

    @property
    def busy(self) -> bool:
        """Return whether answers are being sampled."""
        return bool(self.answers.running) or self.job is not None

    @property
    def open(self) -> bool:
        """Return whether answers may start."""
        return not (self.paused or self.asleep or self.changes)

    def _has_work(self) -> bool:
        waits = bool(self.answers.waiting or self.batches) and self.open
        return self.busy or waits or bool(self.scorings or self.changes or self.pausing)

    def _flush(self) -> None:
        if self.outbox:
            replies, self.outbox = self.outbox, []
            self.connection.send(replies)

    def _receive(self, wait: bool) -> None:
        while wait or self.poller.poll(0):
            wait = False
            for call, request in self.connection.recv():
                try:
                    self._take(call, request)
                except QedError as error:
                    self.fail(call, error)

    def _take(self, call: int, request: Request) -> None:
        """Handle quick requests at once, and queue the others."""
        match request:
            case Generation():
                self.answers.add(call, request)
            case Batch():
                for part in request.parts:
                    self.model.require_valid(part.sampling, [seed for own in part.seeds for seed in own])
                    for prompt, _, sampling in part.list_prompts():
                        self.model.require_fitting(prompt, sampling.max_tokens)
                self.batches.append((call, request))
            case Scoring():
                self.scorings.append((call, request))
            case Update() | Plain(kind="sleep" | "wake"):
                self.changes.append((call, request))
            case _:
                self._control(call, request)

    def _control(self, call: int, request: Abort | Pause | Plain) -> None:
        if isinstance(request, Abort):
            return self._abort(request.call)
        if isinstance(request, Pause):
            return self._pause(call, request)
        if request.kind == "stop":
            self.stopped = True
        elif request.kind == "resume":
            self.paused = False
            for waiting in self.pausing:
                self.fail(waiting, PauseTimeout("The engine was resumed while a pause was pending."))
            self.pausing.clear()
        self.send(call, self._build_stats() if request.kind == "stats" else None)

    def _abort(self, call: int) -> None:
        if self.answers.abort(call):
            return
        before = len(self.batches)
        self.batches = deque(pair for pair in self.batches if pair[0] != call)
        running = self.job is not None and self.job.call == call
        if running:
            self.job = None
        self.counts.aborted += running or len(self.batches) < before

    def _pause(self, call: int, request: Pause) -> None:
        self.paused = True
        if request.mode == "abort":
            reason = "The answer was aborted because the server paused for new weights. Send the request again."
            self.answers.abort_running(reason)
            if self.job is not None:
                self.fail(self.job.call, AnswerAborted(reason))
                self._abort(self.job.call)
        self.pausing[call] = time.monotonic() + request.seconds

    def _change(self) -> None:
        """Answer pauses that are complete or overdue, and apply pending changes once nothing runs."""
        for call, deadline in list(self.pausing.items()):
            if not self.busy:
                self.send(call, None)
            elif time.monotonic() >= deadline:
                self.paused = False
                self.fail(call, PauseTimeout("Answers still ran at the deadline, so the engine is not paused."))
            else:
                continue
            del self.pausing[call]
        while self.changes and not self.busy:
            self._release()
            call, request = self.changes.popleft()
            try:
                self._apply(request)
                self.send(call, None)
            except Exception as error:  # noqa: BLE001 -- the weights are as before, and the caller gets the error
                self.fail(call, error)

    def _apply(self, request: Update | Plain) -> None:
        if isinstance(request, Update):
            self.model.update(request.folder, request.version)
        elif request.kind == "sleep":
            self.model.sleep()
            self.asleep = True
        else:
            self.model.wake()
            self.asleep = False

    def _score(self) -> None:
        while self.scorings:
            call, request = self.scorings.popleft()
            try:
                if self.asleep:
                    raise QedError("The engine is asleep, so it cannot score. Wake it first.")
                self.outbox.append((call, self.model.score(request)))
            except Exception as error:  # noqa: BLE001 -- the request fails, not the engine
                self.fail(call, error)

    def _sample(self) -> None:
        """Compute one step of the answers, and one of the batch."""
        if self.open and self.job is None and self.batches:
            call, batch = self.batches.popleft()
            self.job = BatchJob(call, batch, self.model, self.send, self._watch_batch)
        if not self.busy and not (self.open and self.answers.waiting):
            return
        self._prepare()
        self.answers.advance(self.open)
        job = self.job
        if job is None:
            return
        try:
            if job.advance():
                self.job = None
        except GivenUp:
            pass
        except Exception as error:
            if self.answers.is_fatal(error):
                raise
            self.fail(job.call, error)
            self.job = None

    def _prepare(self) -> None:
        """Enter the contexts in which the model samples, and keep them: leaving drops autocast's cached casts."""
        if self.prepared is None:
            self.prepared = ExitStack()
            self.prepared.enter_context(prepare_for_sampling(self.model.model, self.model.precision))

    def _release(self) -> None:
        """Free everything that was computed from the weights."""
        self.answers.release()
        if self.prepared is not None:
            self.prepared.close()
            self.prepared = None

    def _serve_meanwhile(self) -> None:
        """Answer requests that need no weights while the hf sampler completes its batch."""
        self._receive(wait=False)
        self._flush()
        if self.stopped:
            raise GivenUp("The engine is stopping.")

    def _watch_batch(self) -> None:
        self._serve_meanwhile()
        if self.job is None:
            raise GivenUp("The batch was aborted.")

    def _build_stats(self) -> EngineStats:
        job = 1 if self.job is not None else 0
        return EngineStats(
            running=len(self.answers.running) + job,
            waiting=len(self.answers.waiting) + len(self.batches),
            version=self.model.version,
            paused=self.paused,
            asleep=self.asleep,
            **asdict(self.counts),
        )
