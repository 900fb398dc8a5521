"""Answer a question with the engine: stream pieces of its answers with their text and log-probs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from qed.errors import QedError
from qed.serving.messages import Generation, Progress, Scoring
from qed.serving.metrics import Metrics
from qed.serving.model_text import AnswerText, ModelText
from qed.serving.protocol import Question

if TYPE_CHECKING:
    from qed.serving.engine import Engine

T = TypeVar("T")
Top = tuple[tuple[int, float], ...]  # the most likely tokens at a position with their log-probs


@dataclass(frozen=True)
class Piece:
    """A piece of the answer number `index`: new text, and new tokens with their log-probs and most likely tokens.

    `finish_reason` is `stop` or `length` in the last piece; `stop_reason` is the stop string or the token id of
    `stop_token_ids` that ended the answer, None for an end token of the model.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    logps: tuple[float, ...]
    top: tuple[Top, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    version: int = 0

    def join(self, other: Piece) -> Piece:
        """Return this piece joined with the next one of the same answer."""
        return replace(
            other,
            text=self.text + other.text,
            tokens=self.tokens + other.tokens,
            logps=self.logps + other.logps,
            top=self.top + other.top,
        )


@dataclass(frozen=True)
class ScoredPrompt:
    """The log-probs of all prompt tokens but the first, and the most likely tokens at their positions."""

    logps: tuple[float, ...]
    top: tuple[Top, ...]


class AnswerReader:
    """Converts the engine's messages about one answer to pieces.

    Args:
        question: the question.
        index: the index of the answer.
        text: the tokenizer of the model.
        ends: the tokens that end the answer.
    """

    def __init__(self, question: Question, index: int, text: ModelText, ends: Collection[int]) -> None:
        self.question, self.index, self._ends = question, index, ends
        sampling = question.sampling
        self._text = AnswerText(
            text, sampling.stop, question.keep_stop, question.skip_special, early=sampling.min_tokens
        )
        self._tokens: list[int] = []

    def read(self, progress: Progress) -> Piece:
        """Convert a message to a piece; a piece with a `finish_reason` is the last."""
        self._tokens += progress.tokens
        reason, stopped = progress.stop_reason, None
        shown = self._tokens
        if reason == "stop" and shown and shown[-1] in self._ends:
            stopped = shown[-1] if shown[-1] in self.question.stop_ids else None
            shown = shown if self.question.keep_stop else shown[:-1]
        new = self._text.read(shown, last=reason is not None)
        return Piece(
            self.index,
            new,
            tuple(progress.tokens),
            tuple(progress.logps),
            tuple(tuple(row) for row in progress.top),
            reason,
            self._text.found or stopped,
            progress.version,
        )


async def follow(
    engine: Engine, question: Question, index: int, text: ModelText, metrics: Metrics
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of the answer number `index`; closing the generator aborts the answer.

    Raises:
        QedError: the engine cannot answer, or has died.
    """
    prompt, answer = divmod(index, question.n)
    ends = (() if question.ignore_ends else engine.info.ends) + question.stop_ids
    reader = AnswerReader(question, index, text, ends)
    generation = Generation(
        question.prompts[prompt],
        question.find_seed(prompt, answer),
        question.sampling,
        question.logprobs or 0,
        question.stream,
        ends,
    )
    with metrics.time_answer(len(generation.prompt)) as timer:
        async with aclosing(engine.generate(generation)) as stream:
            async for progress in stream:
                piece = reader.read(progress)
                timer.count(len(piece.tokens), piece.finish_reason)
                yield piece
                if piece.finish_reason is not None:
                    return
    raise QedError("The engine ended an answer without a reason.")


async def answer_whole(engine: Engine, question: Question, text: ModelText, metrics: Metrics) -> list[Piece]:
    """Return all answers of a question, each as one piece, in order; cancelling this aborts them."""

    async def collect(index: int) -> Piece:
        whole: Piece | None = None
        pieces = follow(engine, question, index, text, metrics)
        async with aclosing(pieces):
            async for piece in pieces:
                whole = piece if whole is None else whole.join(piece)
        assert whole is not None  # the last piece has a reason
        return whole

    return await gather_all([collect(index) for index in range(len(question.prompts) * question.n)])


async def answer_in_pieces(
    engine: Engine, question: Question, text: ModelText, metrics: Metrics
) -> AsyncGenerator[Piece, None]:
    """Yield the pieces of all answers as they are sampled; closing the generator aborts them.

    At most one piece per answer waits for the reader; the rest of an answer stays in the engine's queues.
    """
    count = len(question.prompts) * question.n
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(count)

    async def pump(index: int) -> None:
        pieces = follow(engine, question, index, text, metrics)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    await queue.put(piece)
            await queue.put(None)
        except Exception as error:  # noqa: BLE001 -- the reader of the queue raises it
            await queue.put(error)

    tasks = [asyncio.create_task(pump(index)) for index in range(count)]
    try:
        while count:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                count -= 1
            else:
                yield found
    finally:
        await cancel_all(tasks)


async def score_prompts(engine: Engine, question: Question) -> list[ScoredPrompt]:
    """Return the log-probs of the question's prompts at temperature 1; empty if it does not request them."""
    asked = [question.prompt_logprobs, question.logprobs if question.echo else None]
    wanted = [number for number in asked if number is not None]
    if not wanted:
        return []
    found: dict[int, ScoredPrompt] = {}
    rows = [number for number, prompt in enumerate(question.prompts) if len(prompt) > 1]
    if rows:
        prompts = [question.prompts[row] for row in rows]
        scored = await engine.score(
            Scoring([prompt[:1] for prompt in prompts], [prompt[1:] for prompt in prompts], 1.0, max(wanted))
        )
        for row, score in zip(rows, scored, strict=True):
            found[row] = ScoredPrompt(tuple(score.logps), tuple(tuple(top) for top in score.top))
    # A prompt of one token has no log-prob.
    return [found.get(row, ScoredPrompt((), ())) for row in range(len(question.prompts))]


async def gather_all(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results; the first error, or a cancellation, cancels all."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await cancel_all(tasks)


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
