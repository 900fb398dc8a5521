"""The layers of Llama-like models over a packed row on a CPU, by products and functions in C++.

torch computes a layer with dozens of operators, each of which writes a tensor that the backward pass reads. Here a
layer is one operator: seven products forward and fourteen backward, and in between, functions that do all other work
for an input at once. The last layer computes only inputs that are read, from its queries on. Under autocast, products
are in bfloat16, and states, norms and attention in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qed.host import set_context
from qed.kernels import training
from qed.kernels.decoding import gate
from qed.kernels.functions import LANES, has_kernels, multiplies_in_tiles
from qed.kernels.structures import PackedAttention
from qed.kernels.training import Rotation
from qed.models.fast_float32 import add_multiplied, is_faster, multiply, reverse_weight
from qed.models.layer_windows import compute_layer_windows, compute_reached_windows
from qed.models.own_layers import HEAD_NORMS, HOOKS, LINEAR, LLAMA_LIKE, PARTS, has_own_forward
from qed.models.segments import Segment
from qed.models.suffixes import Suffixes, choose_suffixes, locate

BIASED = {"q_proj", "k_proj", "v_proj"}  # linear layers that may have a bias
# Longest rows: torch's attention kernels, in the precision of the products, are faster for longer ones.
LONGEST = {torch.float32: 1024, torch.bfloat16: 256}
UNLIMITED = 1 << 30
_left_out: ContextVar[bool] = ContextVar("left_out", default=False)


def leave_out_compiled_layers() -> AbstractContextManager[None]:
    """Within the context, use the layers of transformers, for comparison with these."""
    return set_context(_left_out, True)


def can_compile_layers(body: Any, longest: int) -> bool:
    """Return whether `compute_compiled_states` supports a decoder and rows up to a length, in the current autocast."""
    config: Any = getattr(body, "config", None)
    layers: Any = getattr(body, "layers", ())
    return (
        not _left_out.get()
        and getattr(config, "model_type", "") in LLAMA_LIKE
        and config.hidden_act == "silu"
        and compute_layer_windows(config) is not None
        and len(layers) > 0
        and body._compiled_call_impl is None
        and all(_is_plain(layer) for layer in layers)
        and not any(_is_changed(module) for module in body.modules())
        and not torch.compiler.is_compiling()
        and has_kernels()
        and longest <= find_longest(_read_product_dtype(), layers[0].self_attn.head_dim)
    )


def find_longest(dtype: torch.dtype, width: int) -> int:
    """Return the length of the longest rows that `compute_compiled_states` handles.

    There is no limit where torch's attention, forward and backward, was slower at every length: on AMD CPUs with
    AVX-512, on CPUs with only AVX2 (measured on Zen 3), and in bfloat16 with AMX tiles.

    Args:
        dtype: dtype of products.
        width: width of a head.
    """
    is_fastest = is_faster() or has_avx2_alone() or (dtype == torch.bfloat16 and multiplies_in_tiles(width))
    return UNLIMITED if dtype in LONGEST and is_fastest else LONGEST.get(dtype, 0)


def has_avx2_alone() -> bool:
    """Return whether torch uses AVX2, without AVX-512."""
    return torch.backends.cpu.get_cpu_capability() == "AVX2"


class PackedRow(NamedTuple):
    """The inputs of a packed row."""

    ids: Tensor  # [1, N] int64
    positions: Tensor  # [1, N] int64, position of each input in its row
    segments: Sequence[Segment]  # in order


def compute_compiled_states(
    body: Any, row: PackedRow, read: Tensor | None, kept: list[tuple[Tensor, Tensor]] | None = None
) -> Tensor:
    """Compute the hidden states of a packed row, [N, H], or only those at some positions.

    Args:
        body: decoder that `can_compile_layers` accepts.
        row: its inputs.
        read: [R] int64, positions of the states to return, [R, H]; None for all.
        kept: receives the keys and values of each layer, [N, kv_heads * D], without a gradient.
    """
    embedded = body.embed_tokens(row.ids)
    cos, sin = (angles[0].contiguous() for angles in body.rotary_emb(embedded, row.positions))
    windows = compute_reached_windows(body.config, max(one.prompt_length + one.length for one in row.segments))
    assert windows is not None
    states: Tensor = embedded[0]
    whole, last = choose_suffixes(row.segments, None), choose_suffixes(row.segments, read)
    graph, dtype = torch.is_grad_enabled(), _read_product_dtype()
    for layer, window in zip(body.layers, windows, strict=True):
        suffixes = last if layer is body.layers[-1] else whole
        shape = _Shape(
            _describe_attention(layer.self_attn, suffixes, window),
            suffixes,
            cos,
            sin,
            layer.input_layernorm.variance_epsilon,
            layer.post_attention_layernorm.variance_epsilon,
            layer.self_attn.q_norm.variance_epsilon if hasattr(layer.self_attn, "q_norm") else 0.0,
            dtype,
            graph,
            kept,
        )
        states = _Layer.apply(shape, states, *_list_weights(layer))
    states = body.norm(states)  # of M inputs
    return states if read is None else states.index_select(0, locate(last, read))


def _describe_attention(own: Any, suffixes: Suffixes, window: int | None) -> PackedAttention:
    heads = own.config.num_key_value_heads
    sizes = heads, own.num_key_value_groups, own.head_dim, window or 0, torch.get_num_threads()
    return PackedAttention(suffixes.table.data_ptr(), len(suffixes.table), *sizes, own.scaling)


class _Shape(NamedTuple):
    attention: PackedAttention
    suffixes: Suffixes  # the inputs computed after keys and values; `attention` points to them
    cos: Tensor
    sin: Tensor
    epsilon: float  # of the norm before attention
    feed_forward_epsilon: float
    head_epsilon: float  # of the norms of queries and keys
    dtype: torch.dtype  # of products
    graph: bool  # whether there will be a backward pass
    kept: list[tuple[Tensor, Tensor]] | None  # receives keys and values

    def select(self, states: Tensor) -> Tensor:
        """Select the inputs that are computed."""
        places = self.suffixes.places
        return states if places is None else states.index_select(0, places)


class _Weights(NamedTuple):
    norm: Tensor
    query: Tensor
    query_bias: Tensor | None
    query_norm: Tensor | None
    key: Tensor
    key_bias: Tensor | None
    key_norm: Tensor | None
    value: Tensor
    value_bias: Tensor | None
    out: Tensor
    feed_forward_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


NORMS = frozenset(name for name in _Weights._fields if name.endswith("norm"))


class _Layer(torch.autograd.Function):
    """Computes a layer, [M, H] from [N, H]."""

    @staticmethod
    def forward(ctx: Any, shape: _Shape, states: Tensor, *given: Tensor | None) -> Tensor:
        dtype, epsilon = shape.dtype, shape.feed_forward_epsilon
        weights = _Weights(
            *(
                one if one is None or name in NORMS else one.to(dtype)
                for name, one in zip(_Weights._fields, given, strict=True)
            )  # type: ignore[arg-type]
        )
        first = training.norm(states, None, weights.norm, shape.epsilon, dtype)
        chosen = shape.select(first.normed)
        raw = multiply(chosen, weights.query, weights.query_bias), multiply(first.normed, weights.key, weights.key_bias)
        value = multiply(first.normed, weights.value, weights.value_bias)
        rotations = _list_rotations(shape, weights)
        query, key = (training.rotate(each, rotation) for each, rotation in zip(raw, rotations, strict=True))
        if shape.kept is not None:
            shape.kept.append((key, value))
        attended, sums = training.attend(shape.attention, query, key, value)
        changes = multiply(attended, weights.out)
        second = training.norm(shape.select(states), changes, weights.feed_forward_norm, epsilon, dtype)
        gates, ups = multiply(second.normed, weights.gate), multiply(second.normed, weights.up)
        out = second.states + multiply(gate(gates, ups), weights.down)
        if shape.graph:
            ctx.shape = shape
            ctx.save_for_backward(*weights, *first, *raw, query, key, value, sums, attended, *second, gates, ups)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        shape: _Shape = ctx.shape
        count = len(_Weights._fields)
        weights, saved = _Weights(*ctx.saved_tensors[:count]), ctx.saved_tensors[count:]
        of_states, of_feed_forward = _reverse_feed_forward(weights, saved[-5:], slopes[0].contiguous())
        of_inputs, of_attention = _reverse_attention(shape, weights, saved[:-5], of_states)
        of_weights = _Weights(**of_attention, **of_feed_forward)
        return None, of_inputs, *(one if one is None else one.to(torch.float32) for one in of_weights)


def _reverse_feed_forward(
    weights: _Weights, saved: tuple[Tensor, ...], slopes: Tensor
) -> tuple[Tensor, dict[str, Any]]:
    """Compute the gradients of the states between the two blocks, [M, H], and of the second block's weights."""
    second, gates, ups = training.Normed(*saved[:3]), *saved[3:]
    of_changes = slopes.to(gates.dtype)
    opened = multiply(of_changes, weights.down.T)
    of_gates, of_ups = training.reverse_gate(gates, ups, opened)
    of_normed = multiply(of_gates, weights.gate.T)
    add_multiplied(of_normed, of_ups, weights.up)
    of_states, of_norm = training.reverse_norm(of_normed, second, weights.feed_forward_norm, slopes)
    return of_states, {
        "feed_forward_norm": of_norm,
        "gate": reverse_weight(of_gates, second.normed),
        "up": reverse_weight(of_ups, second.normed),
        "down": reverse_weight(of_changes, opened),
    }


def _reverse_attention(
    shape: _Shape, weights: _Weights, saved: tuple[Tensor, ...], slopes: Tensor
) -> tuple[Tensor, dict[str, Any]]:
    """Compute the gradients of the layer's input states, [N, H], and of the first block's weights."""
    first, raw, inputs = training.Normed(*saved[:3]), saved[3:5], saved[5:]
    attended, of_changes = inputs[-1], slopes.to(shape.dtype)
    of_inputs = training.reverse_attend(shape.attention, inputs, multiply(of_changes, weights.out.T))
    of_norms = [
        training.reverse_rotate(each, states, rotation)
        for each, states, rotation in zip(of_inputs[:2], raw, _list_rotations(shape, weights), strict=True)
    ]
    of_query, of_key, of_value = (each.to(shape.dtype) for each in of_inputs)
    of_normed = multiply(of_key, weights.key.T)
    add_multiplied(of_normed, of_value, weights.value)
    added, places = slopes, shape.suffixes.places
    if places is None:
        add_multiplied(of_normed, of_query, weights.query)
    else:
        of_normed.index_add_(0, places, multiply(of_query, weights.query.T))
        added = torch.zeros_like(first.states).index_copy_(0, places, slopes)
    of_states, of_norm = training.reverse_norm(of_normed, first, weights.norm, added)
    return of_states, {
        "norm": of_norm,
        "query": reverse_weight(of_query, shape.select(first.normed)),
        "query_bias": None if weights.query_bias is None else of_query.sum(0),
        "query_norm": of_norms[0],
        "key": reverse_weight(of_key, first.normed),
        "key_bias": None if weights.key_bias is None else of_key.sum(0),
        "key_norm": of_norms[1],
        "value": reverse_weight(of_value, first.normed),
        "value_bias": None if weights.value_bias is None else of_value.sum(0),
        "out": reverse_weight(of_changes, attended),
    }


def _read_product_dtype() -> torch.dtype:
    """Return the precision of products in the current autocast."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32


def _list_rotations(shape: _Shape, weights: _Weights) -> tuple[Rotation, Rotation]:
    """Return the rotations of queries and keys."""
    angles = shape.select(shape.cos), shape.select(shape.sin)
    epsilon = shape.head_epsilon
    return Rotation(*angles, weights.query_norm, epsilon), Rotation(shape.cos, shape.sin, weights.key_norm, epsilon)


def _list_weights(layer: Any) -> _Weights:
    own, mlp = layer.self_attn, layer.mlp
    query_norm, key_norm = (getattr(getattr(own, name, None), "weight", None) for name in ("q_norm", "k_norm"))
    return _Weights(
        layer.input_layernorm.weight,
        own.q_proj.weight,
        own.q_proj.bias,
        query_norm,
        own.k_proj.weight,
        own.k_proj.bias,
        key_norm,
        own.v_proj.weight,
        own.v_proj.bias,
        own.o_proj.weight,
        layer.post_attention_layernorm.weight,
        mlp.gate_proj.weight,
        mlp.up_proj.weight,
        mlp.down_proj.weight,
    )


def _is_plain(layer: Any) -> bool:
    """Return whether a layer consists only of supported parts."""
    if {name for name, _ in layer.named_children()} != PARTS:
        return False
    own, mlp = layer.self_attn, layer.mlp
    parts = {name: part for block in (own, mlp) for name, part in block.named_children()}
    linear = {name: part for name, part in parts.items() if name in LINEAR}
    return (
        set(parts) - HEAD_NORMS == LINEAR | {"act_fn"}
        and all(type(part) is nn.Linear and (part.bias is None or name in BIASED) for name, part in linear.items())
        and own.head_dim % LANES == 0
        and not (layer.training and (own.attention_dropout or layer.gradient_checkpointing))
    )


def _is_changed(module: nn.Module) -> bool:
    """Return whether a module itself, ignoring its children, is modified or has unsupported weights."""
    fields = vars(module)
    weights = fields["_parameters"].values()
    return (
        has_own_forward(module)
        or any(fields[name] for name in HOOKS)
        or not all(weight is None or _is_plain_weight(weight) for weight in weights)
    )


def _is_plain_weight(weight: Tensor) -> bool:
    return (
        type(weight) is nn.Parameter
        and weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and weight.is_contiguous()
    )
