"""A server's slot in the balancer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

FIRST_WAIT = 0.25  # seconds until a lost server is checked for the first time; the wait doubles


class Target(Protocol):
    """The part of a server that the balancer uses."""

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
    """A server's slot: its current work, and why it is not used, if it is lost."""

    server: S
    running: int = 0
    tokens: int = 0
    lost: str | None = None  # why it is not used
    since: float = 0.0  # when it was lost, on the monotonic clock
    retry: float = 0.0  # when it is checked again
    wait: float = FIRST_WAIT
    reported: bool = True  # whether `on_lost` was called for this loss, or need not be
    checking: bool = False  # whether it is being restarted or checked
    restarting: bool = False  # whether `on_lost` is running
    restarted: tuple[BaseException | None] | None = None  # result of `on_lost`, until it is handled
    checked: tuple[S, BaseException | None] | None = None  # result of a check, until it is handled
    finished: int = 0  # number of requests that it has answered

    def describe(self) -> str:
        """Describe which server is lost, since when and why."""
        return f"{self.server.url} for {time.monotonic() - self.since:.0f} s: {self.lost}"
