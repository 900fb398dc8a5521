"""The layers of a decoder, computed in ways that transformers does not know.

The last layer is computed only at the inputs whose output is read. A prompt's outputs are not read, only its keys and
values. The feed-forward block of the last layer, which is most of it, can leave these inputs out: in a model of two
layers that is a third of the work on a prompt. All layers are computed with kernels of a device where there are some.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from qed.models.device_layers import can_fuse_layers, compute_layer

# Families whose layers consist of these parts: a block of attention and one of feed-forward, each behind its norm.
LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3")
PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
LINEAR = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
# Whether layers are checkpointed in their class's forward pass, which an own one replaces, or around it.
CHECKPOINTS_INSIDE = "__call__" not in vars(GradientCheckpointingLayer)


def can_read_part(body: nn.Module) -> bool:
    """Return whether a decoder takes `read`, [M] int64, the inputs at which its output is read; it then returns these.

    Args:
        body: a decoder. Its last layer is prepared for the argument, and does the same as before without it.
    """
    layers: Any = getattr(body, "layers", ())
    return _can_replace(body) and _replace_forward(layers[-1], is_last=True)


def can_fuse(body: nn.Module) -> bool:
    """Return whether a decoder takes `fused=True` with a packed row, and computes its layers with a device's kernels.

    Args:
        body: a decoder. Its layers are prepared for the argument, and do the same as before without it.
    """
    layers: Any = getattr(body, "layers", ())
    return can_compute_layers(body) and all(_replace_forward(layer, is_last=layer is layers[-1]) for layer in layers)


def can_compute_layers(body: Any) -> bool:
    """Return whether `compute_layer` computes the layers of a decoder, in the current autocast."""
    return _can_replace(body) and can_fuse_layers(body) and all(map(_is_plain, body.layers))


def _is_plain(layer: Any) -> bool:
    """Return whether the parts of a layer that kernels replace are those of its family, and are watched by nobody."""
    if has_own_forward(layer) or {name for name, _ in layer.named_children()} != PARTS:
        return False
    own, mlp = layer.self_attn, layer.mlp
    inside = {name: part for block in (own, mlp) for name, part in block.named_children()}
    if not LINEAR <= set(inside) <= LINEAR | HEAD_NORMS | {"act_fn"}:
        return False
    norms = layer.input_layernorm, layer.post_attention_layernorm, *(inside[name] for name in HEAD_NORMS & set(inside))
    return all(type(norm).__name__.endswith("RMSNorm") for norm in norms) and not any(
        has_own_forward(part) or part._forward_hooks or part._forward_pre_hooks for part in (own, mlp, *norms)
    )


def _can_replace(body: Any) -> bool:
    config, layers = getattr(body, "config", None), getattr(body, "layers", ())
    return getattr(config, "model_type", "") in LLAMA_LIKE and len(layers) > 0 and body._compiled_call_impl is None


def _replace_forward(layer: Any, is_last: bool) -> bool:
    """Replace the forward pass of a layer by `_forward`, if it is that of its class; return whether it is now."""
    forward = vars(layer).get("forward")
    if forward is None and {name for name, _ in layer.named_children()} == PARTS:
        layer.forward = partial(_forward, layer, is_last)
        return True
    return forward is not None and not has_own_forward(layer)


def has_own_forward(module: nn.Module) -> bool:
    """Return whether the forward pass of a module was replaced, and not for `can_read_part`."""
    forward = vars(module).get("forward")
    return forward is not None and not (isinstance(forward, partial) and forward.func is _forward)


def _forward(
    layer: Any,
    is_last: bool,
    hidden_states: Tensor,
    *,
    read: Tensor | None = None,
    fused: bool = False,
    **settings: Any,
) -> Tensor:
    """Compute a layer, [B, N, H]; the last one at the inputs that are read, [B, M, H]."""
    read = read if is_last else None
    if read is None and not fused:
        whole: Tensor = type(layer).forward(layer, hidden_states, **settings)
        return whole
    compute: Any = partial(compute_layer if fused else _compute_read, layer, read=read, **settings)
    if CHECKPOINTS_INSIDE and layer.gradient_checkpointing and layer.training and torch.is_grad_enabled():
        found: Tensor = layer._gradient_checkpointing_func(compute, hidden_states)
        return found
    computed: Tensor = compute(hidden_states)
    return computed


def _compute_read(layer: Any, hidden_states: Tensor, *, read: Tensor | None, **settings: Any) -> Tensor:
    assert read is not None
    attended, _ = layer.self_attn(hidden_states=layer.input_layernorm(hidden_states), **settings)
    states = hidden_states.index_select(1, read) + attended.index_select(1, read)
    found: Tensor = states + layer.mlp(layer.post_attention_layernorm(states))
    return found
