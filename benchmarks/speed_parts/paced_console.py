"""The console of a worker that runs one of qed's loops."""

from __future__ import annotations

from typing import Any

from qed.console.live import Console
from speed_parts.pace import Pace


class PacedConsole(Console):
    """The console of a run in which every step is a round; a step's metrics become the round's figures.

    A recipe reports a step after all of its work, so the whole recipe is measured.
    """

    def __init__(self, pace: Pace, chosen: Any) -> None:
        super().__init__(json=True)
        self._pace, self._chosen = pace, chosen

    def step(self, step: int, last: int, metrics: Any) -> None:
        """End the round."""
        self._pace.done(**self._chosen(metrics))
