"""Adapters that a server loads from folders are those of the learner, bit by bit, and a wrong one changes nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make_family
from safetensors.torch import load_file, save_file

from qed.config.settings import ModelSettings
from qed.errors import ModelError
from qed.models import lora, weights_folder
from qed.models.adapters import CONFIG, WEIGHTS
from qed.models.load import build_model, load_model
from qed.models.save import save_model
from qed.models.weights_folder import MARKER, load_weights
from qed.serving.engine_model import EngineModel
from qed.serving.messages import ModelSource, Scoring

TEXTS = ["What is 3 + 4? The answer is 7."] * 20
IDS = torch.tensor([[5, 6, 7, 8, 9]])


@pytest.fixture
def base(tmp_path: Path) -> ModelSettings:
    model, tokenizer = build_model("new:tiny", TEXTS, 0)
    save_model(model, tokenizer, tmp_path / "base")
    return ModelSettings(name=str(tmp_path / "base"), device="cpu")


def train(base: ModelSettings, folder: Path, seed: int, version: int, rank: int = 4) -> torch.Tensor:
    """Write a complete folder with the adapter of a learner, and return the learner's logits."""
    model, _ = load_model(base)
    adapted: Any = lora.add_adapters(model, replace(base, lora_rank=rank), seed)
    torch.manual_seed(seed)
    with torch.no_grad():
        for tensor in lora.list_adapters(adapted).values():
            tensor.normal_(std=0.2)
        lora.save_adapters(adapted, folder)
        (folder / MARKER).write_text(json.dumps({"version": version, "format": "adapter"}))
        logits: torch.Tensor = adapted(IDS).logits
    return logits


@torch.no_grad()
def compute(model: Any) -> torch.Tensor:
    logits: torch.Tensor = model(IDS).logits
    return logits


@pytest.mark.parametrize("rank", [0, 4])
def test_adapters_replace_each_other(base: ModelSettings, tmp_path: Path, rank: int) -> None:
    """Whether the model was loaded with adapters, or gets its first ones."""
    expected = [train(base, tmp_path / str(version), version, version) for version in (1, 2)]
    settings = replace(base, lora_rank=rank)
    model: Any = load_model(base)[0]
    before = compute(model)
    if rank:
        model = lora.add_adapters(model, settings, 0)
    for version in (1, 2, 1):
        load_weights(model, settings, tmp_path / str(version), version)
        assert torch.equal(compute(model), expected[version - 1])
    with lora.disable_adapters(model):
        assert torch.equal(compute(model), before)


def test_an_adapter_folder_is_served_unmerged(base: ModelSettings, tmp_path: Path) -> None:
    expected = [train(base, tmp_path / str(version), version, version) for version in (1, 2)]
    tokenizer = load_model(base)[1]
    tokenizer.save_pretrained(tmp_path / "1")
    settings = replace(base, name=str(tmp_path / "1"))
    source = ModelSource(settings, threads=torch.get_num_threads())
    model = EngineModel(source)
    assert torch.equal(compute(model.model), expected[0])
    model.update(str(tmp_path / "2"), 2)
    assert torch.equal(compute(model.model), expected[1])
    restarted = EngineModel(replace(source, weights=str(tmp_path / "2"), version=2))
    assert torch.equal(compute(restarted.model), expected[1])
    assert [each.version for each in restarted.score(Scoring([[5]], [[6]]))] == [2]


def edit(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return apply


def rescale(folder: Path) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, "lora_alpha": 99}))


WRONG: dict[str, Callable[[Path], None]] = {
    "only one of them has": edit(lambda tensors: tensors.popitem()),
    "not finite": edit(lambda tensors: next(iter(tensors.values())).view(-1)[0].fill_(torch.inf)),
    "has the shape": edit(lambda tensors: tensors.update({min(tensors): tensors[min(tensors)][:, :2].clone()})),
    "configuration of the adapter": lambda folder: (folder / CONFIG).unlink(),
    "cannot be read": lambda folder: (folder / WEIGHTS).write_bytes(b"nothing"),
}


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("wanted", WRONG)
def test_an_adapter_that_does_not_fit_changes_nothing(
    base: ModelSettings, tmp_path: Path, wanted: str, loaded: bool
) -> None:
    train(base, tmp_path / "right", 1, 1)
    train(base, tmp_path / "wrong", 2, 2)
    WRONG[wanted](tmp_path / "wrong")
    model: Any = load_model(base)[0]
    if loaded:
        load_weights(model, base, tmp_path / "right", 1)
    before, state = compute(model), sorted(model.state_dict())
    with pytest.raises(ModelError, match=wanted):
        load_weights(model, base, tmp_path / "wrong", 2)
    assert sorted(model.state_dict()) == state
    assert torch.equal(compute(model), before)
    load_weights(model, base, tmp_path / "right", 1)


def test_another_scale_or_format_is_refused(base: ModelSettings, tmp_path: Path) -> None:
    train(base, tmp_path / "right", 1, 1)
    train(base, tmp_path / "scaled", 1, 1)
    rescale(tmp_path / "scaled")
    model: Any = load_model(base)[0]
    load_weights(model, base, tmp_path / "right", 1)
    with pytest.raises(ModelError, match="lora_alpha 99"):
        load_weights(model, base, tmp_path / "scaled", 1)
    (Path(base.name) / MARKER).write_text('{"version": 1, "format": "full"}')
    with pytest.raises(ModelError, match="send an adapter"):
        load_weights(model, base, Path(base.name), 1)


def test_weights_whose_file_has_other_tensors_are_converted(tmp_path: Path) -> None:
    """A mixture of experts is saved with a tensor for each expert, and has them stacked in memory."""
    tokenizer = build_model("new:tiny", TEXTS, 0)[1]
    for name, scale in (("old", 1.0), ("new", 1.5)):
        model = make_family("mixtral", vocab_size=len(tokenizer))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= scale
        save_model(model, tokenizer, tmp_path / name)
    (tmp_path / "new" / MARKER).write_text('{"version": 3, "format": "full"}')
    settings = ModelSettings(name=str(tmp_path / "old"), device="cpu")
    model, expected = load_model(settings)[0], load_model(replace(settings, name=str(tmp_path / "new")))[0]
    assert not torch.equal(compute(model), compute(expected))
    load_weights(model, settings, tmp_path / "new", 3)
    assert torch.equal(compute(model), compute(expected))


def test_a_weight_is_read_to_be_checked_and_to_be_copied(base: ModelSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server loads the weights of every step, while training waits."""
    (Path(base.name) / MARKER).write_text('{"version": 1, "format": "full"}')
    model, read = load_model(base)[0], Counter[str]()
    get = weights_folder._Files.__getitem__

    def count(files: weights_folder._Files, name: str) -> torch.Tensor:
        read[name] += 1
        return get(files, name)

    monkeypatch.setattr(weights_folder._Files, "__getitem__", count)
    load_weights(model, base, Path(base.name), 1)
    assert set(read.values()) == {2}
