"""Write a static copy of the viewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from qed.viewer.library import Library
from qed.viewer.params import Refused


def export_site(library: Library, out: Path, steps: Sequence[int] | None, say: Callable[[str], None]) -> None:
    """Refuse: this is not there yet."""
    raise Refused(501, "The static copy is not there yet.")
