"""One token more for every row: the decoding step of a sampler.

Models of the Llama kind (Llama, Mistral, Qwen2, Qwen3) are decoded by their own modules without the model's forward
pass around them: a step is a few dozen small operations, and what transformers does between them costs as much as they
do. Every other model is asked through its forward pass. Both read the learner's weights where they lie, adapters
included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from qed.models.layer_windows import compute_layer_windows, compute_reached_windows
from qed.sampling.native.kv_cache import KVCacheLayer
from qed.sampling.native.sequences import Sequences
from qed.sampling.native.shared_prefix import SharedPrefix

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
SMALL = 1 << 20  # weights of projections that are copied side by side, at most
PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}  # of a layer of these families


class Decoder(Protocol):
    """Continues rows by a token each; `shares` tells whether they may read their prompts where those lie."""

    shares: bool

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """Write the keys and values of `last`, [R] int64, into the column behind those in use; the next token's
        logits, [R, V]."""
        ...


def choose_decoder(model: Any, columns: int) -> Decoder:
    """The fastest decoder that a model has; `columns` bounds its rows' positions."""
    return LlamaDecoder(model, columns) if is_llama_like(model) else ForwardDecoder(model, columns)


def is_llama_like(model: Any) -> bool:
    """Whether a model's layers are those that `LlamaDecoder` computes, and nothing more."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    layers = getattr(model.base_model, "layers", ())
    return (
        config.model_type in FAMILIES
        and compute_layer_windows(config) is not None
        and config.hidden_act == "silu"
        and rope.get("rope_type", "default") in {"default", "linear", "llama3", "yarn"}
        and all({name for name, _ in layer.named_children()} == PARTS for layer in layers)
    )


class ForwardDecoder:
    """A step by the model's own forward pass.

    A model makes its masks of the columns that are a row's own, its windows among them: a row's columns stand side by
    side, so they are as far apart as its tokens. Where every layer attends to all columns, the mask is given as it is.
    """

    shares = False

    def __init__(self, model: Any, columns: int) -> None:
        self.model = model
        windows = compute_reached_windows(model.config, columns)
        # Falcon may derive its position biases (ALiBi, arXiv 2108.12409) from a mask of columns.
        biased = getattr(model.config, "alibi", False)
        self.whole = (
            model.config._attn_implementation == "sdpa" and windows is not None and not any(windows) and not biased
        )

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """One token more for every row."""
        mask = rows.mask[:, : rows.used + 1]
        out = self.model(
            input_ids=last[:, None],
            attention_mask=mask[:, None, None, :] if self.whole else mask.long(),
            position_ids=(rows.prompt + rows.age - 1)[:, None],
            past_key_values=rows.cache,
            use_cache=True,
        )
        logits: Tensor = out.logits[:, -1]
        return logits


class LlamaDecoder:
    """A step by a model's own layers.

    The query heads that share a key head are rows of one product with it, so that no key or value is repeated. Prompts
    are not shared where a window may leave a part of them behind, because it is another part for each of their rows.
    """

    def __init__(self, model: Any, columns: int) -> None:
        windows = compute_reached_windows(model.config, columns)
        assert windows is not None
        self.windows = windows
        self.shares = not any(windows)
        body: Any = model.base_model
        self.kv_heads = model.config.num_key_value_heads
        self.grouped = model.config.num_attention_heads // self.kv_heads
        self.embed: nn.Module = body.embed_tokens
        self.norm, self.head = _Norm(body.norm), _linear(model.get_output_embeddings())
        self.layers = [_Layer(layer) for layer in body.layers]
        embedded = body.embed_tokens.weight
        cos, sin = body.rotary_emb(embedded[:1], torch.arange(columns, device=embedded.device)[None])
        # x cos + rotate_half(x) sin, with the sign of the rotated half in the sine, so that the half is only moved.
        half = cos.shape[-1] // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        self.cos, self.sin = cos[0, :, None], sin[0, :, None]

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """One token more for every row."""
        return self._step(rows, last, rows.prompt + rows.age - 1, rows.mask[:, : rows.used + 1], None)

    def step_in_place(self, rows: Sequences, last: Tensor, positions: Tensor, column: Tensor) -> Tensor:
        """The same step, for whoever wants to repeat its operations on the same memory: attention is over all columns
        that there is room for, no shape depends on how many are in use, and nothing waits for the device.

        Args:
            rows: with room for the column, which is claimed, and is counted by the caller.
            last: [R] int64, the last tokens.
            positions: [R] int64, theirs.
            column: [1] int64, where their keys and values are written.
        """
        return self._step(rows, last, positions, rows.mask, column)

    def _step(self, rows: Sequences, last: Tensor, positions: Tensor, seen: Tensor, column: Tensor | None) -> Tensor:
        turn = self.cos.index_select(0, positions), self.sin.index_select(0, positions)
        hidden: Tensor = self.embed(last)
        newest = seen.shape[1] - 1 if column is None else column
        bias = {
            window: self._bias(_limit_to_window(seen, newest, window), hidden) for window in dict.fromkeys(self.windows)
        }
        for number, (layer, window) in enumerate(zip(self.layers, self.windows, strict=True)):
            columns = _AttentionInputs(rows.cache.layers[number], bias[window], number, rows.prompts, column)
            hidden = hidden + layer.attend(hidden, columns, turn)
            hidden += layer.transform(hidden)
        logits: Tensor = self.head(self.norm(hidden))
        return logits

    def _bias(self, seen: Tensor, like: Tensor) -> Tensor:
        """Minus infinity at columns that are not seen, [R * kv_heads, grouped, columns] from [R, columns]."""
        # For every query head that shares a key head, one product a row and key head.
        whole = seen[:, None, None].expand(-1, self.kv_heads, self.grouped, -1).flatten(0, 1)
        return like.new_zeros(whole.shape).masked_fill_(~whole, -torch.inf)


class _AttentionInputs(NamedTuple):
    """What the rows see in one layer: their own columns, and their prompts' where those are shared."""

    columns: KVCacheLayer
    bias: Tensor  # [R * kv_heads, grouped, columns]: minus infinity at columns that are not the row's
    number: int
    prompts: SharedPrefix | None
    column: Tensor | None  # [1]: the one to write, unless it is the one behind those in use

    def read(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """The attention of a new token, [R * kv_heads, grouped, width], whose key and value are written first."""
        new = key[:, :, None], value[:, :, None]
        keys, values = self.columns.update(*new) if self.column is None else self.columns.write_slot(*new, self.column)
        grouped = query.view(*self.bias.shape[:2], query.shape[-1])
        if keys.dtype == self.bias.dtype:
            return self._attend(grouped, keys, values, scaling)
        # In half precision the operands are rounded as every fused attention rounds them, and their products are not.
        with torch.autocast(keys.device.type, enabled=False):
            grouped = grouped.to(keys.dtype).to(self.bias.dtype)
            return self._attend(grouped, keys.to(self.bias.dtype), values, scaling)

    def _attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        scores = torch.baddbmm(self.bias, query, keys.flatten(0, 1).transpose(1, 2), alpha=scaling)
        if self.prompts is None:
            return scores.softmax(-1).to(values.dtype).bmm(values.flatten(0, 1))
        before = self.prompts.scores(self.number, query, scaling)
        shares = torch.cat([before, scores], -1).softmax(-1).to(values.dtype)
        of_prompts, own = torch.split(shares, [before.shape[-1], scores.shape[-1]], -1)
        return own.bmm(values.flatten(0, 1)) + self.prompts.read(self.number, of_prompts)


class _Layer:
    """One layer: what its modules compute, with as few operations around them as possible.

    Of a small model, whose time goes into starting operations, the projections that read the same states are one
    product, whose weights are copied for as long as a call lasts.
    """

    def __init__(self, layer: Any) -> None:
        attention = layer.self_attn
        self.width: int = attention.head_dim
        self.scaling: float = attention.scaling
        self.before, self.between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self.query_norm, self.key_norm = (
            _Norm(getattr(attention, name)) if hasattr(attention, name) else None for name in ("q_norm", "k_norm")
        )
        self.project = _join_modules(attention.q_proj, attention.k_proj, attention.v_proj)
        self.out, self.gate_and_up = _linear(attention.o_proj), _join_modules(layer.mlp.gate_proj, layer.mlp.up_proj)
        self.down = _linear(layer.mlp.down_proj)

    def attend(self, hidden: Tensor, seen: _AttentionInputs, turn: tuple[Tensor, Tensor]) -> Tensor:
        """What attention adds to the states, [R, H]; the new keys and values are written into the cache."""
        query, key, value = (one.view(len(one), -1, self.width) for one in self.project(self.before(hidden)))
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query), self.key_norm(key)
        query, key = _rotate(query, *turn), _rotate(key, *turn)
        return self.out(seen.read(query, key, value, self.scaling).view(len(hidden), -1))

    def transform(self, hidden: Tensor) -> Tensor:
        """What the gated layers add to the states, [R, H]."""
        gate, up = self.gate_and_up(self.between(hidden))
        return self.down(nn.functional.silu(gate).mul_(up))


class _Norm:
    """Root-mean-square normalisation (arXiv 1910.07467) of the last dimension, by a module's weight."""

    def __init__(self, norm: Any) -> None:
        self.weight: Tensor = norm.weight
        self.epsilon = self.weight.new_tensor(norm.variance_epsilon)
        self.share = 1 / len(self.weight)

    def __call__(self, states: Tensor) -> Tensor:
        """The normalised states, in the weight's precision."""
        wide = states.to(self.weight.dtype)
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        scale = torch.addcmul(self.epsilon, length, length, value=self.share).rsqrt_()
        return (wide * scale).mul_(self.weight)


def _limit_to_window(seen: Tensor, newest: Tensor | int, window: int | None) -> Tensor:
    """The columns that are seen, [R, columns], and of them the last `window` up to the newest one."""
    if window is None:
        return seen
    place = torch.arange(seen.shape[1], device=seen.device)
    return seen & (place > newest - window)


def _linear(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """A module as a function; of a plain linear layer without what a module's call adds."""
    if type(module) is nn.Linear and not module._forward_hooks and not module._forward_pre_hooks:
        return partial(nn.functional.linear, weight=module.weight, bias=module.bias)
    return module


def _join_modules(*modules: nn.Module) -> Callable[[Tensor], Sequence[Tensor]]:
    """Several modules of the same states as one function."""
    plain = [module for module in modules if type(module) is nn.Linear]
    biased = {module.bias is not None for module in plain}
    if len(plain) < len(modules) or len(biased) > 1 or sum(one.weight.numel() for one in plain) > SMALL:
        functions = [_linear(module) for module in modules]
        return lambda states: [function(states) for function in functions]
    device = plain[0].weight.device.type
    # A copy is not among the weights that autocast converts once and keeps.
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else plain[0].weight.dtype
    weight = torch.cat([module.weight for module in plain]).to(dtype)
    bias = torch.cat([module.bias for module in plain]).to(dtype) if biased == {True} else None
    sizes = [module.out_features for module in plain]
    return lambda states: torch.split(nn.functional.linear(states, weight, bias), sizes, -1)


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864) of [R, heads, width]."""
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)
