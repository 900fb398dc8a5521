"""Faster ways to compute a decoder's layers than those of transformers.

The last layer is computed only at inputs whose output is read. A prompt's outputs are not read, only its keys and
values, so the last layer's feed-forward block, which is most of the layer, can skip these inputs: in a model of two
layers, that saves a third of the work on a prompt. All layers use device kernels if there are any.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from qed.models.device_layers import compute_layer, suits_kernels

# Families whose layers have these parts: an attention and a feed-forward block, each after its norm.
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Whether layers are checkpointed inside their class's forward pass, which is replaced here, or around it.
CHECKPOINTS_INSIDE = "__call__" not in vars(GradientCheckpointingLayer)


class Read(NamedTuple):
    """The inputs at which the output of a decoder is read."""

    layer: Any  # the last layer, the only one that skips the other inputs
    places: Tensor  # [M] int64


def read_part(body: nn.Module, places: Tensor) -> Read | None:
    """Return the argument `read` that makes a decoder return its states only at some inputs; None if unsupported.

    Args:
        body: decoder, whose last layer is prepared for the argument; without it, the layer works as before.
        places: [M] int64, indices of the inputs.
    """
    layers: Any = getattr(body, "layers", ())
    return Read(layers[-1], places) if _can_replace(body) and _replace_forward(layers[-1]) else None


def prepare_fused_layers(body: nn.Module) -> bool:
    """Prepare a decoder to compute packed rows with kernels if called with `fused=True`; return whether it can.

    Args:
        body: decoder; without the argument, its layers work as before.
    """
    return can_fuse_layers(body) and all(map(_replace_forward, getattr(body, "layers", ())))


def can_fuse_layers(body: Any) -> bool:
    """Return whether `compute_layer` supports the layers of a decoder, in the current autocast."""
    return _can_replace(body) and suits_kernels(body) and all(map(_is_plain, body.layers))


def has_own_forward(module: nn.Module) -> bool:
    """Return whether other code has replaced a module's forward pass."""
    forward = vars(module).get("forward")
    return forward is not None and not isinstance(forward, _Forward)


def _can_replace(body: Any) -> bool:
    config, layers = getattr(body, "config", None), getattr(body, "layers", ())
    return getattr(config, "model_type", "") in LLAMA_LIKE and len(layers) > 0 and body._compiled_call_impl is None


def _is_plain(layer: Any) -> bool:
    """Return whether the parts that kernels replace are the family's own, without hooks."""
    if layer._compiled_call_impl is not None or {name for name, _ in layer.named_children()} != PARTS:
        return False
    own, mlp = layer.self_attn, layer.mlp
    inside = {name: part for block in (own, mlp) for name, part in block.named_children()}
    if not LINEAR | {"act_fn"} <= set(inside) <= LINEAR | {"act_fn"} | HEAD_NORMS:
        return False
    norms = layer.input_layernorm, layer.post_attention_layernorm, *(inside[name] for name in HEAD_NORMS & set(inside))
    return (
        type(inside["act_fn"]).__name__.startswith("SiLU")
        and all(hasattr(norm, "variance_epsilon") for norm in norms)
        and all(type(part).__module__.startswith("transformers.models.") for part in (own, mlp, *norms))
        and not any(_is_watched(part) for part in (own, mlp, inside["act_fn"], *norms))
    )


def _is_watched(module: nn.Module) -> bool:
    fields = vars(module)
    return "forward" in fields or module._compiled_call_impl is not None or any(fields[name] for name in HOOKS)


def _replace_forward(layer: Any) -> bool:
    """Replace a layer's forward pass if it is still its class's; return whether it is replaced."""
    forward = vars(layer).get("forward")
    if forward is None and {name for name, _ in layer.named_children()} == PARTS:
        layer.forward = _Forward(layer)
        return True
    return forward is not None and not has_own_forward(layer)


class _Forward:
    """A layer's forward pass, set as its attribute; holds a weak reference, so that no cycle delays its deletion."""

    def __init__(self, layer: Any) -> None:
        self._layer = weakref.ref(layer)

    def __call__(
        self, hidden_states: Tensor, *, read: Read | None = None, fused: bool = False, **settings: Any
    ) -> Tensor:
        """Compute the layer, [B, N, H], or for the layer in `read` only the inputs that are read, [B, M, H]."""
        layer = self._layer()
        assert layer is not None
        places = read.places if read is not None and read.layer is layer else None
        if places is None and not fused:
            whole: Tensor = type(layer).forward(layer, hidden_states, **settings)
            return whole
        compute: Any = partial(compute_layer if fused else _compute_read, layer, read=places, **settings)
        if CHECKPOINTS_INSIDE and layer.gradient_checkpointing and layer.training and torch.is_grad_enabled():
            found: Tensor = layer._gradient_checkpointing_func(compute, hidden_states)
            return found
        computed: Tensor = compute(hidden_states)
        return computed

    def __deepcopy__(self, memo: dict[int, Any]) -> _Forward:
        return _Forward(memo.get(id(self._layer()), self._layer()))  # copied as an attribute of the layer

    def __reduce__(self) -> tuple[Any, ...]:
        return _Forward, (self._layer(),)


def _compute_read(layer: Any, hidden_states: Tensor, *, read: Tensor | None, **settings: Any) -> Tensor:
    assert read is not None
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **settings)
    states = hidden_states.index_select(1, read) + attended.index_select(1, read)
    found: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
    return found
