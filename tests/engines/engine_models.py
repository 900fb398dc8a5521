"""The models of the contract suite: a random one that ends often, its next weights, and an adapter for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch

from qed.models.load import build_model
from qed.sampling.base import Sampling
from qed.sampling.native.sampler import NativeSampler

TEXTS = ["one two 1 2 3 ⟨ünïcödé⟩ 你好 🙂 = + - "]
MANY_ENDS = 10  # of about 280 tokens, so that answers of a random model end


@dataclass(frozen=True)
class Models:
    """Folders with a model, with other weights for it, and with an adapter; and the model in this process."""

    folder: Path
    newer: Path
    adapter: Path
    network: Any
    newer_network: Any
    adapted_network: Any
    tokenizer: Any
    ends: tuple[int, ...]

    def sampler(self) -> NativeSampler:
        """The sampler of this process, with which servers are compared."""
        return NativeSampler(self.network, self.tokenizer, self.ends)

    def greedy(self, network: Any, prompt: Sequence[int], tokens: int = 1) -> list[int]:
        """The most likely answer of a model."""
        sampler = NativeSampler(network, self.tokenizer, self.ends)
        return list(sampler.generate([prompt], [[0]], Sampling(0.0, tokens))[0][0].tokens)


def make_models(folder: Path) -> Models:
    """Write the models into a folder."""
    network, tokenizer = build_model("new:tiny", TEXTS, seed=0)
    newer, _ = build_model("new:tiny", TEXTS, seed=1)
    ends = (tokenizer.eos_token_id, *range(100, 100 + MANY_ENDS))
    places = {"first": network, "newer": newer}
    for name, model in places.items():
        model.generation_config.eos_token_id = list(ends)
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    adapted = make_adapted(network, folder / "adapter")
    return Models(
        folder / "first",
        folder / "newer",
        folder / "adapter",
        network.eval(),
        newer.eval(),
        adapted,
        tokenizer,
        ends,
    )


def make_adapted(network: Any, folder: Path) -> Any:
    """Write a LoRA adapter that changes a model, and return the model with it."""
    copy = type(network)(network.config)
    copy.load_state_dict(network.state_dict())
    torch.manual_seed(0)
    config = peft.LoraConfig(r=8, lora_alpha=64, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(copy, config)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    adapted.save_pretrained(folder)
    merged = adapted.merge_and_unload().eval()
    merged.generation_config = network.generation_config
    return merged


def mark_complete(folder: Path, version: int, kind: str) -> None:
    """Write the marker that says that a folder of weights is whole."""
    (folder / "COMPLETE").write_text(json.dumps({"version": version, "format": kind}))
