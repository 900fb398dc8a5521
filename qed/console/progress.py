"""Say now and then how far long work is that has no live line."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from qed.console.live import Console
from qed.guards.signals import check_signals

SAID_AFTER = 5.0  # seconds
SAID_EVERY = 30.0
T = TypeVar("T")


def report_progress(
    items: Iterable[T],
    say: Callable[[str], None],
    doing: str,
    what: str,
    total: int | None = None,
    count: Callable[[], int] | None = None,
) -> Iterator[tuple[int, T]]:
    """Yield items with their numbers, and say now and then how many of them have been read.

    Args:
        items: what is worked on.
        say: prints a line.
        doing: the work, such as `Tokenising`.
        what: the items, such as `problems`.
        total: the number of items, if it is known.
        count: returns the number to print, where an item stands for several.
    """
    due = 0.0
    of = f" of {total:,}" if total is not None else ""
    for number, item in enumerate(items):
        check_signals("load")
        now = time.monotonic()
        if not number:  # the time before may be that of a download
            due = now + SAID_AFTER
        elif now >= due:
            due = now + SAID_EVERY
            say(f"{doing}: {number if count is None else count():,}{of} {what}.")
        yield number, item


@contextmanager
def say_if_slow(say: Callable[[str], None], text: str, seconds: float) -> Iterator[None]:
    """Say a text if what is done in this context takes longer than that."""
    timer = threading.Timer(seconds, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def say_on_stderr(text: str) -> None:
    """Print a line on stderr; of the ranks of a machine only the first does."""
    Console(json=True, quiet=os.environ.get("LOCAL_RANK", "0") != "0").say(text)
