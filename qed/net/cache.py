"""Cache the replies of a server by request, in memory and in a file that several processes may share."""

from __future__ import annotations

import hashlib
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any


class ReplyCache:
    """A cache of replies by request; thread-safe.

    Args:
        path: a JSON Lines file, read at the start and appended to; None keeps replies in memory only.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._replies = dict(_read_lines(path)) if path is not None and path.exists() else {}

    def find(self, request: Any) -> Any:
        """Return the cached reply to a request, which is any JSON value; None if there is none."""
        with self._lock:
            return self._replies.get(_hash_request(request))

    def add(self, request: Any, reply: Any) -> None:
        """Cache the reply to a request; a JSON value that is not None."""
        key = _hash_request(request)
        with self._lock:
            self._replies[key] = reply
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                # One write per line in append mode, so that lines of several processes do not mix. First end a line
                # that an earlier process left incomplete.
                with self.path.open("ab", buffering=0) as file:
                    torn = file.tell() > 0 and not _ends_with_newline(self.path)
                    file.write((b"\n" if torn else b"") + json.dumps([key, reply]).encode() + b"\n")


def _hash_request(request: Any) -> str:
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def _read_lines(path: Path) -> list[tuple[str, Any]]:
    """Read the entries of a file; a line left incomplete by a crash is ignored, and its request is sent again."""
    entries = []
    for line in path.read_bytes().splitlines():
        with suppress(ValueError, TypeError):
            key, reply = json.loads(line)
            entries.append((str(key), reply))
    return entries


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read(1) == b"\n"
