"""An environment that answers every turn that ends at one of a few letters; what it says depends on the turn.

It is a leaf: `--environment tests/turning.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from qed.environments.base import Environment, Reply, State


@dataclass(frozen=True)
class Turning(Environment):
    """Says how long the turn was, in the answer's own message or as a message of the user."""

    max_turns: int = 3
    message: bool = False
    reward: float = 0.0

    stop: ClassVar[tuple[str, ...]] = tuple("aeiou 0123456789")

    def step(self, state: State) -> Reply | None:
        said = state.turns[-1]
        if len(said) % 7 == 6 or (state.ended and not self.message):
            return None
        return Reply(f" [{len(said)}] ", message=self.message, reward=self.reward * len(said))


environment = Turning()
