"""A server's place among those that share requests."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

FIRST_WAIT = 0.25  # seconds until a lost server is checked for the first time; the wait doubles


class Target(Protocol):
    """What the balancer needs of a server."""

    url: str
    healthy: bool
    paused: bool

    def alive(self, seconds: float) -> None:
        """Raise `ServerLost` unless the server answers in time."""
        ...


S = TypeVar("S", bound=Target)
J = TypeVar("J")
R = TypeVar("R")


@dataclass
class Slot(Generic[S]):
    """A server's place: what it is doing, and why it is left out, if it is."""

    server: S
    running: int = 0
    tokens: int = 0
    lost: str | None = None  # why it is left out
    since: float = 0.0  # on the monotonic clock
    retry: float = 0.0  # when it is checked again
    wait: float = FIRST_WAIT
    reported: bool = True  # whether `on_lost` was called for this loss, or need not be
    checking: bool = False  # whether it is being restarted or checked
    restarting: bool = False  # whether `on_lost` is under way
    restarted: tuple[BaseException | None] | None = None  # how `on_lost` has ended, until somebody looks at it
    checked: tuple[S, BaseException | None] | None = None  # the outcome of a check that nobody has looked at yet
    finished: int = 0  # requests that it has answered

    def describe(self) -> str:
        """Return which server is lost, since when and why."""
        return f"{self.server.url} for {time.monotonic() - self.since:.0f} s: {self.lost}"
