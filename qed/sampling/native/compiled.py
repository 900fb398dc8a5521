"""The decoding step of Llama-like models on a CPU, by functions in C++.

A layer consists of four products and four other operations; torch needs about thirty, and a small model spends most of
its time launching them. If all products are in C++ too, a step is a single call. Attention reads only a row's own
columns, not those of longer rows. A row's results do not depend on the batch.
"""

from __future__ import annotations

from contextlib import nullcontext
from ctypes import byref
from typing import Any

import torch
from torch import Tensor, nn

from qed.kernels import decoding
from qed.kernels.decoding import Linear, Norm, TileLinear
from qed.kernels.functions import KINDS, LANES, find_function, has_kernels
from qed.kernels.structures import Attention, Layer, Model, Rows
from qed.models.families import read_head_width
from qed.models.layer_windows import compute_reached_windows
from qed.sampling.native.decoder import compute_angles
from qed.sampling.native.projection import Projections, Rounded
from qed.sampling.native.sequences import Sequences

SINGLE_CALL = {Linear}, {TileLinear}  # a step is a single call if all its products are of one of these kinds


def can_compile(model: Any) -> bool:
    """Return whether `CompiledDecoder` computes a Llama-like model, in the current autocast."""
    cast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    body = model.base_model
    # The functions read these weights in place.
    norms = [weight for name, weight in body.named_parameters() if name.endswith("norm.weight")]
    return (
        model.device.type == "cpu"
        and cast in KINDS
        and read_head_width(model.config) % LANES == 0
        and all(weight.dtype == torch.float32 for weight in (body.embed_tokens.weight, *norms))
        and all(weight.is_contiguous() for weight in norms)
        and has_kernels()
    )


class CompiledDecoder:
    """Computes a step of a model that `can_compile` accepts; see `Decoder`."""

    def __init__(self, model: Any, columns: int) -> None:
        windows = compute_reached_windows(model.config, columns)
        assert windows is not None
        self.shares_prefix = not any(windows)
        body: Any = model.base_model
        self.embed: nn.Module = body.embed_tokens
        projections = Projections(model)
        self.copied_bytes, dtype = projections.copied_bytes, projections.cast or torch.float32
        self.angles = compute_angles(body, columns)
        self.rows, self.memory = Rows(), (Layer * len(body.layers))()
        for attention, window in zip((each.attention for each in self.memory), windows, strict=True):
            attention.heads, attention.window = model.config.num_key_value_heads, window or 0
            attention.cos, attention.sin = (angles.data_ptr() for angles in self.angles)
        self.layers = [
            _Layer(layer, projections, dtype, memory) for layer, memory in zip(body.layers, self.memory, strict=True)
        ]
        self.norm = Norm(body.norm.weight, body.norm.variance_epsilon, dtype)
        self.head: Any = projections.take(model.get_output_embeddings())
        kinds = {type(self.head)}.union(*(layer.kinds for layer in self.layers))
        self.step = _Step(self, dtype) if kinds in SINGLE_CALL else None
        # Then torch multiplies nothing, and no torch function mode is needed: a mode doubles the time of a step.
        self.context = torch._C.DisableTorchFunction if kinds == {Rounded} else nullcontext

    def __call__(self, rows: Sequences, last: Tensor) -> Tensor:
        """Compute the logits of the next token of every row; see `Decoder`. Finished rows have arbitrary logits."""
        with self.context():
            states: Tensor = self.embed(last)
            self._set_rows(rows)
            if self.step is not None:
                return self.step(states)
            change = None
            for layer in self.layers:
                change = layer(states, change, self.rows)
            logits: Tensor = self.head(self.norm(states, change))
            return logits

    def _set_rows(self, rows: Sequences) -> None:
        """Set the fields that the C++ functions read of the rows; the tensors must outlive the step."""
        fields, prefix = self.rows, rows.shared_prefix
        fields.count, fields.prefix_columns = len(rows), 0
        fields.prompts, fields.outputs = rows.prompt_lens.data_ptr(), rows.output_lens.data_ptr()
        fields.finished = rows.finished.data_ptr()
        if prefix is not None:
            fields.owner, fields.prefix_columns = prefix.owner.data_ptr(), prefix.cache.layers[0].used
            fields.prefix_lengths = prefix.lengths.data_ptr()
        for number, memory in enumerate(self.memory):
            cache, attention = rows.cache.layers[number], memory.attention
            fields.column = cache.add_column()
            attention.keys, attention.values = cache.keys.data_ptr(), cache.values.data_ptr()
            attention.cache_row, attention.cache_head = cache.keys.stride()[:2]
            if prefix is not None:
                shared = prefix.cache.layers[number]
                attention.prefix_keys, attention.prefix_values = shared.keys.data_ptr(), shared.values.data_ptr()
                attention.prefix_row, attention.prefix_head = shared.keys.stride()[:2]


class _Layer:
    """Computes one layer.

    Args:
        layer: layer of the model.
        projections: builds its linear layers.
        dtype: dtype of their results.
        memory: structure that the C++ functions read.
    """

    def __init__(self, layer: Any, projections: Projections, dtype: torch.dtype, memory: Layer) -> None:
        own, self.dtype, self.attention = layer.self_attn, dtype, memory.attention
        self.before, self.between = (
            Norm(norm.weight, norm.variance_epsilon, dtype)
            for norm in (layer.input_layernorm, layer.post_attention_layernorm)
        )
        self.project = projections.join(own.q_proj, own.k_proj, own.v_proj)
        self.out = projections.take(own.o_proj)
        self.gate_and_up = projections.join(layer.mlp.gate_proj, layer.mlp.up_proj)
        self.down = projections.take(layer.mlp.down_proj)
        _set_attention(self.attention, own)
        products: dict[str, Any] = {
            "project": getattr(self.project, "multiply", None),
            "out": self.out,
            "gate_and_up": getattr(self.gate_and_up, "multiply", None),
            "down": self.down,
        }
        self.kinds = {type(each) for each in products.values()}
        if self.kinds in SINGLE_CALL:
            for name, linear in products.items():
                setattr(memory, name, linear.product)
            for name, norm in (("before", self.before), ("between", self.between)):
                setattr(memory, name, norm.weight.data_ptr())
                setattr(memory, f"{name}_epsilon", norm.epsilon)

    def __call__(self, states: Tensor, change: Tensor | None, rows: Rows) -> Tensor:
        """Add the previous layer's change to the states, [R, H], in place, and return this layer's change."""
        new = (self._fit(part) for part in self.project(self.before(states, change)))
        attended = decoding.attend(rows, self.attention, *new)
        gates, ups = self.gate_and_up(self.between(states, self._fit(self.out(attended))))
        return self._fit(self.down(decoding.gate(self._fit(gates), self._fit(ups))))

    def _fit(self, states: Tensor) -> Tensor:
        """Convert a layer's output, which an adapter or hook may have changed, to what the C++ functions read."""
        return states.to(self.dtype) if states.stride(-1) == 1 else states.to(self.dtype).contiguous()


class _Step:
    """A step as a single call.

    Args:
        decoder: a decoder all of whose products are in C++.
        dtype: dtype of their results.
    """

    def __init__(self, decoder: CompiledDecoder, dtype: torch.dtype) -> None:
        for memory in decoder.memory:
            outputs = memory.project.outputs
            memory.attention.query_stride = memory.attention.key_stride = memory.attention.value_stride = outputs
        self.rows, self.outputs = decoder.rows, decoder.head.product.outputs
        width = len(decoder.norm.weight)
        threads, address, head = torch.get_num_threads(), decoder.norm.weight.data_ptr(), decoder.head.product
        self.model = Model(decoder.memory, len(decoder.memory), width, threads, address, decoder.norm.epsilon, head)
        # Scratch memory per row: see step.cpp.
        wide = max(max(memory.project.outputs, memory.gate_and_up.outputs) for memory in decoder.memory)
        inner = max(max(memory.out.inputs, memory.down.inputs) for memory in decoder.memory)
        self.room = 2 * width + wide + inner
        self.step, self.dtype = find_function("step", dtype), dtype

    def __call__(self, states: Tensor) -> Tensor:
        """Return the logits, [R, V], for embeddings, [R, H]."""
        room = states.new_empty(len(states) * self.room, dtype=self.dtype)
        logits = states.new_empty(len(states), self.outputs, dtype=self.dtype)
        self.step(byref(self.model), byref(self.rows), states.data_ptr(), room.data_ptr(), logits.data_ptr())
        return logits


def _set_attention(attention: Attention, layer: Any) -> None:
    attention.grouped, attention.width = layer.num_key_value_groups, layer.head_dim
    attention.scaling, attention.threads = layer.scaling, torch.get_num_threads()
    if getattr(layer, "q_norm", None) is not None:
        attention.query_norm, attention.key_norm = layer.q_norm.weight.data_ptr(), layer.k_norm.weight.data_ptr()
        attention.query_epsilon, attention.key_epsilon = layer.q_norm.variance_epsilon, layer.k_norm.variance_epsilon
