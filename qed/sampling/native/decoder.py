"""The decoding step of the native sampler: the logits of the next token of every sequence.

Llama-like models (Llama, Mistral, Qwen2, Qwen3) are decoded by their own modules without transformers' forward pass: a
step is a few dozen small operations, and transformers' overhead between them takes as much time as they do. All other
models use their forward pass. Both read the learner's weights directly, with adapters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from qed.models.layer_windows import compute_layer_windows, compute_reached_windows
from qed.models.own_layers import LLAMA_LIKE, PARTS
from qed.sampling.native.kv_cache import CACHE_ARGUMENT, KVCacheLayer
from qed.sampling.native.projection import Projections, is_changed
from qed.sampling.native.sequences import Sequences
from qed.sampling.native.shared_prefix import SharedPrefix

FUSED_FROM = 1 << 21  # elements in a layer's keys above which torch's fused attention is faster in half precision


class Decoder(Protocol):
    """Computes a decoding step.

    `shares_prefix` tells whether it supports a `SharedPrefix`; `copied_bytes` is the size of its weight copies.
    """

    shares_prefix: bool
    copied_bytes: int

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """Write the keys and values of the tokens `last`, [R] int64, into the next column.

        Returns:
            The logits of the next token, [R, V].
        """
        ...


def is_llama_like(model: Any) -> bool:
    """Return whether a model consists of exactly the layers that `LlamaDecoder` computes."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    layers = getattr(model.base_model, "layers", ())
    return (
        config.model_type in LLAMA_LIKE
        and compute_layer_windows(config) is not None
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in {"default", "linear", "llama3", "yarn"}
        and all({name for name, _ in layer.named_children()} == PARTS for layer in layers)
        and not any(is_changed(module) for module in _list_parts(model.base_model))
    )


def _list_parts(body: Any) -> Iterator[nn.Module]:
    """Yield the modules that decoders replace: all but linear layers and the embedding, which are called or read."""
    yield from (body, body.norm, body.rotary_emb)
    for layer in body.layers:
        yield layer
        for part in layer.children():
            yield part
            yield from (each for name, each in part.named_children() if not name.endswith("_proj"))


def compute_angles(body: Any, columns: int) -> tuple[Tensor, Tensor]:
    """Compute the cos and sin of the rotations at the first `columns` positions, [columns, D] each.

    In x cos + rotate_half(x) sin the sign of the rotated half is moved into the sin, so that a roll is enough.
    """
    embedded = body.embed_tokens.weight
    cos, sin = body.rotary_emb(embedded[:1], torch.arange(columns, device=embedded.device)[None])
    half = cos.shape[-1] // 2
    return cos[0].contiguous(), torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)


class ForwardDecoder:
    """Computes a step with the model's own forward pass.

    The model derives its attention masks, with sliding windows, from the 2-D mask of each row's columns: a row's
    columns are contiguous, so their distances are those of its tokens. If every layer has full attention, a 4-D mask is
    passed directly.
    """

    shares_prefix = False
    copied_bytes = 0

    def __init__(self, model: Any, columns: int) -> None:
        self.model = model
        windows = compute_reached_windows(model.config, columns)
        # Falcon may derive its position biases (ALiBi, arXiv 2108.12409) from the 2-D mask.
        biased = getattr(model.config, "alibi", False)
        self.full_attention = (
            model.config._attn_implementation == "sdpa" and windows is not None and not any(windows) and not biased
        )

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """Compute the logits of the next token of every row; see `Decoder`."""
        mask = rows.mask[:, : rows.used + 1]
        out = self.model(
            input_ids=last[:, None],
            attention_mask=mask[:, None, None, :] if self.full_attention else mask.long(),
            position_ids=(rows.prompt_lens + rows.output_lens - 1)[:, None],
            use_cache=True,
            **{CACHE_ARGUMENT: rows.cache},
        )
        logits: Tensor = out.logits[:, -1]
        return logits


class LlamaDecoder:
    """Computes a step with a model's own layers.

    Query heads that share a key head are rows of one product, so that no key or value is repeated. Prompts are not
    shared if a sliding window may exclude a part of them, because that part differs between their sequences.
    """

    def __init__(self, model: Any, columns: int) -> None:
        windows = compute_reached_windows(model.config, columns)
        assert windows is not None
        self.windows = windows
        self.shares_prefix = not any(windows)
        body: Any = model.base_model
        self.kv_heads = model.config.num_key_value_heads
        self.grouped = model.config.num_attention_heads // self.kv_heads
        self.embed: nn.Module = body.embed_tokens
        projections = Projections(model)
        self.copied_bytes = projections.copied_bytes
        self.norm, self.head = _Norm(body.norm), projections.take(model.get_output_embeddings())
        self.layers = [_Layer(layer, projections) for layer in body.layers]
        self.cos, self.sin = (angles[:, None] for angles in compute_angles(body, columns))

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """Compute the logits of the next token of every row; see `Decoder`."""
        return self._step(rows, last, rows.prompt_lens + rows.output_lens - 1, rows.mask[:, : rows.used + 1], None)

    def step_in_place(self, rows: Sequences, last: Tensor, positions: Tensor, column: Tensor) -> Tensor:
        """Compute the same step in a way that a CUDA graph can replay on the same memory.

        Attention is over all allocated columns, no shape depends on how many are in use, and no operation waits for
        the device.

        Args:
            rows: sequences to which the column has been appended; the caller counts it as used.
            last: [R] int64, the last tokens.
            positions: [R] int64, positions of these tokens.
            column: [1] int64, the column to write.
        """
        return self._step(rows, last, positions, rows.mask, column)

    def _step(self, rows: Sequences, last: Tensor, positions: Tensor, visible: Tensor, column: Tensor | None) -> Tensor:
        rotation = self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        hidden: Tensor = self.embed(last)
        newest = visible.shape[1] - 1 if column is None else column
        bias = {
            window: self._build_bias(_limit_to_window(visible, newest, window), hidden)
            for window in dict.fromkeys(self.windows)
        }
        for number, (layer, window) in enumerate(zip(self.layers, self.windows, strict=True)):
            inputs = _AttentionInputs(rows.cache.layers[number], bias[window], number, rows.shared_prefix, column)
            hidden = hidden + layer.attend(hidden, inputs, rotation)
            hidden += layer.transform(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    def _build_bias(self, visible: Tensor, like: Tensor) -> Tensor:
        """Build the bias, minus infinity at invisible columns, [R * kv_heads, grouped, columns] from [R, columns]."""
        # Attention is one product for each row and key head, over the query heads that share the key head.
        expanded = visible[:, None, None].expand(-1, self.kv_heads, self.grouped, -1).flatten(0, 1)
        dtype = torch.promote_types(like.dtype, torch.float32)
        return like.new_zeros(expanded.shape, dtype=dtype).masked_fill_(~expanded, -torch.inf)


class _AttentionInputs(NamedTuple):
    """The KV cache of one layer: the sequences' own columns, and the shared prefix if there is one."""

    cache: KVCacheLayer
    bias: Tensor  # [R * kv_heads, grouped, columns]: minus infinity at columns that do not belong to the row
    number: int  # of the layer
    prefix: SharedPrefix | None
    column: Tensor | None  # [1]: the column to write; None appends one

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Write the key and value of a new token, and compute its attention, [R * kv_heads, grouped, width]."""
        new = key[:, :, None], value[:, :, None]
        keys, values = self.cache.update(*new) if self.column is None else self.cache.write_slot(*new, self.column)
        grouped = query.view(*self.bias.shape[:2], query.shape[-1])
        if keys.dtype == self.bias.dtype:
            return self._attend(grouped, keys, values, scaling)
        if keys.device.type == "cpu" and keys.numel() >= FUSED_FROM:
            return self._attend_fused(grouped.to(keys.dtype), keys, values, scaling)
        # In half precision, operands are rounded, as in every fused attention, but their products are not.
        with torch.autocast(keys.device.type, enabled=False):
            grouped = grouped.to(keys.dtype).to(self.bias.dtype)
            return self._attend(grouped, keys.to(self.bias.dtype), values, scaling)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        scores = torch.baddbmm(self.bias, query, keys.flatten(0, 1).transpose(1, 2), alpha=scaling)
        if self.prefix is None:
            return scores.softmax(-1).to(values.dtype).bmm(values.flatten(0, 1))
        prefix_scores = self.prefix.compute_scores(self.number, query, scaling)
        weights = torch.cat([prefix_scores, scores], -1).softmax(-1).to(values.dtype)
        prefix_weights, own_weights = torch.split(weights, [prefix_scores.shape[-1], scores.shape[-1]], -1)
        return own_weights.bmm(values.flatten(0, 1)) + self.prefix.compute_values(self.number, prefix_weights)

    def _attend_fused(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """Compute attention in half precision by torch's fused kernel, which does not copy keys to float32."""
        rows, heads, columns = keys.shape[:3]
        grouped = query.view(rows, heads, -1, query.shape[-1])
        hidden = self.bias.view(rows, heads, -1, columns)[:, :1, :1].to(keys.dtype).expand(*grouped.shape[:3], -1)
        own, own_lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            grouped, keys, values, attn_mask=hidden, scale=scaling
        )
        own, own_lse = own.flatten(0, 1), own_lse.reshape(len(query), -1, 1)
        if self.prefix is None:
            found: Tensor = own
            return found
        # Average the prompt's part and the row's own, weighted by the sums of their exponentials.
        with torch.autocast("cpu", enabled=False):
            scores = self.prefix.compute_scores(self.number, query.to(self.bias.dtype), scaling)
            others = self.prefix.compute_values(self.number, scores.softmax(-1).to(values.dtype))
        share = torch.sigmoid(own_lse - scores.logsumexp(-1, keepdim=True))
        return torch.lerp(others.to(share.dtype), own.to(share.dtype), share)


class _Layer:
    """Computes one layer with as few operations as possible.

    A small model spends most of its time launching operations, so projections of the same states are joined into one
    product, whose weights are copied for the duration of a call.
    """

    def __init__(self, layer: Any, projections: Projections) -> None:
        attention = layer.self_attn
        self.width: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.before, self.between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.query_norm, self.key_norm = (
            _Norm(getattr(attention, name)) if hasattr(attention, name) else None for name in ("q_norm", "k_norm")
        )
        self.project = projections.join(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out = projections.take(attention.o_proj)
        self.gate_and_up = projections.join(layer.mlp.gate_proj, layer.mlp.up_proj)
        self.down = projections.take(layer.mlp.down_proj)

    def attend(self, hidden: Tensor, inputs: _AttentionInputs, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Compute what attention adds to the states, [R, H]; the new keys and values are written into the cache."""
        query, key, value = (states.view(len(states), -1, self.width) for states in self.project(self.before(hidden)))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = _rotate(query, *rotation), _rotate(key, *rotation)
        return self.out(inputs.attend(query, key, value, self.scaling).view(len(hidden), -1))

    def transform(self, hidden: Tensor) -> Tensor:
        """Compute what the gated MLP adds to the states, [R, H]."""
        gate, up = self.gate_and_up(self.between(hidden))
        return self.down(nn.functional.silu(gate).mul_(up))


class _Norm:
    """RMSNorm (arXiv 1910.07467) over the last dimension, with a module's weight."""

    def __init__(self, norm: Any) -> None:
        self.weight: Tensor = norm.weight
        self.dtype = torch.promote_types(self.weight.dtype, torch.float32)
        self.epsilon: float = norm.variance_epsilon
        self.epsilon_tensor = self.weight.new_tensor(self.epsilon, dtype=self.dtype)
        self.share = 1 / len(self.weight)

    def __call__(self, states: Tensor) -> Tensor:
        """Return the normalised states, computed at least in float32."""
        wide = states.to(self.dtype)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.epsilon_tensor, length, length, value=self.share).rsqrt_()
        return (wide * scale).to(states.dtype).mul(self.weight)


def _limit_to_window(visible: Tensor, newest: Tensor | int, window: int | None) -> Tensor:
    """Restrict the visible columns, [R, columns], to the last `window` up to the newest one."""
    if window is None:
        return visible
    position = torch.arange(visible.shape[1], device=visible.device)
    return visible & (position > newest - window)


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply RoPE (arXiv 2104.09864) to [R, heads, width]."""
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)
