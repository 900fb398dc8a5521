"""JSON over HTTP: requests have a deadline, transient failures are retried, and the size of replies is limited."""

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

PASSING = {408, 425, 429, 500, 502, 503, 504, 529}  # transient status codes, which are retried
BUSY = 429  # the status of an overloaded server, which still answers other requests
AWAY = {BUSY, 502, 503, 529}  # the statuses of a server that is starting or overloaded
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds between two attempts; the wait doubles from the first to the longest


@dataclass
class Endpoint:
    """A server's address that accepts and returns JSON; thread-safe.

    Args:
        url: the address, such as http://host:8000/v1/classify.
        key_variable: the environment variable with the key, sent as a bearer token; empty or unset sends none.
        seconds: the deadline of an attempt.
        attempts: the most attempts per request.
        patience: a server that has answered before but cannot be reached is retried, in any number of attempts, until
            it has been away for this many seconds. A server that answers other requests meanwhile is not away.

    Raises:
        UsageError: the address is not an http or https address.
    """

    url: str
    key_variable: str = ""
    seconds: float = 60.0
    attempts: int = 4
    patience: float = 0.0

    def __post_init__(self) -> None:
        """Check the address and the limits."""
        self._client = HttpClient(self.url, self.key_variable)
        self._answered_at: float | None = None
        self._away_since: float | None = None
        if not self.seconds > 0 or self.attempts < 1:
            raise UsageError("A request needs a deadline above 0 seconds and at least one attempt.")

    def post(self, content: Any) -> Any:
        """Send a value as JSON and return the reply.

        Raises:
            RequestError: no attempt succeeded, the server refuses the request, or the endpoint is closed.
        """
        return self._ask("POST", content)

    def get(self) -> Any:
        """Return the JSON at the address; see `post`."""
        return self._ask("GET", None)

    def close(self) -> None:
        """Cancel all requests, including those that wait for their next attempt."""
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
        """Return whether to wait for a server that last answered before `since` and has not been away too long."""
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
    """Return the seconds that a Retry-After header asks to wait; a date or an invalid value counts as 0."""
    try:
        return min(LONGEST_WAIT, max(0.0, float(header or 0)))
    except ValueError:
        return 0.0
