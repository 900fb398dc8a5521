"""Checkpoints that are saved because an evaluation under way may make them the best, and deleted if it does not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from qed.config.settings import RunSettings
from qed.runs import manifest
from qed.runs.run import Run
from qed.training import checkpoints
from qed.training.best import keep_best

PENDING, SAVED = "pending_evaluations", "provisional"  # entries of a checkpoint's state


@dataclass(frozen=True)
class Provisional:
    """What evaluations under way mean for the checkpoints.

    Args:
        pending: the steps whose evaluations are under way.
        saved: the steps whose checkpoints nothing else has asked for, and which are not the best.
    """

    pending: frozenset[int] = field(default_factory=frozenset)
    saved: frozenset[int] = field(default_factory=frozenset)

    @staticmethod
    def read(state: Mapping[str, Any]) -> Provisional:
        """Read it from the state of a checkpoint."""
        return Provisional(frozenset(state.get(PENDING, ())), frozenset(state.get(SAVED, ())))

    def to_state(self) -> dict[str, list[int]]:
        """Return the entries of a checkpoint's state; none without evaluations in the background."""
        entries = {PENDING: sorted(self.pending), SAVED: sorted(self.saved)}
        return {name: steps for name, steps in entries.items() if steps}

    def prune(self, run: Run, settings: RunSettings, scores: Mapping[int, float], boundaries: Collection[int]) -> None:
        """Delete the checkpoints that are not kept: provisional ones whose evaluation has ended, and as `keep_best`.

        Those of evaluations under way stay, and count neither as newest nor as best. So does the newest checkpoint.
        """
        asked = sorted(manifest.list_checkpoints(run.folder).keys() - self.saved, reverse=True)
        protected = frozenset({*boundaries, *self.pending, *asked[: settings.keep_last]})
        others = {step: score for step, score in scores.items() if step not in self.saved}
        keep_best(run, settings, others, protected)
        latest, best = (manifest.read_pointer(run.folder, name) for name in ("LATEST", "BEST"))
        for step, folder in manifest.list_checkpoints(run.folder).items():
            if step in self.saved - protected - {latest, best} and latest is not None and step < latest:
                checkpoints.delete(run, folder)
