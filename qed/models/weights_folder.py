"""Loads new weights from a complete folder into a model in place: all of them or none, bit for bit.

A folder holds a model for `from_pretrained`, or an adapter in peft's layout. Its last file is `COMPLETE`, a JSON file
with the version and the format, "full" or "adapter". Files are memory-mapped, so the folder may be in shared memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from qed.config.settings import ModelSettings
from qed.errors import ModelError
from qed.models import adapters, lora
from qed.models.load import load_model
from qed.models.weights import identify

MARKER = "COMPLETE"


def read_marker(folder: Path) -> tuple[int, str]:
    """Read the version and the format of a complete folder.

    Raises:
        ModelError: the folder is not complete, or the marker is damaged.
    """
    try:
        marker = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        version, kind = int(marker["version"]), str(marker["format"])
    except FileNotFoundError as error:
        raise ModelError(
            f"{folder} has no file {MARKER}: its weights are incomplete, or the folder is wrong. Write this file last."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{folder / MARKER} cannot be read: {type(error).__name__}: {error}.") from error
    if kind not in ("full", "adapter"):
        raise ModelError(f"{folder / MARKER} names the format '{kind}'; it must be full or adapter.")
    return version, kind


@torch.no_grad()
def load_weights(model: Any, settings: ModelSettings, folder: Path, version: int) -> None:
    """Load the weights of a complete folder into a model in place; on failure, the model is unchanged.

    Args:
        model: model on its device, with or without adapters.
        settings: settings that the model was loaded with.
        folder: folder with complete weights or an adapter.
        version: version that the folder must have.

    Raises:
        ModelError: the folder is not complete, has another version, or does not fit the model.
    """
    found, kind = read_marker(folder)
    if found != version:
        raise ModelError(f"{folder} has the weights of version {found}, but version {version} was requested.")
    try:
        if kind == "adapter":
            load_adapter(model, settings, folder)
        else:
            _load_full(model, settings, folder)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"The weights in {folder} cannot be read: {error}") from error


def _load_full(model: Any, settings: ModelSettings, folder: Path) -> None:
    if lora.has_adapters(model):
        raise ModelError(f"{folder} has complete weights, but the model has adapters: send an adapter.")
    tensors = _Files(folder)
    state = model.state_dict(keep_vars=True)
    # Some families have other tensors in files than in memory, which only loading converts.
    source: Mapping[str, Tensor] = tensors
    if not set(tensors) <= set(state):
        source = load_model(replace(settings, name=str(folder), revision=""))[0].state_dict()
    chosen = _match_names(folder, model, state, source)
    for name in chosen:
        _require_fitting(folder, name, source[name], state[name])
    for name in chosen:
        state[name].copy_(source[name])


def _match_names(folder: Path, model: Any, state: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> list[str]:
    """Return, for each weight of the model, a name in the source; tied weights have several names."""
    chosen: dict[int, str] = {}
    for name, tensor in state.items():
        if name in source:
            chosen.setdefault(identify(tensor), name)
    ignored = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    for name, tensor in state.items():
        if identify(tensor) not in chosen and name not in ignored:
            raise ModelError(f"{folder} lacks the weight {name} of the model.")
    return list(chosen.values())


@torch.no_grad()
def load_adapter(model: Any, settings: ModelSettings, folder: Path) -> None:
    """Load an adapter folder into a model, replacing its adapters; on failure, the model is unchanged.

    Raises:
        ModelError: the adapter does not fit the model or its adapters.
    """
    if adapters.is_adapter(settings.name) and adapters.find_base(Path(settings.name)).merged:
        raise ModelError(f"The model of {settings.name} is merged with its adapter, so it accepts only full weights.")
    new = not lora.has_adapters(model)
    if new:
        lora.inject_adapters(model, folder)
    try:
        saved = _read_fitting_adapter(model, folder)
    except Exception:
        if new:
            lora.remove_adapters(model)
        raise
    if new:
        lora.set_precision(model, settings.precision)
    for name, tensor in lora.list_adapters(model).items():
        tensor.copy_(saved[name])


def _read_fitting_adapter(model: Any, folder: Path) -> Mapping[str, Tensor]:
    """Return the weights of an adapter folder, all of which fit the model's adapters."""
    lora.require_same_adapters(model, folder)
    expected, saved = lora.list_adapters(model), _Files(folder)
    for name in sorted(set(expected) ^ set(saved)):
        raise ModelError(f"The adapter {folder} does not fit the model's: only one of them has {name}.")
    for name, tensor in expected.items():
        _require_fitting(folder, name, saved[name], tensor)
    return saved


def _require_fitting(folder: Path, name: str, new: Tensor, present: Tensor) -> None:
    """Reject a weight with a different shape or with non-finite values."""
    if new.shape != present.shape:
        shapes = f"{tuple(new.shape)} in {folder} and {tuple(present.shape)} in the model"
        raise ModelError(f"The weight {name} has the shape {shapes}.")
    if new.is_floating_point() and not bool(new.isfinite().all()):
        raise ModelError(f"The weight {name} in {folder} has values that are not finite.")


class _Files(Mapping[str, Tensor]):
    """The tensors of a folder's safetensors files by name, read on access."""

    def __init__(self, folder: Path) -> None:
        self.places: dict[str, Any] = {}
        for path in sorted(folder.glob("*.safetensors")):
            file: Any = safe_open(path, framework="pt")
            self.places |= {str(name): file for name in file.keys()}  # noqa: SIM118 -- not a mapping
        if not self.places:
            raise ModelError(f"{folder} has no safetensors weights.")

    def __contains__(self, name: object) -> bool:
        return name in self.places  # Mapping's own method would read the tensor

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self.places[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Any:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)
