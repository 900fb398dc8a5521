"""The heartbeats that the ranks of a run exchange, and the store that they write them to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from qed.guards.watchdog import LOAD


class Store(Protocol):
    """The used part of `torch.distributed.Store`; a clone for this use alone, with a timeout of a few seconds."""

    def set(self, key: str, value: str) -> None:
        """Write a value."""

    def get(self, key: str) -> bytes:
        """Read a value that exists."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys exist."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number that starts at 0, and return the sum."""


@dataclass(frozen=True)
class Beat:
    """What a rank reports about itself.

    `count` rises with every heartbeat; `waiting` is the collective in which it waits, or empty; `sequence` is the
    number of collectives that it has entered; `left` is why it has ended, or empty.
    """

    count: int = 0
    process: int = 0
    host: str = "an unknown machine"
    step: int = 0
    stage: str = LOAD
    waiting: str = ""
    sequence: int = 0
    left: str = ""


@dataclass(frozen=True)
class Missing:
    """A missing rank: where it runs, its last known step and stage, and why it is missing."""

    rank: int
    host: str
    process: int
    step: int
    stage: str
    why: str

    def __str__(self) -> str:
        where = f"process {self.process} on {self.host}" if self.process else self.host
        return f"rank {self.rank} ({where}): {self.why}, last in stage '{self.stage}' of step {self.step}"
