"""A model is known again by the beginning of its tensors, whatever files they are in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from qed.models.fingerprint import hash_weights

WEIGHTS = {
    "embedding": torch.arange(6000.0).reshape(20, 300),
    "experts": torch.ones(3, 4, 5, dtype=torch.bfloat16),
    "norm": torch.ones(7),
    "scale": torch.tensor(2.0),
}


def save_model(folder: Path, **parts: dict[str, Tensor]) -> Path:
    """Save a model's weights, in one file or in a file for each part."""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    if len(parts) == 1:
        save_file(next(iter(parts.values())), folder / "model.safetensors")
        return folder
    places = {}
    for number, tensors in enumerate(parts.values()):
        file = f"model-{number}.safetensors"
        save_file(tensors, folder / file)
        places |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder


def test_files_do_not_matter_and_values_do(tmp_path: Path) -> None:
    names = sorted(WEIGHTS)
    whole = hash_weights(str(save_model(tmp_path / "whole", whole=WEIGHTS)))
    first, last = ({name: WEIGHTS[name] for name in part} for part in (names[2:], names[:2]))
    assert hash_weights(str(save_model(tmp_path / "split", first=first, last=last))) == whole != ""
    for name, tensor in WEIGHTS.items():
        for kind, other in (("values", tensor + 1), ("type", tensor.double()), ("form", tensor.unsqueeze(0).clone())):
            changed = save_model(tmp_path / f"{name} {kind}", whole={**WEIGHTS, name: other})
            assert hash_weights(str(changed)) != whole, changed


def test_of_an_adapter_both_models_count(tmp_path: Path) -> None:
    save_model(tmp_path / "base", whole=WEIGHTS)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "base")}))
    found = set()
    for scale in (1.0, 2.0):
        save_file({"a": torch.full((2, 2), scale)}, adapter / "adapter_model.safetensors")
        found.add(hash_weights(str(adapter)))
    save_file({**WEIGHTS, "norm": torch.zeros(7)}, tmp_path / "base" / "model.safetensors")
    found.add(hash_weights(str(adapter)))
    assert len(found) == 3


@pytest.mark.parametrize("damage", ["nothing", "no folder", "cut off", "index", "hub"])
def test_what_cannot_be_read_has_no_hash(tmp_path: Path, damage: str) -> None:
    folder = save_model(tmp_path / "model", whole=WEIGHTS)
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    if damage == "cut off":
        file.write_bytes(content[:100])
    elif damage == "index":
        (folder / "model.safetensors.index.json").write_text("[]")
    names = {"no folder": str(tmp_path / "none"), "hub": "nobody/none"}
    assert hash_weights(names.get(damage, str(folder))) == ""
