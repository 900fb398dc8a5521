"""The answers of a group, and one answer."""

from __future__ import annotations

from typing import Any

from qed.viewer.library import Library
from qed.viewer.params import Params, Refused


def read_group(library: Library, params: Params) -> dict[str, Any]:
    """Refuse: this view is not there yet."""
    raise Refused(501, "This view is not there yet.")


def read_answer(library: Library, params: Params) -> dict[str, Any]:
    """Refuse: this view is not there yet."""
    raise Refused(501, "This view is not there yet.")
