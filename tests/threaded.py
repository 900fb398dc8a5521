"""Ranks that are threads of one process: what `Parallel` exchanges goes through memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from qed.training.parallel import Parallel

T = TypeVar("T")
PATIENCE = 60.0  # seconds; a rank that does not come to a meeting fails the test


@dataclass
class Meeting:
    """Where the ranks exchange values: each puts one down, waits for the others, and takes all."""

    world: int
    values: list[Any] = field(init=False)
    barrier: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.values = [None] * self.world
        self.barrier = threading.Barrier(self.world, timeout=PATIENCE)

    def exchange(self, rank: int, value: Any) -> list[Any]:
        """The values of all ranks, in their order."""
        self.values[rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found


@dataclass(frozen=True, eq=False)
class ThreadParallel(Parallel):
    """A rank that is a thread, of a replicated model."""

    meeting: Meeting = field(default_factory=lambda: Meeting(1))

    def _gather(self, value: T) -> list[T]:
        return self.meeting.exchange(self.rank, value)

    def sum_in_place(self, tensor: Tensor) -> Tensor:
        """Add up a tensor over the ranks, in their order."""
        parts = self.meeting.exchange(self.rank, tensor.clone())
        return tensor.copy_(sum(parts[1:], parts[0]))


def run_threads(work: Callable[[Parallel], T], world: int) -> list[T]:
    """Do the same work on every rank; the results in order. The first error is raised."""
    meeting = Meeting(world)

    def begin(rank: int) -> T:
        try:
            return work(ThreadParallel(rank, world, rank, world, meeting=meeting))
        except BaseException:
            meeting.barrier.abort()  # the others must not wait for this one
            raise

    with ThreadPoolExecutor(world) as pool:
        running = [pool.submit(begin, rank) for rank in range(world)]
    errors = [error for each in running if (error := each.exception()) is not None]
    for error in sorted(errors, key=lambda one: isinstance(one, threading.BrokenBarrierError)):
        raise error
    return [each.result() for each in running]
