"""Compares the settings of a resumed run with the saved ones, and finds changes that affect its results."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import yaml

from qed.config.keys import flatten_tree, map_names
from qed.config.values import build_tree, dump_settings
from qed.config.yaml_text import load_yaml
from qed.errors import DataError
from qed.guards.redaction import redact

FREE_SECTIONS = ("run.", "evaluation.", "parallel.", "cluster.")
NOT_FREE = ("run.seed",)  # determines which problems and answers are drawn
# These settings affect memory, speed and locations, but never the result of a step beyond rounding.
FREE = (
    *("sampling.rows_per_batch", "learner.tokens_per_microbatch", "model.device", "model.gradient_checkpointing"),
    *("sampling.url", "sampling.devices", "sampling.colocate", "sampling.memory_share", "sampling.request_seconds"),
    "sampling.weights_folder",
)
# A checkpoint's adapters have these sizes and this scale: with others, they would be another model or not load.
FIXED = ("model.lora_rank", "model.lora_alpha", "model.lora_targets")
CANNOT_CHANGE = " (this one cannot change: the checkpoint's adapters were made with the old value)"
SAME_UPDATES = {"adamw", "adamw_offload"}  # they differ only in where the state is kept, and can load each other's


def list_changes(saved: Path, settings: Any, allowed: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """Return the settings that differ from a saved settings.yaml, each as `key: old -> new`.

    The first list has all differences; the second has those that would change the run's results and are not in
    `allowed`, or cannot change at all. A setting that is missing in the file, because it was written by a version of
    qed without it, counts as the default of its dataclass.
    """
    names = map_names(settings)
    defaults = _list_values(_build_defaults(settings), names)
    before = defaults | _split_shared_data(_list_values(read_saved(saved), names), after=defaults)
    after = _list_values(load_yaml(redact(dump_settings(settings))), names)  # in the same form as the saved file
    # The steps of the last phase may change; those of an earlier phase would shift all later steps.
    last = "rl.learner." if "rl.method" in after and after.get("skip_rl") is not True else "sft.learner."
    different = [key for key in {**before, **after} if not _equal(before.get(key), after.get(key))]
    free = [
        key
        for key in different
        if (key.startswith(FREE_SECTIONS) and key not in NOT_FREE)
        or (key in (*allowed, *FIXED[1:]) and not _is_fixed(key, before, after))
        or key.removeprefix("sft.").removeprefix("rl.") in FREE
        or key.removeprefix(last).removeprefix("learner.") in ("steps", "epochs")
        or (key.endswith("learner.optimizer") and {before.get(key), after.get(key)} <= SAME_UPDATES)
    ]
    texts = {key: f"{key}: {before.get(key)} -> {after.get(key)}" for key in different if key != "run.out"}
    refused = {key: text for key, text in texts.items() if key not in free}
    return list(texts.values()), [
        f"{text}{CANNOT_CHANGE if _is_fixed(key, before, after) else ''}" for key, text in refused.items()
    ]


def _is_fixed(key: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether an adapter setting differs from before, in a run that has adapters or would now have them."""
    if key not in FIXED or key == "model.lora_rank":
        return key in FIXED
    rank: int = before.get("model.lora_rank") or 0
    if key == "model.lora_alpha":
        return bool(rank) and (before.get(key) or 2 * rank) != (after.get(key) or 2 * rank)
    return bool(rank) and sorted(before.get(key) or []) != sorted(after.get(key) or [])


def _split_shared_data(saved: dict[str, Any], after: Collection[str]) -> dict[str, Any]:
    """Return saved settings, with each `data.X` that does not exist replaced by the names that both phases have for it.

    In files of earlier versions, the phases of a pipeline share one section `data`.
    """
    split: dict[str, Any] = {}
    for key, value in saved.items():
        shared = key.startswith("data.") and key not in after
        split |= dict.fromkeys([f"sft.{key}", f"rl.{key}"] if shared else [key], value)
    return split


def _list_values(tree: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of nested settings by their keys; tuples become lists, as in a file."""
    return {
        names.get(path, path): list(value) if isinstance(value, tuple) else value for path, value in flatten_tree(tree)
    }


def _build_defaults(settings: Any) -> dict[str, Any]:
    """Return the default of every setting that has one, as nested mappings."""
    kind: Any = type(settings)
    if all(part.default is not MISSING or part.default_factory is not MISSING for part in fields(kind)):
        return build_tree(kind())
    sections = {part.name: getattr(settings, part.name) for part in fields(kind)}
    defaults = {part.name: part.default for part in fields(kind) if part.default is not MISSING}
    return defaults | {name: _build_defaults(value) for name, value in sections.items() if is_dataclass(value)}


def _equal(before: Any, after: Any) -> bool:
    """Return whether two values are equal; a single value equals a list of only that value."""
    return bool(before == after or [before] == after or before == [after])


def read_saved(file: Path) -> dict[str, Any]:
    """Return the settings of a settings.yaml, by section.

    Raises:
        DataError: the file is damaged.
    """
    try:
        saved = load_yaml(file.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise DataError(f"{file} cannot be read: {error}. Restore it from a backup.") from error
    if not isinstance(saved, dict):
        raise DataError(f"{file} contains no settings. Restore it from a backup.")
    return saved
