"""The layers of Llama-like models over a packed row on a CUDA device, with Triton kernels between the products.

Linear layers are called as modules, under autocast, except plain and 4-bit ones with adapters.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface

from qed.kernels.functions import has_half_kernels
from qed.kernels.trials import try_kernels
from qed.models.adapted_layer import multiply_adapted
from qed.models.families import read_head_width
from qed.models.layer_windows import compute_layer_windows
from qed.models.precision import read_compute_dtype

# Queries [N, heads, D], keys and values [N, kv_heads, D], the scaling and the window.
Attend = Callable[[Tensor, Tensor, Tensor, float, int | None], Tensor]
WIDEST = 1 << 14  # states that a kernel holds in registers
TRIAL_ROWS, TRIAL_WIDTH, TRIAL_HEADS = 70, 96, 3
TRIAL_ERROR = 0.02  # largest relative error allowed; bfloat16 rounding alone stays below 0.01


def suits_kernels(body: Any) -> bool:
    """Return whether the kernels support a Llama-like decoder: its sizes, its device and the precision of products."""
    config, weight = body.config, next(body.parameters())
    dtype = read_compute_dtype(weight)
    return (
        weight.device.type == "cuda"
        and has_layer_kernels(config)
        and compute_layer_windows(config) is not None
        and not (body.training and getattr(config, "attention_dropout", 0.0))
        and has_half_kernels(weight.device, dtype)
        and not find_fault(weight.device, dtype)
    )


def has_layer_kernels(config: Any) -> bool:
    """Return whether there are kernels for layers of these sizes."""
    return config.hidden_act == "silu" and fits_kernels(config.hidden_size, read_head_width(config))


def fits_kernels(width: int, head_width: int) -> bool:
    """Return whether there are kernels for states and heads of these widths; head widths must be powers of two."""
    return width <= WIDEST and head_width & (head_width - 1) == 0


def compute_layer(
    layer: Any,
    hidden_states: Tensor,
    *,
    position_embeddings: tuple[Tensor, Tensor],
    read: Tensor | None,
    attend: Attend | None = None,
    **settings: Any,
) -> Tensor:
    """Compute a layer over a packed row, [1, N, H], or only at some inputs.

    Args:
        layer: layer of a decoder that `can_fuse_layers` accepts.
        hidden_states: [1, N, H].
        position_embeddings: cos and sin of the rotations, [1, N, D].
        read: [M] int64, inputs whose states to return, [1, M, H]; None for all.
        attend: computes the attention, [N, heads * D]; None uses the model's registered one.
        settings: settings of the model's attention.
    """
    own, mlp, states = layer.self_attn, layer.mlp, hidden_states[0]
    angles = [each[0].contiguous() for each in position_embeddings]
    states, normed = _add_and_norm(states, None, layer.input_layernorm)
    query = _rotate(multiply_adapted(own.q_proj, normed), angles, own, "q_norm")
    key = _rotate(multiply_adapted(own.k_proj, normed), angles, own, "k_norm")
    value = multiply_adapted(own.v_proj, normed).view(len(normed), -1, own.head_dim)
    windows = compute_layer_windows(own.config)
    assert windows is not None
    if attend is None:
        settings |= {"scaling": own.scaling, "sliding_window": windows[own.layer_idx]}
        attended = _attend_by_name(own, (query, key, value), settings)
    else:
        attended = attend(query, key, value, own.scaling, windows[own.layer_idx])
    change = multiply_adapted(own.o_proj, attended)
    if read is not None:
        states, change = states.index_select(0, read), change.index_select(0, read)
    states, normed = _add_and_norm(states, change, layer.post_attention_layernorm)
    opened: Tensor = _Gate.apply(multiply_adapted(mlp.gate_proj, normed), multiply_adapted(mlp.up_proj, normed))
    return (states + multiply_adapted(mlp.down_proj, opened))[None]


def _attend_by_name(own: Any, heads: tuple[Tensor, Tensor, Tensor], settings: dict[str, Any]) -> Tensor:
    """Compute transformers' attention for the model, [N, heads * D] from [N, heads, D]."""
    attend: Any = AttentionInterface()[own.config._attn_implementation]
    attended, _ = attend(own, *(each.transpose(0, 1)[None] for each in heads), **settings)
    states: Tensor = attended.reshape(len(heads[0]), -1)
    return states


def _add_and_norm(states: Tensor, change: Tensor | None, norm: Any) -> tuple[Tensor, Tensor]:
    """Return states with a change added, and their norm in the precision of products."""
    dtype = read_compute_dtype(states)
    summed, normed = _Norm.apply(states, change, norm.weight, norm.variance_epsilon, dtype)
    return summed, normed


def _rotate(states: Tensor, angles: list[Tensor], own: Any, name: str) -> Tensor:
    """Return rotated heads, [N, heads, D], from [N, heads * D]."""
    norm: Any = getattr(own, name, None)
    weight, epsilon = (None, 0.0) if norm is None else (norm.weight, norm.variance_epsilon)
    rotated: Tensor = _Rotate.apply(states, *angles, weight, epsilon, own.head_dim)
    return rotated


class _Norm(torch.autograd.Function):
    """Adds a change to states, and computes their RMSNorm."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, change: Tensor | None, weight: Tensor, epsilon: float, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        from qed.kernels.cuda import layers  # noqa: PLC0415 -- Triton may be missing

        states, change = states.contiguous(), None if change is None else change.contiguous()
        summed, normed, scales = layers.norm(states, change, weight, epsilon, dtype)
        ctx.change = None if change is None else change.dtype
        ctx.save_for_backward(summed, weight, scales)
        return summed, normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        from qed.kernels.cuda import layers  # noqa: PLC0415

        summed, weight, scales = ctx.saved_tensors
        of_summed, of_normed = (each.contiguous() for each in slopes)
        trained = ctx.needs_input_grad[2]
        found = layers.reverse_norm(of_normed, of_summed, summed, weight, scales, ctx.change, trained)
        return *found, None, None


class _Rotate(torch.autograd.Function):
    """Normalises heads if they have a norm, and rotates them."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, cos: Tensor, sin: Tensor, norm: Tensor | None, epsilon: float, width: int
    ) -> Tensor:
        from qed.kernels.cuda import layers  # noqa: PLC0415

        states = states if states.stride(-1) == 1 else states.contiguous()
        ctx.epsilon = epsilon
        ctx.save_for_backward(states if norm is not None else None, cos, sin, norm)
        return layers.rotate(states, cos, sin, norm, epsilon, width)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        from qed.kernels.cuda import layers  # noqa: PLC0415

        states, cos, sin, norm = ctx.saved_tensors
        given = slopes[0].contiguous()
        states = given.flatten(1) if states is None else states  # not read without a norm
        of_states, of_norm = layers.reverse_rotate(given, states, cos, sin, norm, ctx.epsilon)
        return of_states, None, None, of_norm, None, None


class _Gate(torch.autograd.Function):
    """Computes silu(gates) * ups."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, ups: Tensor) -> Tensor:
        from qed.kernels.cuda import decoding  # noqa: PLC0415

        gates, ups = (each if each.stride(-1) == 1 else each.contiguous() for each in (gates, ups))
        ctx.save_for_backward(gates, ups)
        with torch.cuda.device_of(gates):  # type: ignore[no-untyped-call]
            return decoding.gate(gates, ups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor]:
        from qed.kernels.cuda import layers  # noqa: PLC0415

        return layers.reverse_gate(slopes[0].contiguous(), *ctx.saved_tensors)


@cache
def find_fault(device: torch.device, dtype: torch.dtype) -> str:
    """Compare the kernels with torch's operations on a few rows; return a description of a fault, or ""."""
    source = torch.Generator().manual_seed(0)

    def draw(*shape: int, kind: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(*shape, generator=source).to(device, kind).requires_grad_()

    rows, width, heads = TRIAL_ROWS, TRIAL_WIDTH, TRIAL_HEADS
    states, weight = draw(rows, width), draw(width)
    change, gates, ups, turned = (draw(rows, width, kind=dtype) for _ in range(4))
    cos, sin = draw(2, rows, width // heads).detach()
    head_norm = draw(width // heads)

    def compute_plainly() -> list[Tensor]:
        summed = states + change
        split = nn.functional.rms_norm(turned.float().view(rows, heads, -1), head_norm.shape, head_norm, 1e-6)
        first, second = split.chunk(2, -1)
        rotated = split * cos[:, None] + torch.cat([-second, first], -1) * sin[:, None]
        normed = nn.functional.rms_norm(summed, weight.shape, weight, 1e-6)
        return [summed, normed, rotated, nn.functional.silu(gates.float()) * ups.float()]

    def compute() -> list[tuple[Tensor, Tensor]]:
        inputs = states, change, weight, turned, head_norm, gates, ups
        with torch.enable_grad(), torch.autocast(device.type, enabled=False):
            expected = compute_plainly()
            found = [
                *_Norm.apply(states, change, weight, 1e-6, dtype),
                _Rotate.apply(turned, cos, sin, head_norm, 1e-6, width // heads),
                _Gate.apply(gates, ups),
            ]
            sums = [torch.stack([each.float().sin().sum() for each in group]) for group in (found, expected)]
            gradients = [torch.autograd.grad(one.sum(), inputs) for one in sums]
        values = [(one.detach(), other.detach()) for one, other in zip(found, expected, strict=True)]
        return [*values, *zip(*gradients, strict=True)]

    return try_kernels("The kernels of layers", compute, TRIAL_ERROR)
