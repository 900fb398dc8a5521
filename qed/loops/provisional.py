"""Checkpoints saved because a pending evaluation may make them the best, and deleted if it does not."""

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
    """Which checkpoints depend on pending evaluations.

    Args:
        pending: steps whose evaluations are pending.
        saved: steps whose checkpoints were saved for no other reason and are not the best.
    """

    pending: frozenset[int] = field(default_factory=frozenset)
    saved: frozenset[int] = field(default_factory=frozenset)

    @staticmethod
    def read(state: Mapping[str, Any]) -> Provisional:
        """Read the entries of a checkpoint's state."""
        return Provisional(frozenset(state.get(PENDING, ())), frozenset(state.get(SAVED, ())))

    def to_state(self) -> dict[str, list[int]]:
        """Return the entries for a checkpoint's state; empty without background evaluations."""
        entries = {PENDING: sorted(self.pending), SAVED: sorted(self.saved)}
        return {name: steps for name, steps in entries.items() if steps}

    def prune(self, run: Run, settings: RunSettings, scores: Mapping[int, float], boundaries: Collection[int]) -> None:
        """Delete provisional checkpoints whose evaluation has ended, and those that `keep_best` does not keep.

        Checkpoints with pending evaluations are kept, and count neither as newest nor as best; the newest one is kept
        too.
        """
        asked = sorted(manifest.list_checkpoints(run.folder).keys() - self.saved, reverse=True)
        protected = frozenset({*boundaries, *self.pending, *asked[: settings.keep_last]})
        others = {step: score for step, score in scores.items() if step not in self.saved}
        keep_best(run, settings, others, protected)
        latest, best = (manifest.read_pointer(run.folder, name) for name in ("LATEST", "BEST"))
        for step, folder in manifest.list_checkpoints(run.folder).items():
            if step in self.saved - protected - {latest, best} and latest is not None and step < latest:
                checkpoints.delete(run, folder)
