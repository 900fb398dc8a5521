"""Properties of model families: text configuration, decoder and output layer, scale and cap of the logits.

Families that qed would compute incorrectly are rejected by name.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qed.errors import ModelError, UsageError

# Layers with a recurrent state, which padding and packed rows would corrupt.
RECURRENT = {"linear_attention", "mamba", "recurrent", "conv", "hybrid", "hybrid_sliding"}
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
# Config fields that multiply the logits, and those that divide them.
FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
DIVISORS = ("logits_scaling",)
MULTIPLIED = ("hyperclovax", "hyperclovax_vision_v2")  # families that multiply by a field by which others divide
# Noise besides dropout in training mode, and families whose layers then choose experts at random.
JITTER = ("jitter_noise", "input_jitter_noise", "moe_jitter_eps")
DRAWS_EXPERTS = ("phimoe",)
PROBE_TOKENS = 8
TRAINED = "Llama, Mistral, Qwen2, Qwen3, Gemma, Phi-3, Granite, Cohere, OLMo 2 or GPT-2, for example"


class LogitTransform(NamedTuple):
    """A transform of a model's logits z before the softmax: cap * tanh(scale * z / cap), or scale * z without cap."""

    scale: float = 1.0
    cap: float | None = None

    def apply(self, logits: Tensor) -> Tensor:
        """Return the transformed logits, in the same shape."""
        logits = logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


IDENTITY = LogitTransform()


def read_text_config(model: Any) -> Any:
    """Return the config of a model's text part; for a text-only model, its whole config."""
    return model.config.get_text_config(decoder=True)


def read_head_width(config: Any) -> int:
    """Return the width of an attention head from a text configuration."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def require_known_layers(name: str, config: Any, kind: type | None) -> None:
    """Reject a model whose layers carry a recurrent state.

    Args:
        name: name of the model, for the message.
        config: config of the model.
        kind: class of the model in transformers, if known.

    Raises:
        ModelError: the model has such layers.
    """
    layers = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    stateful = bool(getattr(kind, "_is_stateful", False)) and not (layers and layers <= ATTENTION)
    if layers & RECURRENT or stateful:
        kinds = ", ".join(sorted(layers & RECURRENT)) or type(config).__name__
        raise ModelError(
            f"{name} is a {config.model_type} model, whose layers carry a recurrent state along a row ({kinds}). "
            "qed pads and packs rows of several lengths, which leaks into such a state, so its log-probs would be "
            f"wrong. Use a model with attention only: {TRAINED}."
        )


def choose_attention(config: Any, wanted: str = "auto") -> str | None:
    """Choose the attention implementation to load a model with; None lets transformers choose.

    PyTorch's fused kernels do not support a cap on attention logits.

    Args:
        config: config of the model.
        wanted: `model.attention`.

    Raises:
        UsageError: the model or the machine does not support it.
    """
    capped = bool(getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None))
    if wanted == "sdpa" and capped:
        raise UsageError(
            f"model.attention sdpa would leave out the cap on attention logits that {config.model_type} models have. "
            "Use auto or eager."
        )
    if wanted == "flash_attention_2" and not (find_spec("flash_attn") and torch.cuda.is_available()):
        raise UsageError(
            "model.attention flash_attention_2 needs a CUDA device and the package flash-attn. With sdpa, PyTorch uses "
            "its own flash kernels where they apply."
        )
    return wanted if wanted != "auto" else "eager" if capped else None


def remove_noise(model: nn.Module) -> None:
    """Switch off a model's randomness in training mode: dropout of all kinds, and router jitter."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            # Families use different names, such as residual_dropout, attn_dropout or layerdrop.
            if isinstance(value, float) and ("drop" in name or name in JITTER):
                setattr(module, name, 0.0)


def require_steady_training(model: Any) -> None:
    """Reject a model that, even without dropout, computes differently in training mode than in sampling.

    Raises:
        UsageError: its layers choose a token's experts at random in training mode.
    """
    kind = getattr(getattr(model, "config", None), "model_type", "")
    if kind in DRAWS_EXPERTS:
        raise UsageError(
            f"model.gradient_checkpointing needs the training mode of the layers, in which {kind} models choose the "
            "experts of a token at random: their log-probs would not be those of the sampling policy. Use "
            "model.gradient_checkpointing=false."
        )


def remove_attention_kernels(config: Any) -> Any:
    """Remove attention kernels that would be downloaded from the hub, because they are third-party code."""
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))):
        for name, value in list(vars(part).items()) if part is not None else ():
            if name.removeprefix("_").removesuffix("_internal").endswith("_implementation") and "/" in str(value):
                setattr(part, name, None)
    return config


def find_scalar_head(model: nn.Module) -> nn.Linear | None:
    """Return the head of a model for sequence classification with one label, such as a critic; None for others."""
    head = getattr(model, "score", None)
    return head if isinstance(head, nn.Linear) and head.out_features == 1 else None


def split_head(model: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """Return the text decoder of a causal language model and its output layer, or its scalar head."""
    head = find_scalar_head(model) or model.get_output_embeddings()  # type: ignore[operator]
    config = getattr(model, "config", None)
    if config is not None and config.get_text_config(decoder=True) is not config:
        body = model.get_decoder()  # type: ignore[operator]
    else:
        body = getattr(model, getattr(model, "base_model_prefix", "model"), None)
    if not isinstance(head, nn.Linear) or not isinstance(body, nn.Module):
        raise ModelError(f"{type(model).__name__} is not a causal language model with a linear output layer.")
    return body, head


def read_logit_transform(model: nn.Module) -> LogitTransform:
    """Return the transform of a model's logits according to its config.

    Raises:
        ModelError: a scale is not a nonzero number.
    """
    config: Any = getattr(model, "config", None)
    if config is None:
        return IDENTITY
    config = config.get_text_config(decoder=True)
    scale = 1.0
    for name in (*FACTORS, *DIVISORS):
        value = getattr(config, name, None)
        if value is None:
            continue
        if not isinstance(value, int | float) or value == 0:
            raise ModelError(f"{type(model).__name__} scales its logits by {name} {value!r}: not a nonzero number.")
        scale = scale * value if name in FACTORS or config.model_type in MULTIPLIED else scale / value
    cap = getattr(config, "final_logit_softcapping", None)
    return LogitTransform(scale, float(cap) if cap else None)


@torch.no_grad()
def require_known_logits(model: nn.Module) -> None:
    """Reject a model whose forward pass gives different logits than training computes, on a few tokens.

    A model without its own forward pass, with only a body and a head, has no other logits, and a model with a scalar
    head has none.

    Raises:
        ModelError: the logits differ: the family transforms hidden states or logits in a way unknown to qed.
    """
    if type(model).forward is nn.Module.forward or find_scalar_head(model) is not None:
        return
    body, head = split_head(model)
    training, name = model.training, type(model).__name__
    ids = torch.arange(PROBE_TOKENS, device=head.weight.device)[None] % head.weight.shape[0]
    model.eval()
    try:
        expected = model(input_ids=ids, use_cache=False).logits
        computed = read_logit_transform(model).apply(head(body(input_ids=ids, use_cache=False).last_hidden_state))
    except (TypeError, AttributeError) as error:
        raise ModelError(f"{name} does not return hidden states ({error}), so it cannot be trained.") from error
    finally:
        model.train(training)
    tolerance = 1e-3 if expected.dtype in (torch.float32, torch.float64) and not _is_half(head, ids) else 0.03
    if expected.shape == computed.shape:
        bound = tolerance * float(expected.float().abs().nan_to_num().max())
        if torch.allclose(computed.float(), expected.float(), rtol=0, atol=bound, equal_nan=True):
            return
    raise ModelError(
        f"{name} ({model.config.model_type}) computes its logits from hidden states in a way that qed does not "  # type: ignore[union-attr]
        "know: the logits that training would compute are not those of its forward pass, so nothing has been trained. "
        f"qed evaluate still works. To train, use another model: {TRAINED}."
    )


def _is_half(head: nn.Linear, ids: Tensor) -> bool:
    """Return whether the output layer computes in half precision."""
    return torch.is_autocast_enabled(ids.device.type) or head.weight.dtype in (torch.bfloat16, torch.float16)
