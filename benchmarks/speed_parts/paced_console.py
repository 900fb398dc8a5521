"""The console of a worker that runs one of qed's loops."""

from __future__ import annotations

from typing import Any

from qed.console.live import Console
from speed_parts.pace import Pace


class PacedConsole(Console):
    """The console of a run whose every step is a round; a step's metrics become its figures.

    A recipe shows a step when it has done everything for it, so the whole of the recipe is what is measured.
    """

    def __init__(self, pace: Pace, chosen: Any) -> None:
        super().__init__(json=True)
        self._pace, self._chosen = pace, chosen

    def step(self, step: int, last: int, metrics: Any) -> None:
        """End the round."""
        self._pace.done(**self._chosen(metrics))
