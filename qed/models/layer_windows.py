"""How far back each layer of a model attends, by what its family is known to do.

A configuration alone does not say it: Mistral's has a window and no list of layer types, Qwen2's has a window that is
switched off, and Llama's may carry a window that the model never reads. So families are listed by name, each compared
with its own forward pass in tests/parity/test_model_families.py, and of any other family nothing is assumed.
"""

from __future__ import annotations

from typing import Any

# Every layer attends to everything before, whatever else the configuration holds.
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
# Layers attend to everything before or to a sliding window, as `layer_types` or else `sliding_window` says.
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
# Rotations whose frequencies depend on how long the sequence is.
CHANGING_ROTATIONS = ("dynamic", "longrope")


def is_known_family(config: Any) -> bool:
    """Whether the attention of a model's family is known."""
    return config.get_text_config(decoder=True).model_type in FULL_ATTENTION | SLIDING_ATTENTION


def compute_layer_windows(config: Any) -> tuple[int | None, ...] | None:
    """Return for each layer how many tokens a token attends to, itself included, or None where it attends to all.

    For a family that is not known this is what transformers assumes when it builds a cache. It is None as a whole
    where a layer does something else, such as chunked or linear attention.
    """
    text = config.get_text_config(decoder=True)
    count = int(text.num_hidden_layers)
    if text.model_type in FULL_ATTENTION:
        return (None,) * count
    window = getattr(text, "sliding_window", None) or None  # Qwen2-MoE has 0 for none
    kinds = getattr(text, "layer_types", None)
    if kinds is None:
        if window is None and getattr(text, "attention_chunk_size", None) is not None:
            return None
        kinds = ["full_attention" if window is None else "sliding_attention"] * count
    if not set(kinds) <= {"full_attention", "sliding_attention"}:
        return None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def compute_reached_windows(config: Any, tokens: int) -> tuple[int | None, ...] | None:
    """Return the same for sequences of at most so many tokens: a window that holds them all is no window."""
    windows = compute_layer_windows(config)
    if windows is None:
        return None
    return tuple(None if window is None or window >= tokens else window for window in windows)


def count_fixed_rotation_tokens(config: Any) -> float:
    """Return up to how many tokens the rotations of a model's positions are the same for every length of a sequence.

    Dynamic scaling and LongRoPE (arXiv 2402.13753) change them beyond the original context, for all tokens at once, so
    that keys which were computed before no longer fit.
    """
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    each = [one for one in (rope, *rope.values()) if isinstance(one, dict)]
    scaled = [one for one in each if one.get("rope_type") in CHANGING_ROTATIONS]
    original = getattr(text, "original_max_position_embeddings", None)
    limits = [one.get("original_max_position_embeddings") or original for one in scaled]
    return min((limit or text.max_position_embeddings for limit in limits), default=float("inf"))
