"""One token more for every row: the decoding step of a sampler.

Models of the Llama kind (Llama, Mistral, Qwen2, Qwen3) are decoded by their own modules without the model's forward
pass around them: a step is a few dozen small operations, and what transformers does between them costs as much as they
do. Every other model is asked through its forward pass. Both read the learner's weights where they lie, adapters
included.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from qed.samplers.rows import Rows

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}  # of a layer of these families


class Decoder(Protocol):
    """Continues rows by a token each."""

    def __call__(self, rows: Rows, last: Tensor) -> Tensor:
        """Write the keys and values of `last`, [R] int64, into the column behind those in use; the next token's
        logits, [R, V]."""
        ...


def decoder_of(model: Any, columns: int) -> Decoder:
    """The fastest decoder that a model has; `columns` bounds its rows' positions."""
    return LlamaDecoder(model, columns) if is_llama_like(model) else ForwardDecoder(model)


def is_llama_like(model: Any) -> bool:
    """Whether a model's layers are those that `LlamaDecoder` computes, and nothing more."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    layers = getattr(model.base_model, "layers", ())
    return (
        config.model_type in FAMILIES
        and rope.get("rope_type", "default") in {"default", "linear", "llama3", "yarn"}
        and all({name for name, _ in layer.named_children()} == PARTS for layer in layers)
    )


class ForwardDecoder:
    """A step by the model's own forward pass."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.whole = model.config._attn_implementation == "sdpa"

    def __call__(self, rows: Rows, last: Tensor) -> Tensor:
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

    The query heads that share a key head are rows of one product with it, so that no key or value is repeated.
    """

    def __init__(self, model: Any, columns: int) -> None:
        self.body: Any = model.base_model
        self.head: nn.Module = model.get_output_embeddings()
        config = model.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        embedded = self.body.embed_tokens.weight
        cos, sin = self.body.rotary_emb(embedded[:1], torch.arange(columns, device=embedded.device)[None])
        # x cos + rotate_half(x) sin, with the sign of the rotated half in the sine, so that the half is only moved.
        half = self.width // 2
        sin = torch.cat([-sin[..., :half], sin[..., half:]], -1)
        self.cos, self.sin = cos[0, :, None], sin[0, :, None]

    def __call__(self, rows: Rows, last: Tensor) -> Tensor:
        """One token more for every row."""
        positions = rows.prompt + rows.age - 1
        turn = self.cos[positions], self.sin[positions]
        hidden = self.body.embed_tokens(last)
        mask = rows.mask[:, None, None, : rows.used + 1]
        bias = torch.zeros(mask.shape, device=hidden.device).masked_fill_(~mask, -torch.inf)
        for number, layer in enumerate(self.body.layers):
            normed = _normed(layer.input_layernorm, hidden)
            hidden += self._attended(layer.self_attn, normed, rows.cache.layers[number], turn, bias)
            normed = _normed(layer.post_attention_layernorm, hidden)
            gate = nn.functional.silu(layer.mlp.gate_proj(normed))
            hidden += layer.mlp.down_proj(gate.mul_(layer.mlp.up_proj(normed)))
        logits: Tensor = self.head(_normed(self.body.norm, hidden))
        return logits

    def _attended(self, layer: Any, normed: Tensor, cache: Any, turn: tuple[Tensor, Tensor], bias: Tensor) -> Tensor:
        count = len(normed)
        query, key, value = (
            project(normed).view(count, -1, self.width) for project in (layer.q_proj, layer.k_proj, layer.v_proj)
        )
        if hasattr(layer, "q_norm"):
            query, key = _normed(layer.q_norm, query), _normed(layer.k_norm, key)
        query, key = (_turned(one, *turn) for one in (query, key))
        keys, values = cache.update(key[:, :, None], value[:, :, None])
        query = query.mul_(layer.scaling).to(keys.dtype).view(count, self.kv_heads, -1, self.width)
        shares = (query.matmul(keys.transpose(2, 3)) + bias).softmax(-1)
        attended = shares.to(values.dtype).matmul(values).view(count, -1)
        out: Tensor = layer.o_proj(attended)
        return out


def _normed(norm: Any, states: Tensor) -> Tensor:
    """Root-mean-square normalisation (arXiv 1910.07467) in float32 at least, by a module's weight."""
    wide = states if states.dtype == norm.weight.dtype else states.to(norm.weight.dtype)
    return nn.functional.rms_norm(wide, wide.shape[-1:], norm.weight, norm.variance_epsilon)


def _turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (arXiv 2104.09864) of [R, heads, width]."""
    return torch.addcmul(states * cos, states.roll(states.shape[-1] // 2, -1), sin)
