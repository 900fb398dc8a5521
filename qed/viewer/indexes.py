"""The indexes of the answers of a step."""

from __future__ import annotations

from pathlib import Path

from qed.runs.run import Row
from qed.runs.step_index import StepIndex
from qed.viewer.library import Library, RunPlace
from qed.viewer.params import Refused


def load_index(library: Library, place: RunPlace, data: Path) -> StepIndex | None:
    """Refuse: this is not there yet."""
    raise Refused(501, "This view is not there yet.")


def load_groups(library: Library, place: RunPlace, data: Path) -> list[Row] | None:
    """Refuse: this is not there yet."""
    raise Refused(501, "This view is not there yet.")
