"""What the parts of an engine's loop share, and calls of `generate_batches`, computed step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from qed.errors import QedError
from qed.models.layer_windows import count_fixed_rotation_tokens
from qed.sampling.base import generate_batches
from qed.sampling.native.sampler import NativeSampler
from qed.serving.engine_model import EngineModel
from qed.serving.messages import Batch, Reply, Steps
from qed.types import Completion

STEP_SECONDS = 0.2  # between two messages about the steps of a batch

Send = Callable[[int, Reply], None]
Fail = Callable[[int, BaseException], None]


class GivenUp(QedError):
    """The answers that the hf sampler is sampling are no longer wanted."""


@dataclass
class Counts:
    """What the engine has done since its start."""

    finished: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0


class BatchJob:
    """A call of `generate_batches`, computed step by step.

    Args:
        call: the number of the call.
        batch: the arguments of the call.
        model: the model of the engine.
        send: sends a reply to the call.
        on_hf_step: called between two steps of the hf sampler; an exception ends the batch.
    """

    def __init__(self, call: int, batch: Batch, model: EngineModel, send: Send, on_hf_step: Callable[[], None]) -> None:
        self.call, self.batch, self.model, self.send = call, batch, model, send
        self.on_hf_step = on_hf_step
        self.count, self.told = 0, 0.0
        self.steps = self._run()

    def advance(self) -> bool:
        """Compute a step; return whether it was the last."""
        return next(self.steps, True)

    def _run(self) -> Iterator[bool]:
        batch, sampler = self.batch, self.model.sampler
        self.model.keep_for(batch.session)
        longest = max(each.longest for each in batch.parts)
        if isinstance(sampler, NativeSampler) and longest <= count_fixed_rotation_tokens(self.model.model.config):
            steps = sampler.iterate(batch.parts)
            while True:
                try:
                    next(steps)
                except StopIteration as end:
                    completions: list[list[list[Completion]]] = end.value
                    break
                self._count_step()
                yield False
        else:
            sampler.on_step = self._watch_hf
            completions = generate_batches(sampler, batch.parts)
        version = self.model.version
        rows = chain.from_iterable(completions)
        self.send(self.call, [[replace(each, version=version) for each in own] for own in rows])
        yield True

    def _count_step(self) -> None:
        self.count += 1
        now = time.monotonic()
        if now - self.told >= STEP_SECONDS:
            self.told = now
            self.send(self.call, Steps(self.count))

    def _watch_hf(self) -> None:
        self._count_step()
        self.on_hf_step()
