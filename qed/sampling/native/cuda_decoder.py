"""The decoding step of Llama-like models in half precision on a CUDA device, with kernels in Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qed.kernels.functions import has_half_kernels
from qed.models.families import read_head_width
from qed.models.precision import read_compute_dtype
from qed.sampling.native.decoder import LlamaDecoder
from qed.sampling.native.decoding_trial import find_fault
from qed.sampling.native.sequences import Sequences

if TYPE_CHECKING:
    from qed.kernels.cuda.decoding import Shared

WIDTHS = (16, 32, 64, 128, 256)  # supported head widths
MOST_GROUPED = 64  # most query heads that may share a key head


def can_use_kernels(model: Any) -> bool:
    """Return whether `CudaDecoder` computes a Llama-like model, in the current autocast."""
    config, device = model.config, model.device
    dtype = read_compute_dtype(model)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    width = read_head_width(config)
    return (
        width in WIDTHS
        and heads <= MOST_GROUPED * kv_heads
        and has_half_kernels(device, dtype)
        and not find_fault(device, dtype, heads, kv_heads, width)
    )


class CudaDecoder(LlamaDecoder):
    """Computes a step of a model that `can_use_kernels` accepts; see `Decoder`."""

    def __init__(self, model: Any, columns: int) -> None:
        super().__init__(model, columns)
        # Loads Triton, which only some machines have.
        from qed.kernels.cuda import decoding  # noqa: PLC0415

        self.kernels = decoding
        self.dtype = read_compute_dtype(model)
        cos, sin = (angles[:, 0].contiguous() for angles in (self.cos, self.sin))
        self.heads = []
        for layer, window in zip(self.layers, self.windows, strict=True):
            norms = None
            if layer.query_norm is not None and layer.key_norm is not None:
                norms = layer.query_norm.weight, layer.key_norm.weight, layer.query_norm.epsilon
            sizes = self.kv_heads * self.grouped, self.kv_heads, layer.width
            self.heads.append(decoding.Heads(cos, sin, sizes, layer.scaling, window or 0, norms))

    def _step(self, rows: Sequences, last: Tensor, positions: Tensor, visible: Tensor, column: Tensor | None) -> Tensor:
        # Triton launches on the current device, regardless of where the tensors are.
        with torch.cuda.device_of(last):  # type: ignore[no-untyped-call]
            return self._launch_step(rows, last, positions, column)

    def _launch_step(self, rows: Sequences, last: Tensor, positions: Tensor, column: Tensor | None) -> Tensor:
        norm, caches = self.kernels.norm, rows.cache.layers
        if column is None:
            column = last.new_full((1,), rows.used)
            for cache in caches:
                cache.add_column()
        seen = rows.mask.view(torch.uint8)
        hidden: Tensor = self.embed(last)
        change: Tensor | None = None
        for number, (layer, heads) in enumerate(zip(self.layers, self.heads, strict=True)):
            cache = caches[number].keys, caches[number].values
            states = layer.project(norm(hidden, change, layer.before.weight, layer.before.epsilon, self.dtype))
            query = heads.rotate(states, positions, column, cache)
            change = layer.out(heads.attend(query, cache, seen, column, self._share(rows, number)))
            states = layer.gate_and_up(norm(hidden, change, layer.between.weight, layer.between.epsilon, self.dtype))
            change = layer.down(self.kernels.gate(*states))
        logits: Tensor = self.head(norm(hidden, change, self.norm.weight, self.norm.epsilon, self.dtype))
        return logits

    def _share(self, rows: Sequences, number: int) -> Shared | None:
        """Return the prompts' keys and values in a layer if rows share them."""
        prefix = rows.shared_prefix
        if prefix is None:
            return None
        cache, seen = prefix.cache.layers[number], prefix.mask.view(torch.uint8)
        return self.kernels.Shared(
            cache.keys, cache.values, cache.used, seen, prefix.row_of_slot, prefix.owner, prefix.group_size
        )
