"""A prompt that changes a part of another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WrappedLeaf:
    """A leaf of the prompts; what a class derived from this one does not define is the leaf's."""

    leaf: Any

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the leaf."""
        if name.startswith("__") and name != "__name__":  # which messages show
            raise AttributeError(name)
        return getattr(self.leaf, name)
