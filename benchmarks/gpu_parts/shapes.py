"""Models of real shapes with random weights, made on the device, without the Hub or files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from qed.config.settings import ModelSettings
from qed.models import lora
from qed.models.load import build_tokenizer, prepare_model
from qed.models.qlora import build_quantization_options

VOCABULARY = 512  # of the tokenizer; a model's embedding is as large as in the real model
LORA_RANK = 16


@dataclass(frozen=True)
class Shape:
    """The shape of a Qwen2 model, and the work of a step: prompts, answers per prompt, and the tokens of both."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool
    problems: int
    group: int
    prompt: int
    answer: int
    lora: bool = False
    quantized: bool = False  # whether the base weights are in 4 bits


# Qwen2.5's published configurations (arXiv 2412.15115).
SHAPES = {
    "0.5b": Shape(24, 896, 4864, 14, 2, 151_936, True, problems=32, group=8, prompt=256, answer=256),
    "1.5b": Shape(28, 1536, 8960, 12, 2, 151_936, True, problems=16, group=8, prompt=256, answer=256),
    "1.5b-qlora": Shape(
        28, 1536, 8960, 12, 2, 151_936, True, problems=16, group=8, prompt=256, answer=256, lora=True, quantized=True
    ),
    "7b-lora": Shape(28, 3584, 18_944, 28, 4, 152_064, False, problems=8, group=8, prompt=256, answer=128, lora=True),
}


def shrink(shape: Shape) -> Shape:
    """Return a similar shape that is fast on a CPU."""
    tiny = {"layers": 2, "width": 32, "inner": 64, "heads": 4, "kv_heads": 2, "vocabulary": 640}
    return replace(shape, **tiny, problems=2, group=2, prompt=12, answer=6)


def make_tokenizer() -> Any:
    """Train a tokenizer; the real one is not needed, because tokens are random."""
    return build_tokenizer([f"{number} plus {number + 7} makes {2 * number + 7}." for number in range(400)], VOCABULARY)


def make_config(shape: Shape) -> Qwen2Config:
    """Return the configuration of a shape."""
    return Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=32_768,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=3,
        pad_token_id=0,
    )


def make_model(shape: Shape, device: torch.device, checkpointing: bool, dtype: torch.dtype = torch.float32) -> Any:
    """Make a model with random weights on the device, with adapters if the shape has them, ready to train."""
    if shape.quantized and device.type != "meta":
        return _make_quantized(shape, device, checkpointing)
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.manual_seed(0)
    try:
        with device:
            model: Any = Qwen2ForCausalLM(make_config(shape))
    finally:
        torch.set_default_dtype(default)
    rank = LORA_RANK if shape.lora else 0
    settings = ModelSettings(precision="bfloat16", gradient_checkpointing=checkpointing, lora_rank=rank)
    if shape.lora:
        model = lora.add_adapters(model, settings, 0)
    return prepare_model(model, settings, device)


def _make_quantized(shape: Shape, device: torch.device, checkpointing: bool) -> Any:
    """Quantize saved weights on loading, as a run with `model.dtype bfloat16` does."""
    settings = ModelSettings(
        "saved", precision="bfloat16", gradient_checkpointing=checkpointing, lora_rank=LORA_RANK, quantization="nf4"
    )
    options = {**build_quantization_options(settings, torch.device("cuda")), "device_map": {"": device}}
    with TemporaryDirectory() as folder:
        save_model(shape, device, Path(folder))
        model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **options)
    return prepare_model(lora.add_adapters(model, settings, 0), settings, device)


def save_model(shape: Shape, device: torch.device, folder: Path) -> Path:
    """Save a model with random weights in bfloat16, like the published ones, with its tokenizer; return the folder."""
    model = make_model(replace(shape, lora=False, quantized=False), device, checkpointing=False, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def describe(shape: Shape) -> dict[str, Any]:
    """Return the shape for JSON."""
    return asdict(shape)
