"""An adapter folder is a model: of a run, or written by peft, wherever a model is asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cutting import TINY
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from qed.config.settings import ModelSettings
from qed.errors import ModelError, UsageError
from qed.models import load

pytestmark = pytest.mark.xdist_group("adapters")  # they share a run
IDS = torch.arange(14).reshape(2, 7)


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        return model.eval()(IDS).logits


def write_by_peft(complete_model: Path, folder: Path, **changes: Any) -> nn.Module:
    """An adapter that peft itself has made and saved, as TRL does."""
    torch.manual_seed(1)
    model, _ = load.load_model(ModelSettings(name=str(complete_model)))
    options = {"r": 4, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", **changes}
    adapted = get_peft_model(model, LoraConfig(**options))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(folder)
    return adapted


@pytest.mark.parametrize("changes", [{}, {"use_dora": True, "use_rslora": True}, {"modules_to_save": ["lm_head"]}])
def test_an_adapter_of_peft_is_a_model(complete_model: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    adapted = write_by_peft(complete_model, tmp_path / "adapter", **changes)
    model, tokenizer = load.load_model(ModelSettings(name=str(tmp_path / "adapter")))
    assert (logits(model) - logits(load.load_model(ModelSettings(name=str(complete_model)))[0])).abs().max() > 0.1
    torch.testing.assert_close(logits(model), logits(adapted), rtol=0, atol=1e-5)
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(complete_model).get_vocab()


def test_the_adapter_of_a_run_is_a_model(
    qed: Callable[..., Any], lora_run: Path, complete_model: Path, tmp_path: Path
) -> None:
    """It has the tokenizer and the chat template, is read by peft, evaluated, and trained further."""
    adapter = lora_run / "final" / "adapter"
    assert AutoTokenizer.from_pretrained(adapter).chat_template == load.CHAT_TEMPLATE
    plain = load.load_model(ModelSettings(name=str(complete_model)))[0]
    merged = load.load_model(ModelSettings(name=str(lora_run / "final" / "hf")))[0]
    model = load.load_model(ModelSettings(name=str(adapter)))[0]
    torch.testing.assert_close(logits(model), logits(merged), rtol=0, atol=1e-6)
    torch.testing.assert_close(logits(PeftModel.from_pretrained(plain, adapter)), logits(merged), rtol=0, atol=1e-5)
    more = ["--tasks", "arithmetic", "--limit", 2, "--max-tokens", 4, "--preflight", "false"]
    done = qed("evaluate", "--model", adapter, *more, "--out", tmp_path / "eval")
    assert done.code == 0, done.err
    for name, rank in (("again", 2), ("whole", 0)):
        out = tmp_path / name
        more = ["--model.lora_rank", rank, *TINY, "--steps", 1, "--out", out]
        done = qed("sft", "--model", adapter, *more)
        assert done.code == 0, done.err
        assert json.loads((out / "final" / "hf" / "config.json").read_text())["model_type"] == "qwen2"
    # An adapter on an adapter: both are added to the base.
    chained = load.load_model(ModelSettings(name=str(tmp_path / "again" / "final" / "adapter")))[0]
    expected = load.load_model(ModelSettings(name=str(tmp_path / "again" / "final" / "hf")))[0]
    torch.testing.assert_close(logits(chained), logits(expected), rtol=0, atol=1e-6)
    # peft would put the second adapter in the place of the first, so the base is the run's complete weights.
    exported = tmp_path / "exported"
    assert qed("export", tmp_path / "again", "--out", exported).code == 0
    by_peft = AutoPeftModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    torch.testing.assert_close(logits(by_peft), logits(expected), rtol=0, atol=1e-5)
    assert "vllm serve " + str((lora_run / "final" / "hf").resolve()) in (exported / "README.md").read_text()


def test_adapters_on_an_adapter_without_complete_weights_are_merged(
    qed: Callable[..., Any], complete_model: Path, tmp_path: Path
) -> None:
    adapted = write_by_peft(complete_model, tmp_path / "adapter")
    done = qed(
        "sft", "--model", tmp_path / "adapter", "--model.lora_rank", 2, *TINY, "--steps", 1, "--out", tmp_path / "run"
    )
    assert done.code == 0, done.err
    done = qed("export", tmp_path / "run", "--out", tmp_path / "exported")
    assert done.code == 0, done.err
    assert "The adapters are merged: their base" in done.out
    assert not (tmp_path / "exported" / "adapter_config.json").exists()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "exported", dtype=torch.float32)
    assert (logits(model) - logits(adapted)).abs().max() < 0.5


def test_what_began_at_random_is_found_beside_the_adapter(lora_run: Path, tmp_path: Path) -> None:
    """Nobody else has the base of such a run, so its merged weights stand for base and adapter."""
    checkpoint = shutil.copytree((lora_run / "final").resolve(), tmp_path / "checkpoint")
    change(checkpoint / "adapter", base_model_name_or_path="new:tiny")
    model, _ = load.load_model(ModelSettings(name=str(checkpoint / "adapter")))
    merged = load.load_model(ModelSettings(name=str(checkpoint / "hf")))[0]
    assert torch.equal(logits(model), logits(merged))
    shutil.move(checkpoint / "adapter", tmp_path / "alone")
    with pytest.raises(ModelError, match="random weights that only its run has"):
        load.load_model(ModelSettings(name=str(tmp_path / "alone")))


def change(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_model_name_or_path": "/nowhere/model"}, r"the folder /nowhere/model, which does not exist\. Restore"),
        ({"base_model_name_or_path": None}, "names no base model: write"),
        ({"base_model_name_or_path": "SELF"}, "names itself"),
        ({"base_model_name_or_path": "nobody/nothing"}, "base model of the adapter .* is nobody/nothing"),
        ({"target_modules": ["q_proj"], "r": 3}, "cannot be merged into its base model"),
        ({"target_modules": ["q_proj", "k_proj", "down_proj"]}, "cannot be merged .*missing adapter keys"),
    ],
)
def test_an_adapter_that_cannot_be_used_says_why(
    complete_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    folder = tmp_path / "adapter"
    write_by_peft(complete_model, folder)
    change(folder, **{key: str(folder) if value == "SELF" else value for key, value in changes.items()})
    with pytest.raises(ModelError, match=words):
        load.load_model(ModelSettings(name=str(folder)))


def test_a_pickled_adapter_is_not_read(complete_model: Path, tmp_path: Path) -> None:
    write_by_peft(complete_model, tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_model.safetensors").rename(tmp_path / "adapter" / "adapter_model.bin")
    with pytest.raises(ModelError, match="pickled weights"):
        load.load_model(ModelSettings(name=str(tmp_path / "adapter")))
    with pytest.raises(UsageError, match="needs complete weights"):
        load.load_model(ModelSettings(name=str(tmp_path / "adapter"), quantization="nf4", lora_rank=2))
