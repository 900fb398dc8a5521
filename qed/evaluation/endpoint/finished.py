"""Wait for many concurrent requests."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

from qed.grading.judge import POLL_SECONDS
from qed.guards.signals import check_signals

T = TypeVar("T")


def iterate_finished(futures: Collection[Future[T]], point: str) -> Iterator[Future[T]]:
    """Yield each future when it is done, checking for signals at `point` in the meantime.

    The cost per future does not grow with their number, unlike that of `concurrent.futures.wait`.
    """
    finished: SimpleQueue[Future[T]] = SimpleQueue()
    for future in futures:
        future.add_done_callback(finished.put)
    for _ in futures:
        yield _take(finished, point)


def _take(finished: SimpleQueue[Future[T]], point: str) -> Future[T]:
    while True:
        try:
            future = finished.get(timeout=POLL_SECONDS)
        except Empty:
            check_signals(point, progress=False)
        else:
            check_signals(point)
            return future
