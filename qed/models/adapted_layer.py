"""Reads the adapter of a linear layer, and computes such a layer without its module.

peft casts a layer's input to float32 for the adapter (autocast casts it back), scales the adapter's output, and adds
it. This needs extra passes over inputs and outputs, and copies of every layer's input, which are avoided here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qed.models.qlora import dequantize, is_quantized

NAME = "default"  # peft's own name of a single adapter


class Adapter(NamedTuple):
    """The adapter of a linear layer, which adds factor * up (down x) to W x."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs, rank]
    factor: float


def is_adapted_linear(layer: Any) -> bool:
    """Return whether a layer is a linear one with an adapter that is not merged."""
    from peft.tuners.lora import Linear  # noqa: PLC0415 -- slow to import, and few runs use it

    return type(layer) is Linear and type(layer.base_layer) is nn.Linear and not layer.merged


def is_adapted_quantized(layer: Any) -> bool:
    """Return whether a layer is a linear one in 4 bits with an adapter that is not merged."""
    kinds = type(layer), type(getattr(layer, "base_layer", None))
    # Checked by name, because both exist only if bitsandbytes is installed.
    named = all(kind.__name__ == "Linear4bit" for kind in kinds) and kinds[1].__module__.startswith("bitsandbytes.")
    return named and is_quantized(layer.base_layer.weight) and not layer.merged


def read_adapter(layer: Any) -> Adapter | None:
    """Return the single adapter of such a layer; None if the layer computes anything else."""
    if layer.active_adapters != [NAME] or layer.lora_variant or not isinstance(layer.lora_dropout[NAME], nn.Identity):
        return None
    down, up = layer.lora_A[NAME], layer.lora_B[NAME]
    if down.bias is not None or up.bias is not None:
        return None
    return Adapter(down.weight, up.weight, float(layer.scaling[NAME]))


def multiply_adapted(layer: Any, states: Tensor) -> Tensor:
    """Compute a linear layer, [N, outputs] from [N, inputs], in the precision of its input.

    Args:
        layer: linear layer with or without an adapter; called as a module unless it is adapted and plain or 4-bit.
        states: inputs, in the precision of products.
    """
    adapted = hasattr(layer, "lora_A") and (is_adapted_linear(layer) or is_adapted_quantized(layer))
    if not adapted or _is_watched(layer) or layer.disable_adapters:
        called: Tensor = layer(states)
        return called
    adapter = read_adapter(layer)
    if adapter is None:
        called = layer(states)
        return called
    base = layer.get_base_layer()
    added: Tensor = _Adapted.apply(states, base.weight, base.bias, adapter.down, adapter.up, adapter.factor)
    return added


def _is_watched(layer: Any) -> bool:
    parts = layer, layer.get_base_layer(), *layer.lora_A.values(), *layer.lora_B.values()
    return any(part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) for part in parts)


class _Adapted(torch.autograd.Function):
    """Computes states @ weight.T + bias + factor * states @ down.T @ up.T; the weight and the bias are frozen."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, factor: float
    ) -> Tensor:
        dtype = states.dtype
        lower, upper = down.to(dtype), up.to(dtype)
        # A 4-bit weight is dequantized again for the backward pass, instead of being stored in full.
        ctx.quantized = weight if is_quantized(weight) else None
        weight = weight.to(dtype) if ctx.quantized is None else dequantize(weight, dtype)
        inner = states @ lower.T
        product = nn.functional.linear(states, weight, None if bias is None else bias.to(dtype))
        ctx.save_for_backward(states, inner, lower, upper, *([weight] if ctx.quantized is None else []))
        ctx.factor, ctx.dtypes = factor, (down.dtype, up.dtype)
        return product.addmm_(inner, upper.T, alpha=factor)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        states, inner, lower, upper, *plain = ctx.saved_tensors
        slope = slopes[0].to(states.dtype)
        of_inner = (slope @ upper).mul_(ctx.factor)
        of_states = None
        if ctx.needs_input_grad[0]:
            weight = plain[0] if plain else dequantize(ctx.quantized, slope.dtype)
            of_states = (slope @ weight).addmm_(of_inner, lower)
        of_up = (slope.T @ inner).mul_(ctx.factor)
        of_down = of_inner.T @ states
        return of_states, None, None, of_down.to(ctx.dtypes[0]), of_up.to(ctx.dtypes[1]), None
