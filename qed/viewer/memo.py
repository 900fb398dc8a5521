"""Cache what was read from files until one of them changes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value")
Stamp = tuple[tuple[int, int] | None, ...]


class FileMemo:
    """A thread-safe LRU cache of values, each with the sizes and times of the files that it was read from.

    Args:
        most: the most values that are kept; the least recently used ones are dropped.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Stamp, Any]] = OrderedDict()

    def read(self, key: Hashable, files: Sequence[Path], compute: Callable[[], Value]) -> Value:
        """Return the value of a key; compute it again if a file has changed since."""
        stamp = tuple(map(stamp_file, files))
        with self._lock:
            known = self._values.get(key)
            if known is not None and known[0] == stamp:
                self._values.move_to_end(key)
                value: Value = known[1]
                return value
        value = compute()
        with self._lock:
            self._values[key] = (stamp, value)
            self._values.move_to_end(key)
            while len(self._values) > self.most:
                self._values.popitem(last=False)
        return value


def stamp_file(path: Path) -> tuple[int, int] | None:
    """Return the size and the modification time of a file; None if there is no file."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns
