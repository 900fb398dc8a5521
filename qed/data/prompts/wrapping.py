"""A prompt that overrides a part of another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class WrappedLeaf:
    """A wrapper of a prompt leaf; what a derived class does not define is delegated to the leaf."""

    leaf: Any

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the leaf."""
        if name.startswith("__") and name != "__name__":  # shown in messages
            raise AttributeError(name)
        return getattr(self.leaf, name)
