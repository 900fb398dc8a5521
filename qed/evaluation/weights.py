"""Hash the weights of a model, so that an evaluation is not resumed or merged with another model's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from qed.randomness import derive_seed


def hash_weights(folder: Path) -> str:
    """Hash the names, sizes and times of a folder's weight files; a rewritten checkpoint counts as another model."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    stats = [(file.name, file.stat()) for file in files]
    return f"{derive_seed(*(f'{name} {at.st_size} {at.st_mtime_ns}' for name, at in stats)):016x}" if stats else ""


def hash_parameters(model: Any) -> str:
    """Hash the names, shapes and values of a model's parameters, wherever they were loaded from.

    The value of a parameter is the integer sum of its 16-bit words, which does not depend on device or order. The hash
    distinguishes checkpoints, but does not protect against an attacker.
    """
    parts = []
    for name, parameter in model.named_parameters():
        values = parameter.detach().contiguous().reshape(-1)
        words = values.view(torch.int16 if values.element_size() > 1 else torch.uint8)
        parts.append(f"{name} {tuple(parameter.shape)} {int(words.sum(dtype=torch.int64))}")
    return f"{derive_seed(*parts):016x}"
