"""The shelf of algorithms: one file a thing, found by name."""

from __future__ import annotations

from qed import plugins
from qed.algorithms.base import Algorithm
from qed.errors import UsageError


def find(name: str) -> type[Algorithm]:
    """The algorithm's dataclass: the one subclass of `Algorithm` that the file named defines itself."""
    module = plugins.load("algorithms", name)
    classes = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type) and issubclass(thing, Algorithm) and thing.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise UsageError(
            f"{name} must define exactly one subclass of qed.algorithms.base.Algorithm, not {len(classes)}."
        )
    return classes[0]
