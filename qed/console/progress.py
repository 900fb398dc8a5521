"""Report the progress of long work that has no live line."""

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
    """Yield items with their numbers, and print at intervals how many of them are done.

    Args:
        items: the items to process.
        say: prints a line.
        doing: the work, such as `Tokenising`.
        what: what the items are, such as `problems`.
        total: the number of items, if known.
        count: returns the number to print, if an item stands for several.
    """
    due = 0.0
    of = f" of {total:,}" if total is not None else ""
    for number, item in enumerate(items):
        check_signals("load")
        now = time.monotonic()
        if not number:  # the first item may have waited for a download
            due = now + SAID_AFTER
        elif now >= due:
            due = now + SAID_EVERY
            say(f"{doing}: {number if count is None else count():,}{of} {what}.")
        yield number, item


@contextmanager
def say_if_slow(say: Callable[[str], None], text: str, seconds: float) -> Iterator[None]:
    """Print a text if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, say, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def say_on_stderr(text: str) -> None:
    """Print a line on stderr; only the first rank of a machine prints."""
    Console(json=True, quiet=os.environ.get("LOCAL_RANK", "0") != "0").say(text)
