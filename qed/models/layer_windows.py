"""The attention window of each layer of a model, by its family.

A config alone does not determine it: Mistral's has a window but no list of layer types, Qwen2's has a window that is
switched off, and Llama's may have a window that the model never reads. So families are listed by name, and each is
compared with its own forward pass in tests/parity/test_model_families.py. Nothing is assumed about other families.
"""

from __future__ import annotations

from typing import Any

# Every layer attends to all earlier tokens, regardless of the config.
FULL_ATTENTION = frozenset(
    {
        "apertus",
        "arcee",
        "biogpt",
        "bitnet",
        "bloom",
        "cohere",
        "ernie4_5",
        "ernie4_5_moe",
        "falcon",
        "gemma",
        "glm",
        "glm4",
        "gpt2",
        "gpt_bigcode",
        "gpt_neox",
        "gptj",
        "granite",
        "granitemoe",
        "granitemoeshared",
        "helium",
        "jais2",
        "llama",
        "mpt",
        "nemotron",
        "olmo",
        "olmo2",
        "olmoe",
        "opt",
        "persimmon",
        "phi",
        "seed_oss",
        "solar_open",
        "stablelm",
        "xglm",
    }
)
# Layers attend to all earlier tokens or to a sliding window, by `layer_types` if set, or else `sliding_window`.
SLIDING_ATTENTION = frozenset(
    {
        "cohere2",
        "exaone4",
        "gemma2",
        "gemma3_text",
        "gpt_oss",
        "ministral3",
        "mistral",
        "mixtral",
        "olmo3",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "smollm3",
        "starcoder2",
        "vaultgemma",
    }
)
# Rotary embeddings whose frequencies depend on the length of the sequence.
CHANGING_ROTATIONS = ("dynamic", "longrope")


def is_known_family(config: Any) -> bool:
    """Return whether the attention windows of a model's family are known."""
    return config.get_text_config(decoder=True).model_type in FULL_ATTENTION | SLIDING_ATTENTION


def compute_layer_windows(config: Any) -> tuple[int | None, ...] | None:
    """Return for each layer how many tokens a token attends to, including itself, or None if to all.

    For an unknown family these are the windows that transformers assumes when it builds a cache. Return None instead of
    a tuple if a layer has another kind of attention, such as chunked or linear.
    """
    text = config.get_text_config(decoder=True)
    count = int(text.num_hidden_layers)
    if text.model_type in FULL_ATTENTION:
        return (None,) * count
    window = getattr(text, "sliding_window", None) or None  # Qwen2-MoE writes 0 for none
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        if window is None and getattr(text, "attention_chunk_size", None) is not None:
            return None
        kinds = ["full_attention" if window is None else "sliding_attention"] * count
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def compute_reached_windows(config: Any, tokens: int) -> tuple[int | None, ...] | None:
    """Return the layer windows for sequences of at most `tokens` tokens, with None for windows that cover them."""
    windows = compute_layer_windows(config)
    if windows is None:
        return None
    return tuple(None if window is None or window >= tokens else window for window in windows)


def count_fixed_rotation_tokens(config: Any) -> float:
    """Return the length up to which a model's rotary embeddings do not depend on the sequence length.

    Dynamic scaling and LongRoPE (arXiv 2402.13753) change the rotation of all tokens beyond the original context, which
    invalidates cached keys.
    """
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    settings = [entry for entry in (rope, *rope.values()) if isinstance(entry, dict)]
    scaled = [entry for entry in settings if entry.get("rope_type") in CHANGING_ROTATIONS]
    original = getattr(text, "original_max_position_embeddings", None)
    limits = [entry.get("original_max_position_embeddings") or original for entry in scaled]
    return min((limit or text.max_position_embeddings for limit in limits), default=float("inf"))
