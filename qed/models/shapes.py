"""The sizes of models that determine their memory: from a table, a config, or a model.

The table covers published models, so that their memory can be computed without weights or access to the hub.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from qed.config.settings import ModelSettings
from qed.errors import ModelError, UsageError, suggest_nearest
from qed.models import adapters, lora
from qed.models.device_layers import fits_kernels, has_layer_kernels
from qed.models.families import read_head_width
from qed.models.initial_weights import build_turn
from qed.models.load import SIZES, is_new
from qed.models.own_layers import LLAMA_LIKE
from qed.models.sources import LOADING_ERRORS, explain_loading, require_configuration

# Parts of names that tell how a model was trained, which does not change its sizes.
VARIANTS = re.compile(r"[-_](instruct|base|it|chat|coder|math|thinking|hf|\d{4})(?=[-_]|$)")
NUMBERED = re.compile(r"\.\d+\.")  # in the names of the weights of a layer


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder-only model with gated feed-forward layers; all are counts of elements or layers.

    `inner` is the feed-forward width per token; in an MoE, that of all active experts together.
    """

    layers: int
    width: int  # of the hidden states
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    layer_weights: int  # parameters of a layer, without adapters
    other_weights: int  # embeddings, output layer and final norm
    adapters: int = 0  # parameters of all adapters; 0 trains all weights
    qk_norm: bool = False  # whether queries and keys are normalised
    has_kernels: bool = False  # whether qed has CUDA kernels for the layers
    linear_weights: int = 0  # part of `layer_weights` in linear layers, without biases; these are quantized

    @property
    def weights(self) -> int:
        """The number of parameters without adapters."""
        return self.layers * self.layer_weights + self.other_weights

    @property
    def trained(self) -> int:
        """The number of trained parameters."""
        return self.adapters or self.weights

    @property
    def queries(self) -> int:
        """The number of elements of a token's queries in a layer."""
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        """The number of elements of a token's keys in a layer; its values have as many."""
        return self.kv_heads * self.head_width

    @property
    def linear_sizes(self) -> dict[str, tuple[int, int]]:
        """Inputs and outputs of the linear layers of a Llama-like layer, by name."""
        width, inner, queries, keys = self.width, self.inner, self.queries, self.keys
        attention = {"q_proj": (width, queries), "k_proj": (width, keys), "v_proj": (width, keys)}
        feed_forward = {"gate_proj": (width, inner), "up_proj": (width, inner), "down_proj": (inner, width)}
        return attention | {"o_proj": (queries, width)} | feed_forward

    def with_adapters(self, rank: int, targets: Collection[str] = ()) -> ModelShape:
        """Return the shape with LoRA adapters (arXiv 2106.09685) of a Llama-like model's linear layers.

        Args:
            rank: rank of the adapters.
            targets: names of linear layers; empty for all but the output layer.

        Raises:
            UsageError: there is no linear layer with such a name.
        """
        sizes = self.linear_sizes
        if unknown := sorted(set(targets) - set(sizes)):
            raise UsageError(
                f"model.lora_targets names {unknown[0]}, which is not a linear layer of this model."
                f"{suggest_nearest(unknown[0], sizes)} There are: {', '.join(sizes)}."
            )
        per_layer = sum(rank * sum(sizes[name]) for name in set(targets) or sizes)
        return replace(self, adapters=self.layers * per_layer)


def build_shape(  # noqa: PLR0913 -- the sizes of a model
    layers: int,
    width: int,
    inner: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    *,
    head_width: int = 0,
    tied: bool = True,
    qkv_bias: bool = True,
    qk_norm: bool = False,
) -> ModelShape:
    """Compute the shape of a Llama-like model: Llama, Mistral, Qwen2, Qwen3.

    Args:
        layers, width, inner, heads, kv_heads, vocabulary: as in `ModelShape`.
        head_width: width of a head; 0 divides the model width by the heads.
        tied: whether the output layer shares the embeddings.
        qkv_bias: whether queries, keys and values have a bias, as in Qwen2.
        qk_norm: as in `ModelShape`.
    """
    head_width = head_width or width // heads
    queries, keys = heads * head_width, kv_heads * head_width
    linear = 2 * width * queries + 2 * width * keys + 3 * width * inner
    layer_weights = linear + qkv_bias * (queries + 2 * keys) + qk_norm * 2 * head_width + 2 * width
    other_weights = (1 if tied else 2) * vocabulary * width + width
    sizes = (layers, width, inner, heads, kv_heads, head_width, vocabulary, layer_weights, other_weights)
    kernels = fits_kernels(width, head_width)
    return ModelShape(*sizes, qk_norm=qk_norm, has_kernels=kernels, linear_weights=linear)


# From the models' config.json, by their hub names.
KNOWN = {
    "Qwen/Qwen2.5-0.5B": build_shape(24, 896, 4864, 14, 2, 151936),
    "Qwen/Qwen2.5-1.5B": build_shape(28, 1536, 8960, 12, 2, 151936),
    "Qwen/Qwen2.5-3B": build_shape(36, 2048, 11008, 16, 2, 151936),
    "Qwen/Qwen2.5-7B": build_shape(28, 3584, 18944, 28, 4, 152064, tied=False),
    "Qwen/Qwen3-4B": build_shape(36, 2560, 9728, 32, 8, 151936, head_width=128, qkv_bias=False, qk_norm=True),
    "meta-llama/Llama-3.2-1B": build_shape(16, 2048, 8192, 32, 8, 128256, head_width=64, qkv_bias=False),
}


def find_shape(name: str) -> tuple[str, ModelShape]:
    """Find the shape of a model by its name, without its weights or access to the hub.

    Args:
        name: name of a model in `KNOWN`, such as qwen2.5-7b or Qwen/Qwen2.5-7B-Instruct; new:tiny, …; a `config.json`;
        or
            a folder with one. An adapter folder has the shape of its base model, into which it is merged.

    Returns:
        The name for `model.name`, and the shape.

    Raises:
        UsageError: there is no such model; the message names the nearest.
        ModelError: a config is missing or cannot be read.
    """
    path = Path(name)
    if adapters.is_adapter(name):
        return name, _find_base_shape(path)
    if _is_path(path):
        return str(path.parent if path.suffix == ".json" else path), measure_shape(_build_outline(path))
    shapes = {f"new:{size}": _build_new(size) for size in SIZES} if is_new(name) else KNOWN
    for known, shape in shapes.items():
        if _simplify(known) == _simplify(name):
            return (name if "/" in name else known), shape
    short = {key.rpartition("/")[2].lower(): key for key in shapes}
    raise UsageError(
        f"The sizes of '{name}' are not known.{suggest_nearest(name.rpartition('/')[2].lower(), short)} There "
        f"are: {', '.join(short)}. For another model, give the path of its config.json or its folder."
    )


def find_adapted_shape(name: str, settings: ModelSettings) -> ModelShape:
    """Find the shape of a model with the settings' adapters; the name is as for `find_shape`.

    Raises:
        UsageError: there is no such model, or no layer with a name in `model.lora_targets`.
        ModelError: a config is missing or cannot be read.
    """
    while adapters.is_adapter(name):
        name = adapters.find_base(Path(name)).name
    if not _is_path(Path(name)):
        return find_shape(name)[1].with_adapters(settings.lora_rank, settings.lora_targets)
    # In float32, so that a tied output layer gets no separate copy.
    exact = replace(settings, precision="float32", dtype="float32", reference_dtype="same")
    return measure_shape(lora.add_adapters(_build_outline(Path(name)), exact, 0))


def measure_shape(model: Any) -> ModelShape:
    """Return the shape of a model, even on the meta device; adapters are peft's."""
    config = model.config.get_text_config(decoder=True)
    heads = config.num_attention_heads
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    adapters = sum(count for name, count in counts.items() if ".lora_" in name)
    layers = sum(count for name, count in counts.items() if NUMBERED.search(name) and ".lora_" not in name)
    linear = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and NUMBERED.search(name) and ".lora_" not in name
    )
    return ModelShape(
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        inner=_read_inner(config),
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=read_head_width(config),
        vocabulary=model.get_input_embeddings().weight.shape[0],
        layer_weights=layers // config.num_hidden_layers,
        other_weights=sum(counts.values()) - adapters - layers + layers % config.num_hidden_layers,
        adapters=adapters,
        qk_norm=any(".q_norm." in name for name in counts),
        has_kernels=config.model_type in LLAMA_LIKE and has_layer_kernels(config),
        linear_weights=linear // config.num_hidden_layers,
    )


def _read_inner(config: Any) -> int:
    """Read the feed-forward width per token."""
    experts = getattr(config, "num_experts_per_tok", None)
    if experts:
        own = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        return int(experts * own)
    return int(getattr(config, "intermediate_size", None) or 4 * config.hidden_size)


def _build_new(size: str) -> ModelShape:
    """Compute the shape of a new model at its full vocabulary."""
    new = SIZES[size]
    return build_shape(new.layers, new.width, 4 * new.width, new.heads, new.kv_heads, new.vocabulary)


def _is_path(path: Path) -> bool:
    """Return whether a model's name is the path of a config or a folder."""
    return path.suffix == ".json" or path.is_dir()


def _find_base_shape(folder: Path) -> ModelShape:
    """Find the shape of the base model of an adapter folder."""
    base = adapters.find_base(folder).name
    try:
        return find_shape(base)[1]
    except UsageError as error:
        raise UsageError(f"The base model of the adapter {folder} is {base}. {error}") from error


def _build_outline(path: Path) -> Any:
    """Build the model of a config on the meta device, without memory for weights."""
    if not path.exists():
        raise ModelError(f"{path} does not exist. Give the path of a model's config.json or its folder.")
    if path.is_dir():
        require_configuration(path)
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        with build_turn, torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except LOADING_ERRORS as error:
        raise explain_loading(str(path), error) from error


def _simplify(name: str) -> str:
    """Return a model's name without owner, variant and separators."""
    return re.sub(r"[-_: ]", "", VARIANTS.sub("", name.rpartition("/")[2].lower()))
