"""What may change when a run is resumed: how far it goes and what it leaves behind, not what it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from qed.config.keys import map_names
from qed.config.values import dump_settings
from qed.errors import DataError
from qed.guards.redaction import redact

FREE_SECTIONS = ("run.", "evaluation.")
# These decide how much is computed at once or how far it goes, never what comes out of a step.
FREE = ("sampling.rows_per_batch", "learner.tokens_per_microbatch", "model.device", "model.gradient_checkpointing")
SAME_UPDATES = {"adamw", "adamw_offload"}  # they differ in where the state lies, and read each other's


def list_changes(saved: Path, settings: Any, allowed: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """The settings that differ from a saved settings.yaml, each as `key: old -> new`: all, and those that are refused
    because they would make another run, and are not allowed by name."""
    names = map_names(settings)
    before = {names.get(name, name): value for name, value in _flatten(_read_saved(saved))}
    after = {  # as it was saved
        names.get(name, name): value for name, value in _flatten(yaml.safe_load(redact(dump_settings(settings))))
    }
    # The steps of the last phase may grow; those of an earlier one would move everything behind them.
    last = "rl.learner.steps" if "rl.method" in after and after.get("skip_rl") is not True else "sft.learner.steps"
    different = [key for key in {**before, **after} if not _equal(before.get(key), after.get(key))]
    free = [
        key
        for key in different
        if key.startswith(FREE_SECTIONS)
        or key in allowed
        or key.removeprefix("sft.").removeprefix("rl.") in FREE
        or key in ("learner.steps", last)
        or (key.endswith("learner.optimizer") and {before.get(key), after.get(key)} <= SAME_UPDATES)
    ]
    said = {key: f"{key}: {before.get(key)} -> {after.get(key)}" for key in different if key != "run.out"}
    return list(said.values()), [said[key] for key in said if key not in free]


def _equal(before: Any, after: Any) -> bool:
    """Whether two values are the same; a text or number is what a list of it alone is, as where a list is read."""
    return bool(before == after or [before] == after or before == [after])


def _read_saved(file: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise DataError(f"{file} cannot be read: {error}. Restore it from a copy.") from error
    if not isinstance(found, dict):
        raise DataError(f"{file} holds no settings any more. Restore it from a copy.")
    return found


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value
