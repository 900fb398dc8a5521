"""Chooses the decoder of a model."""

from __future__ import annotations

from typing import Any

from qed.sampling.native.compiled import CompiledDecoder, can_compile
from qed.sampling.native.cuda_decoder import CudaDecoder, can_use_kernels
from qed.sampling.native.decoder import Decoder, ForwardDecoder, LlamaDecoder, is_llama_like


def choose_decoder(model: Any, columns: int) -> Decoder:
    """Return the fastest decoder that supports a model; `columns` is the maximum length of a sequence."""
    if not is_llama_like(model):
        return ForwardDecoder(model, columns)
    if can_compile(model):
        return CompiledDecoder(model, columns)
    return CudaDecoder(model, columns) if can_use_kernels(model) else LlamaDecoder(model, columns)
