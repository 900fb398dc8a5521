"""The layers of a decoder, computed in ways that transformers does not know.

The last layer is computed only at the inputs whose output is read. A prompt's outputs are not read, only its keys and
values. The feed-forward block of the last layer, which is most of it, can leave these inputs out: in a model of two
layers that is a third of the work on a prompt. All layers are computed with kernels of a device where there are some.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from qed.models.device_layers import compute_layer, suits_kernels

# Families whose layers consist of these parts: a block of attention and one of feed-forward, each behind its norm.
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# Whether layers are checkpointed in their class's forward pass, which an own one replaces, or around it.
CHECKPOINTS_INSIDE = "__call__" not in vars(GradientCheckpointingLayer)


class Read(NamedTuple):
    """The inputs at which the output of a decoder is read."""

    layer: Any  # the last one, which alone leaves the others out
    places: Tensor  # [M] int64


def read_part(body: nn.Module, places: Tensor) -> Read | None:
    """Return the argument `read` that makes a decoder return its states at some inputs alone; None if it takes none.

    Args:
        body: a decoder. Its last layer is prepared for the argument, and does the same as before without it.
        places: [M] int64, the inputs.
    """
    layers: Any = getattr(body, "layers", ())
    return Read(layers[-1], places) if _can_replace(body) and _replace_forward(layers[-1]) else None


def prepare_fused_layers(body: nn.Module) -> bool:
    """Prepare a decoder to take `fused=True` with a packed row, which kernels then compute; return whether they can.

    Args:
        body: a decoder. Without the argument its layers do the same as before.
    """
    return can_fuse_layers(body) and all(map(_replace_forward, getattr(body, "layers", ())))


def can_fuse_layers(body: Any) -> bool:
    """Return whether `compute_layer` computes the layers of a decoder, in the current autocast."""
    return _can_replace(body) and suits_kernels(body) and all(map(_is_plain, body.layers))


def has_own_forward(module: nn.Module) -> bool:
    """Return whether the forward pass of a module was replaced, and not by this module."""
    forward = vars(module).get("forward")
    return forward is not None and not isinstance(forward, _Forward)


def _can_replace(body: Any) -> bool:
    config, layers = getattr(body, "config", None), getattr(body, "layers", ())
    return getattr(config, "model_type", "") in LLAMA_LIKE and len(layers) > 0 and body._compiled_call_impl is None


def _is_plain(layer: Any) -> bool:
    """Return whether the parts of a layer that kernels replace are those of its family, and are watched by nobody."""
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
    """Replace the forward pass of a layer, if it is that of its class; return whether it is now."""
    forward = vars(layer).get("forward")
    if forward is None and {name for name, _ in layer.named_children()} == PARTS:
        layer.forward = _Forward(layer)
        return True
    return forward is not None and not has_own_forward(layer)


class _Forward:
    """The forward pass of a layer, as an attribute of it; the two are no cycle, so that nothing delays their end."""

    def __init__(self, layer: Any) -> None:
        self._layer = weakref.ref(layer)

    def __call__(
        self, hidden_states: Tensor, *, read: Read | None = None, fused: bool = False, **settings: Any
    ) -> Tensor:
        """Compute the layer, [B, N, H]; if it is the one that is read, at the inputs that are, [B, M, H]."""
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
        return _Forward(memo.get(id(self._layer()), self._layer()))  # this is copied as an attribute of the layer

    def __reduce__(self) -> tuple[Any, ...]:
        return _Forward, (self._layer(),)


def _compute_read(layer: Any, hidden_states: Tensor, *, read: Tensor | None, **settings: Any) -> Tensor:
    assert read is not None
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **settings)
    states = hidden_states.index_select(1, read) + attended.index_select(1, read)
    found: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
    return found
