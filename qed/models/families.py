"""What is known of a model's family: its text configuration, its decoder and output layer, the scale and cap of its
logits, and what would be computed wrongly and is refused by name.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qed.errors import ModelError

# Layers that carry a state from token to token. Padding and packed rows leak into it.
RECURRENT = {"linear_attention", "mamba", "recurrent", "conv", "hybrid", "hybrid_sliding"}
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
# Fields of a configuration that multiply the logits, and those that divide them.
FACTORS = ("logit_scale", "lm_head_multiplier", "output_multiplier")
DIVISORS = ("logits_scaling",)
MULTIPLIED = ("hyperclovax", "hyperclovax_vision_v2")  # families that multiply by what is a divisor elsewhere
PROBE_TOKENS = 8
TRAINED = "Llama, Mistral, Qwen2, Qwen3, Gemma, Phi-3, Granite, Cohere, OLMo 2 or GPT-2, for example"


class LogitTransform(NamedTuple):
    """What a model does to its logits z before the softmax: cap * tanh(scale * z / cap), or scale * z without a cap."""

    scale: float = 1.0
    cap: float | None = None

    def apply(self, logits: Tensor) -> Tensor:
        """The transformed logits, of the same shape."""
        logits = logits * self.scale
        return logits if self.cap is None else torch.tanh(logits / self.cap) * self.cap


IDENTITY = LogitTransform()


def read_text_config(model: Any) -> Any:
    """Return the configuration of a model's text part, which is the whole one where the model has no other part."""
    return model.config.get_text_config(decoder=True)


def require_known_layers(name: str, config: Any, kind: type | None) -> None:
    """Refuse a model whose layers carry a recurrent state.

    Args:
        name: of the model, for the message.
        config: its configuration.
        kind: the class that computes it, where that is known.

    Raises:
        ModelError: it is of such a family.
    """
    layers = set(getattr(config.get_text_config(decoder=True), "layer_types", None) or ())
    stateful = bool(getattr(kind, "_is_stateful", False)) and not (layers and layers <= ATTENTION)
    if layers & RECURRENT or stateful:
        found = ", ".join(sorted(layers & RECURRENT)) or type(config).__name__
        raise ModelError(
            f"{name} is a {config.model_type} model, whose layers carry a recurrent state along a row ({found}). "
            "qed pads and packs rows of several lengths, which leaks into such a state, so its log-probs would be "
            f"wrong. Take a model of attention alone: {TRAINED}."
        )


def choose_attention(config: Any) -> str | None:
    """Name the attention that a model must be loaded with; None where transformers may choose.

    The fused kernels of PyTorch know no cap on the attention's logits.
    """
    return "eager" if getattr(config.get_text_config(decoder=True), "attn_logit_softcapping", None) else None


def remove_attention_kernels(config: Any) -> Any:
    """A configuration that names no attention to be fetched from the hub, which would be code of somebody else's."""
    for part in (config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))):
        for name, value in list(vars(part).items()) if part is not None else ():
            if name.removeprefix("_").removesuffix("_internal").endswith("_implementation") and "/" in str(value):
                setattr(part, name, None)
    return config


def split_head(model: nn.Module) -> tuple[nn.Module, nn.Linear]:
    """Return the text decoder of a causal language model and its output layer."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    config = getattr(model, "config", None)
    if config is not None and config.get_text_config(decoder=True) is not config:
        body = model.get_decoder()  # type: ignore[operator]
    else:
        body = getattr(model, getattr(model, "base_model_prefix", "model"), None)
    if not isinstance(head, nn.Linear) or not isinstance(body, nn.Module):
        raise ModelError(f"{type(model).__name__} is no causal language model with a linear output layer.")
    return body, head


def read_logit_transform(model: nn.Module) -> LogitTransform:
    """Return what a model does to the output layer's logits, by its configuration.

    Raises:
        ModelError: a scale there is no number.
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
            raise ModelError(f"{type(model).__name__} scales its logits by {name} {value!r}, which is no number but 0.")
        scale = scale * value if name in FACTORS or config.model_type in MULTIPLIED else scale / value
    cap = getattr(config, "final_logit_softcapping", None)
    return LogitTransform(scale, float(cap) if cap else None)


@torch.no_grad()
def require_known_logits(model: nn.Module) -> None:
    """Compare the logits that training computes with those of the model's own forward pass, on a few tokens.

    Raises:
        ModelError: they differ: the family does something else between its hidden states and its logits.
    """
    body, head = split_head(model)
    training, name = model.training, type(model).__name__
    ids = torch.arange(PROBE_TOKENS, device=head.weight.device)[None] % head.weight.shape[0]
    model.eval()
    try:
        wanted = model(input_ids=ids, use_cache=False).logits
        found = read_logit_transform(model).apply(head(body(input_ids=ids, use_cache=False).last_hidden_state))
    except (TypeError, AttributeError) as error:
        raise ModelError(f"{name} cannot be asked for its hidden states ({error}), so it cannot be trained.") from error
    finally:
        model.train(training)
    tolerance = 1e-3 if wanted.dtype in (torch.float32, torch.float64) and not _is_half(head, ids) else 0.03
    if wanted.shape == found.shape:
        bound = tolerance * float(wanted.float().abs().nan_to_num().max())
        if torch.allclose(found.float(), wanted.float(), rtol=0, atol=bound, equal_nan=True):
            return
    raise ModelError(
        f"{name} ({model.config.model_type}) does something between its hidden states and its logits that qed does not "  # type: ignore[union-attr]
        "know: the logits that training would compute are not those of its forward pass, so nothing has been trained. "
        f"qed evaluate still measures it. To train, take another model: {TRAINED}."
    )


def _is_half(head: nn.Linear, ids: Tensor) -> bool:
    """Whether products are computed in half precision."""
    return torch.is_autocast_enabled(ids.device.type) or head.weight.dtype in (torch.bfloat16, torch.float16)
