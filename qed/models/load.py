"""Loads a model and its tokenizer, or builds a small model with random weights and a tokenizer from a task's text.

Weights have the dtype `model.dtype`, by default float32, or float64 if the computation is in float64. Code from a
model's repository is never run, and pickled weights are never read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import AddedToken
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)
from transformers.utils.logging import disable_progress_bar

from qed import host
from qed.config.settings import ModelSettings
from qed.console.progress import report_progress, say_on_stderr
from qed.errors import ModelError, UsageError, suggest_nearest
from qed.models import adapters, qlora
from qed.models.chat_template import find_turn_end
from qed.models.families import choose_attention, read_text_config, remove_noise, require_steady_training
from qed.models.fast_float32 import is_faster, recompute_alike
from qed.models.initial_weights import build_turn, seed_initial_weights
from qed.models.precision import KeepFloat64, cast_weights, read_weights_dtype, require_float64
from qed.models.rounded_products import lacks_bfloat16
from qed.models.sources import (
    LOADING_ERRORS,
    describe_source,
    explain_loading,
    load_configuration,
    load_pretrained,
    read_tokenizer,
    require_folder,
    silence_length_warning,
)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
disable_progress_bar()


@dataclass(frozen=True)
class Size:
    """The shape of a model with random weights."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    vocabulary: int
    window: int


# Numbers of parameters, including tied embeddings: 0.6 M, 4.5 M, 36 M and 128 M at the full vocabulary.
SIZES = {
    "tiny": Size(layers=2, width=128, heads=4, kv_heads=2, vocabulary=512, window=512),
    "small": Size(layers=4, width=256, heads=8, kv_heads=4, vocabulary=2048, window=1024),
    "medium": Size(layers=8, width=512, heads=8, kv_heads=4, vocabulary=8192, window=2048),
    "large": Size(layers=12, width=768, heads=12, kv_heads=4, vocabulary=32000, window=2048),
}

SPECIAL = ("<|pad|>", "<|user|>", "<|assistant|>", "<|end|>")
# Added tokens, but not special ones, because decoding often skips special tokens and must not drop the tags.
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|assistant|>' + message['content'] + '<|end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def is_new(name: str) -> bool:
    """Return whether a name, such as new:tiny, stands for a new model with random weights."""
    return name.startswith("new:")


def check_name(name: str) -> None:
    """Raise a UsageError for a new model whose size is not in `SIZES`."""
    size = name.removeprefix("new:")
    if is_new(name) and size not in SIZES:
        raise UsageError(
            f"There is no model size '{size}'.{suggest_nearest(size, SIZES)} There are: {', '.join(SIZES)}."
        )


def build_model(name: str, texts: Iterable[str], seed: int) -> tuple[nn.Module, Any]:
    """Build a small Qwen2 with random weights and a tokenizer trained on the texts; the seed determines the weights."""
    check_name(name)
    size = SIZES[name.removeprefix("new:")]
    tokenizer = build_tokenizer(texts, size.vocabulary)
    tokenizer.model_max_length = size.window
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=size.width,
        intermediate_size=4 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=size.window,
        # About 0.07 at width 128: narrow models learn many times slower with the usual 0.02.
        initializer_range=0.8 / size.width**0.5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with seed_initial_weights(seed, "initial weights"):
        return Qwen2ForCausalLM(config), tokenizer


def build_tokenizer(texts: Iterable[str], vocabulary: int) -> Any:
    """Train a byte-level BPE tokenizer with single-digit tokens, a chat template and the reasoning and answer tags.

    It is a Qwen2Tokenizer, because transformers loads a Qwen2 folder's tokenizer with that class.
    """
    base = Qwen2Tokenizer(
        vocab={token: number for number, token in enumerate(SPECIAL)},
        unk_token="<|pad|>",  # never used: every byte has a token
        eos_token="<|end|>",
        pad_token="<|pad|>",
        extra_special_tokens=["<|user|>", "<|assistant|>"],
    )
    numbered = report_progress(texts, say_on_stderr, "Training the tokenizer", "texts")
    tokenizer = base.train_new_from_iterator(
        (_remove_tags(text) for _, text in numbered), vocabulary - len(TAGS), show_progress=False
    )
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAGS])
    tokenizer.chat_template = CHAT_TEMPLATE
    silence_length_warning(tokenizer)
    return tokenizer


def _remove_tags(text: str) -> str:
    """Replace tags with line breaks: they are added tokens, so no merges should be learned for them."""
    for tag in TAGS:
        text = text.replace(tag, "\n")
    return text


def load_model(settings: ModelSettings) -> tuple[nn.Module, Any]:
    """Load a causal language model and its tokenizer from a Hugging Face folder or the hub onto the CPU.

    The weights have the precision of `read_weights_dtype`. A quantized model is loaded directly onto the device of the
    settings, where it is quantized. For an adapter folder, the base model is loaded and the adapter merged into it.

    Raises:
        ModelError: the model is not found, or has no tokenizer, only pickled weights, or an adapter that does not fit.
    """
    if not adapters.is_adapter(settings.name):
        return _load_complete(settings)
    qlora.require_quantizable(settings)
    folder = Path(settings.name)
    base = adapters.find_base(folder)
    try:
        # At least in float32, because merging adapters into bfloat16 weights would round twice.
        model, tokenizer = load_model(replace(settings, name=base.name, revision=base.revision, dtype="float32"))
    except ModelError as error:
        raise ModelError(
            f"The base model of the adapter {folder} is {base.name}, as {folder / adapters.CONFIG} says. {error}"
        ) from error
    if adapters.has_tokenizer(folder):
        tokenizer, _ = load_tokenizer(settings.name)
    model = model if base.merged else adapters.merge_into(model, tokenizer, folder)
    cast_weights(model, read_weights_dtype(settings))
    return model, tokenizer


def _load_complete(settings: ModelSettings) -> tuple[nn.Module, Any]:
    """Load a model with all of its weights."""
    source = describe_source(settings)
    try:
        config, tokenizer = load_configuration(settings, source)
        _require_language_model(settings.name, config)
        quantization = qlora.build_quantization_options(settings, pick_device(settings.device))
        model, loading_info = load_pretrained(AutoModelForCausalLM, settings, config, source, **quantization)
    except LOADING_ERRORS as error:
        raise explain_loading(settings.name, error) from error
    if loading_info["missing_keys"]:
        _require_language_model(settings.name, config, loading_info["unexpected_keys"])
        missing = sorted(loading_info["missing_keys"])
        raise ModelError(
            f"{len(missing)} weights are missing from {settings.name}, such as {missing[0]}; they would be "
            "random numbers."
        )
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        raise ModelError(
            f"The tokenizer of {settings.name} has {len(tokenizer)} tokens, but the model's embedding only "
            f"{model.get_input_embeddings().num_embeddings}: they do not match."
        )
    return model, tokenizer


def _require_language_model(name: str, config: Any, unexpected: Iterable[str] = ()) -> None:
    """Reject a model with a scoring head; with tied embeddings, no weight of a language model would be missing.

    Raises:
        ModelError: its config names such an architecture, or the weight of such a head is `unexpected`.
    """
    heads = ("ForSequenceClassification", "ForTokenClassification")
    if "score.weight" in unexpected or all(kind.endswith(heads) for kind in config.architectures or ("",)):
        raise ModelError(
            f"{name} is a reward model or a critic: it scores answers but cannot generate them. Use it "
            "with --reward model:FOLDER as a reward, or with --algorithm.critic.start FOLDER as PPO's critic."
        )


def load_outline(settings: ModelSettings) -> tuple[nn.Module, Any]:
    """Load a model without weights, on the meta device, and its tokenizer; for an adapter folder, its base model.

    Raises:
        ModelError: the model is not found, has no tokenizer, or cannot be trained.
    """
    if adapters.is_adapter(settings.name):
        base = adapters.find_base(Path(settings.name))
        return load_outline(replace(settings, name=base.name, revision=base.revision))
    source = describe_source(settings)
    try:
        config, tokenizer = load_configuration(settings, source)
        _require_language_model(settings.name, config)
        with build_turn, torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, attn_implementation=choose_attention(config, settings.attention)
            )
        model.generation_config = None
        return model, tokenizer
    except LOADING_ERRORS as error:
        raise explain_loading(settings.name, error) from error


def load_tokenizer(name: str, revision: str = "") -> tuple[Any, Any]:
    """Load a model's tokenizer without its weights, and an object with its configs for `find_end_ids`.

    Args:
        name: name or folder of the model, or folder of an adapter.
        revision: revision on the hub, empty for the newest; an adapter folder sets its base model's.

    Raises:
        ModelError: the tokenizer is missing or cannot be read.
    """
    complete = name
    while adapters.is_adapter(complete):
        base = adapters.find_base(Path(complete))
        complete, revision = base.name, base.revision
    source = {"revision": revision} if revision and not Path(complete).is_dir() else {}
    require_folder(complete)
    try:
        tokenizer = read_tokenizer(name, {}) if adapters.has_tokenizer(Path(name)) else read_tokenizer(complete, source)
        config = AutoConfig.from_pretrained(complete, trust_remote_code=False, **source)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        first = str(error).strip().split("\n")[0]
        raise ModelError(
            f"The tokenizer of {name} cannot be loaded: {first} Use a folder with config.json and tokenizer files, "
            "a hub name that is reachable from here, or new:small for one trained on the data's text."
        ) from error
    try:
        generation = GenerationConfig.from_pretrained(complete, **source)
    except OSError:
        generation = None
    return tokenizer, SimpleNamespace(config=config, generation_config=generation)


def prepare_model(model: nn.Module, settings: ModelSettings, device: torch.device) -> nn.Module:
    """Move a model to its device, ready to train, without dropout: sampling and training must see the same policy.

    Raises:
        UsageError: the device does not support the precision, or the family is noisy in training mode.
    """
    host.collect_garbage_as_usual()
    require_float64(settings, device)
    remove_noise(model)
    if settings.gradient_checkpointing:
        require_steady_training(model)
        # Transformers 5.24 renamed this method and warns about the old name.
        names = ("activation_checkpointing_enable", "gradient_checkpointing_enable")
        enable: Any = next(getattr(model, name) for name in names if hasattr(model, name))
        enable({"use_reentrant": False, **_recompute_alike(settings)})
    # Only gradient checkpointing needs training mode; without noise both modes compute the same.
    return model.train(settings.gradient_checkpointing).to(device)


def _recompute_alike(settings: ModelSettings) -> dict[str, Any]:
    """Return the checkpointing option that recomputes like the forward pass; checkpointing itself restores autocast."""
    if settings.precision == "float64":
        return {"context_fn": lambda: (nullcontext(), KeepFloat64())}
    return {"context_fn": recompute_alike} if is_faster() or lacks_bfloat16() else {}


def pick_device(name: str) -> torch.device:
    """Return the device with a name; auto prefers CUDA, then MPS, then the CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"The device '{name}' cannot be used here: {str(error).splitlines()[0]}") from error
    return device


def find_end_ids(model: Any, tokenizer: Any, chat: bool) -> tuple[int, ...]:
    """Find all token ids that end a completion; the first one is appended to demonstrations.

    Raises:
        ModelError: neither the tokenizer nor the model has an end token.
    """
    candidates: Sequence[Any] = [
        find_turn_end(tokenizer) if chat else None,
        tokenizer.eos_token_id,
        find_turn_end(tokenizer),
        *_as_list(getattr(model.config, "eos_token_id", None)),
        *_as_list(getattr(read_text_config(model), "eos_token_id", None)),
        *_as_list(getattr(getattr(model, "generation_config", None), "eos_token_id", None)),
    ]
    ends = tuple(dict.fromkeys(int(token) for token in candidates if token is not None))
    if not ends:
        raise ModelError("The model has no end token: set eos_token in its tokenizer_config.json.")
    return ends


def set_end_ids(model: Any, ends: tuple[int, ...]) -> None:
    """Write the end ids into a model's generation config, so that generation from a checkpoint stops at them."""
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.eos_token_id = list(ends)


def read_window(model: Any) -> int:
    """Return the context length of a model in tokens."""
    return int(getattr(read_text_config(model), "max_position_embeddings", 0) or 1 << 30)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]
