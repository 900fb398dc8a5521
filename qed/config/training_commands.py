"""Names of the training commands."""

from __future__ import annotations

import os

from qed.config import plugins
from qed.errors import UsageError, suggest_nearest

PIPELINES = {
    "quickstart": "Train a small model from scratch with SFT and RL on this machine, and write a report.",
    "pipeline": "Run SFT, then RL, as one run with one report.",
}


def resolve_training_command(name: str | os.PathLike[str]) -> str:
    """Return a training command's name as its file spells it; a UsageError suggests the nearest command."""
    name = os.fspath(name)
    if name in PIPELINES or plugins.is_users_own(name):
        return name
    leaves = plugins.list_leaves("algorithms")
    if name.replace("-", "_") in leaves:
        return name.replace("-", "_")
    known = [*PIPELINES, *(leaf.replace("_", "-") for leaf in (*leaves, *plugins.list_leaves("commands")))]
    raise UsageError(f"There is no command '{name}'.{suggest_nearest(name, known)} There are: {', '.join(known)}.")
