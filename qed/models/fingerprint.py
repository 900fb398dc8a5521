"""A hash that identifies a model's weights, computed from the beginning of each tensor in their files."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils.hub import cached_file

from qed.errors import ModelError
from qed.models import adapters

VALUES = 1024  # values hashed of each tensor's first row; training changes some of them in every layer
WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def hash_weights(name: str, revision: str = "") -> str:
    """Return a hash of the weights of a folder or a hub model; for an adapter, of its base model's too.

    The same weights in other files have the same hash; other precisions or further training change it. Empty if the
    weights are not in local safetensors files, or cannot be read.
    """
    digest, beginnings = hashlib.sha256(), {}
    try:
        if adapters.is_adapter(name):
            base = adapters.find_base(Path(name))
            digest.update(hash_weights(base.name, base.revision).encode())
        for file in _list_files(name, revision):
            beginnings.update(_hash_beginnings(file))
    except (OSError, ValueError, TypeError, LookupError, SafetensorError, ModelError):
        return ""
    digest.update(json.dumps(sorted(beginnings.items())).encode())
    return digest.hexdigest() if beginnings else ""


def _list_files(name: str, revision: str) -> list[str]:
    """Return the files of a model's weights; for a hub model, only if they have been downloaded."""
    if adapters.is_adapter(name):
        return [str(Path(name) / adapters.WEIGHTS)]
    index = _find_file(name, INDEX, revision)
    if index is None:
        whole = _find_file(name, WHOLE, revision)
        return [whole] if whole else []
    shards = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()
    return [found for shard in sorted(set(shards)) if (found := _find_file(name, shard, revision))]


def _find_file(name: str, file: str, revision: str) -> str | None:
    try:
        found: str | None = cached_file(name, file, revision=revision or None, local_files_only=True)
    except OSError:
        return None
    return found


def _hash_beginnings(file: str) -> dict[str, str]:
    """Return a hash of the dtype, shape and first values of each tensor in a file."""
    found = {}
    with safe_open(file, "pt") as opened:
        for name in opened.keys():  # noqa: SIM118 -- not a mapping
            part = opened.get_slice(name)
            shape = part.get_shape()
            first = part[(slice(1),) * (len(shape) - 1) + (slice(VALUES),)] if shape else opened.get_tensor(name)
            content = first.reshape(-1).view(torch.uint8).numpy().tobytes()
            found[name] = hashlib.sha256(f"{first.dtype} {shape} ".encode() + content).hexdigest()
    return found
