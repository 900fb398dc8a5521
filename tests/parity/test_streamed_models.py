"""A model written tensor by tensor is what `save_pretrained` writes, byte for byte, and `from_pretrained` reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from families import make_family
from making import make_model
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForCausalLM

from qed.config.settings import ModelSettings
from qed.models import lora, save
from qed.models.save import ModelFiles, save_model

STREAMED = ["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text", "granite", "cohere2", "olmo2"]
STREAMED += ["stablelm", "gpt2", "gpt_neox", "opt", "falcon", "gpt_oss"]
CONVERTED = ["mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "deepseek_v3"]


class Words:
    """Stands in for a tokenizer."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}", encoding="utf-8")


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "tokenizer.json"}


@pytest.mark.parametrize("name", [*STREAMED, *CONVERTED])
def test_a_streamed_model_is_the_saved_one(name: str, tmp_path: Path) -> None:
    model = make_family(name)
    assert ModelFiles(model).streamed
    model.save_pretrained(tmp_path / "usual")
    save_model(model, Words(), tmp_path / "streamed")
    assert written(tmp_path / "streamed") == written(tmp_path / "usual")
    # Read back, written again: families with renamings keep those of the files that they were read from.
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "streamed", dtype=torch.float32)
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in again.state_dict().items())
    save_model(again, Words(), tmp_path / "again")
    assert written(tmp_path / "again")["model.safetensors"] == written(tmp_path / "usual")["model.safetensors"]


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_may_be_rounded_and_cut_into_files(tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(dtype=torch.float32, tie_word_embeddings=tied)
    monkeypatch.setattr(save, "SHARD_BYTES", 4000)
    ModelFiles(model, "bfloat16").write(tmp_path / "hf", Words())
    files = sorted(path.name for path in (tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    assert all((tmp_path / "hf" / name).stat().st_size < 5500 for name in files), "header and at most 4000 bytes"
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["dtype"] == "bfloat16"
    rounded = make_model(dtype=torch.float32, tie_word_embeddings=tied).to(torch.bfloat16)
    rounded.save_pretrained(tmp_path / "usual", max_shard_size=4000)
    ours, theirs = ((tmp_path / name / "model.safetensors.index.json").read_text() for name in ("hf", "usual"))
    assert json.loads(ours) == json.loads(theirs)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(tensor, rounded.state_dict()[key]) for key, tensor in again.state_dict().items())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_adapters_are_merged_one_at_a_time(precision: Any, tmp_path: Path) -> None:
    settings = ModelSettings(lora_rank=2, precision=precision)
    model = lora.add_adapters(make_model(dtype=torch.float32), settings, 0)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight)
    save_model(model, Words(), tmp_path / "hf")
    merged = lora.merge_adapters(model)
    saved = load_file(tmp_path / "hf" / "model.safetensors")
    assert saved.keys() == merged.keys() - {"lm_head.weight"}
    assert all(torch.equal(tensor, merged[name]) for name, tensor in saved.items())


def test_a_copy_is_written_as_it_was(tmp_path: Path) -> None:
    """What is copied to host memory does not change with the model."""
    model = make_model(dtype=torch.float32)
    save_model(model, Words(), tmp_path / "before")
    files = ModelFiles(model)
    files.copy_to_host()
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    files.write(tmp_path / "copied", Words())
    assert written(tmp_path / "copied") == written(tmp_path / "before")


@pytest.mark.parametrize("name", ["gpt2", "mixtral"])
def test_a_conversion_that_cannot_be_streamed_is_left_to_transformers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise NotImplementedError("no kernel for tensors without data")

    monkeypatch.setattr(save, "revert_weight_conversion", fail)
    model = make_family(name)
    files = ModelFiles(model)
    assert not files.streamed
    model.save_pretrained(tmp_path / "usual")
    files.copy_to_host()
    files.write(tmp_path / "gathered", Words())
    assert written(tmp_path / "gathered") == written(tmp_path / "usual")
