"""A tiny Llama with a character tokenizer, and files that a resumed run should not trust; run by the rival's Python.

    python trl_model.py '{"folder": "/tmp/model", "width": 32}'

`pickled` writes the weights as `pytorch_model.bin`; `hostile` writes a pickle that creates the file `mark` when loaded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from string import ascii_lowercase, digits
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<pad>", "<eos>", "<unk>"]


class Hostile:
    """An object whose pickle creates a file when it is loaded unsafely."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.mark),)


def tokenizer() -> PreTrainedTokenizerFast:
    """Build a tokenizer with a token per character."""
    words = {word: number for number, word in enumerate([*SPECIAL, *ascii_lowercase, *digits, *" +=?."])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", padding_side="left"
    )


def network(width: int, vocabulary: int) -> LlamaForCausalLM:
    """Build a model of two layers with random weights."""
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(shape)


def main() -> None:
    """Write the requested model or file."""
    told = json.loads(sys.argv[1])
    if "hostile" in told:
        torch.save(Hostile(told["mark"]), told["hostile"])
        return
    folder, letters = Path(told["folder"]), tokenizer()
    made = network(told.get("width", 32), len(letters))
    made.save_pretrained(folder)
    letters.save_pretrained(folder)
    if told.get("pickled"):
        (folder / "model.safetensors").unlink()
        torch.save(made.state_dict(), folder / "pytorch_model.bin")


if __name__ == "__main__":
    main()
