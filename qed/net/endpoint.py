"""JSON to and from an HTTP server: requests have a deadline, failures that may pass are retried, replies bounded."""

from __future__ import annotations

import json
import math
import random
import time
from dataclasses import dataclass
from itertools import count
from typing import Any

from qed.errors import UsageError
from qed.net.client import MAX_BYTES, HttpClient, Reply, RequestError, read_reason

__all__ = ["MAX_BYTES", "PASSING", "Endpoint", "RequestError"]

PASSING = {408, 425, 429, 500, 502, 503, 504, 529}  # states of a server that may pass
BUSY = 429  # the state of a server that has too much to do, and answers others meanwhile
AWAY = {BUSY, 502, 503, 529}  # those of a server that starts, or has too much to do
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between two attempts; the wait doubles from the first to the longest


@dataclass
class Endpoint:
    """A server's address that takes JSON and returns JSON. It may be used from several threads.

    Args:
        url: of the form http://host:8000/v1/classify.
        key_variable: the environment variable with the key, sent as a bearer token; empty or unset sends none.
        seconds: deadline of an attempt.
        attempts: the most attempts of a request.
        patience: a server that has answered before and cannot be reached is asked again until it has been away for so
            many seconds, in however many attempts. One that answers other requests meanwhile is not away.

    Raises:
        UsageError: the address is not one of http or https.
    """

    url: str
    key_variable: str = ""
    seconds: float = 60.0
    attempts: int = 4
    patience: float = 0.0

    def __post_init__(self) -> None:
        """Refuse an address that cannot be requested."""
        self._client = HttpClient(self.url, self.key_variable)
        self._answered_at: float | None = None
        self._away_since: float | None = None
        if not self.seconds > 0 or self.attempts < 1:
            raise UsageError("A request needs a deadline above 0 seconds, and at least one attempt.")

    def post(self, content: Any) -> Any:
        """Send a value as JSON and return the reply.

        Raises:
            RequestError: no attempt has succeeded, the server refuses the request, or the endpoint is closed.
        """
        return self._ask("POST", content)

    def get(self) -> Any:
        """Return what is at the address; see `post`."""
        return self._ask("GET", None)

    def close(self) -> None:
        """End all requests, also those that wait for their next attempt."""
        self._client.close()

    def _ask(self, method: str, content: Any) -> Any:
        failed_at = math.inf
        for attempt in count(1):
            try:
                reply = self._client.request(method, "", content, seconds=self.seconds, max_bytes=MAX_BYTES)
                value = self._read_reply(reply)
            except RequestError as error:
                may_pass = error.kind in ("refused", "timed out", "closed") or error.status in PASSING
                if not may_pass:
                    raise
                failed_at = min(failed_at, time.monotonic())
                is_away = error.kind == "refused" or error.status in AWAY
                since = math.inf if error.status == BUSY else failed_at
                if attempt >= self.attempts and not (is_away and self._may_return(since)):
                    raise RequestError(f"{error} ({attempt} attempts)", error.kind, error.status) from error
                doubled = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** min(attempt - 1, 99)) * random.uniform(0.5, 1.0)
                if self._client.scope.wait(max(doubled, error.wait)):
                    break
            else:
                self._answered_at, self._away_since = time.monotonic(), None
                return value
        raise RequestError("the request was cancelled", "cancelled")

    def _may_return(self, since: float) -> bool:
        """Return whether a server is waited for: it was there before a time and not since, and is not away for long."""
        now, answered_at = time.monotonic(), self._answered_at
        self._away_since = now if self._away_since is None else self._away_since
        return answered_at is not None and answered_at < since and now - self._away_since < self.patience

    def _read_reply(self, reply: Reply) -> Any:
        name = self._client.name
        if reply.status in PASSING:
            wait = _read_wait(reply.headers.get("retry-after"))
            raise RequestError(f"{name}: status {reply.status}", "status", reply.status, wait)
        if not 200 <= reply.status < 300:
            moved = reply.headers.get("location")
            shown = read_reason(reply.body) or (f"it points to {moved}" if moved else "it gives no reason")
            raise RequestError(
                f"{name} refuses the request with status {reply.status}: {shown}", "status", reply.status
            )
        try:
            return json.loads(reply.body)
        except ValueError as error:
            raise RequestError(f"{name}: the reply is not JSON", "closed") from error


def _read_wait(header: str | None) -> float:
    """Return the seconds that a server asks to wait; a date or nonsense counts as 0."""
    try:
        return min(LONGEST_WAIT, max(0.0, float(header or 0)))
    except ValueError:
        return 0.0
