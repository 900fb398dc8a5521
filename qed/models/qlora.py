"""4-bit weights under adapters (QLoRA, arXiv 2305.14314): quantized by bitsandbytes, and saved dequantized.

Only the linear layers of the decoder are quantized, in blocks of 64 weights whose scales are quantized too; embeddings,
norms and the output layer are not. Products are computed in the precision of the run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from qed.config.settings import ModelSettings
from qed.errors import UsageError
from qed.models.adapters import is_adapter
from qed.models.weights import Source

BLOCK = 64  # weights that share a scale of one byte, by bitsandbytes' default
SCALES = 256  # scales that share a float32 scale


def require_quantizable(settings: ModelSettings) -> None:
    """Reject quantization of an adapter folder, because loading merges it into complete weights.

    Raises:
        UsageError: the settings quantize an adapter folder.
    """
    if settings.quantization != "none" and is_adapter(settings.name):
        raise UsageError(
            f"model.quantization needs complete weights, but {settings.name} is an adapter: merge it with "
            "`qed export RUN --merge`, or use model.quantization=none."
        )


def build_quantization_options(settings: ModelSettings, device: torch.device) -> dict[str, Any]:
    """Build the arguments of `from_pretrained` that quantize a model on loading; empty without quantization.

    Raises:
        UsageError: there is no CUDA device, or the package bitsandbytes is not installed.
    """
    if settings.quantization == "none":
        return {}
    alternative = "or use model.quantization=none, which keeps the weights under the adapters in float32."
    if device.type != "cuda":
        raise UsageError(
            f"model.quantization {settings.quantization} needs a CUDA device, but the model is for {device.type}: run "
            f"it on a machine with one, {alternative}"
        )
    if find_spec("bitsandbytes") is None:
        raise UsageError(
            f"model.quantization {settings.quantization} needs the package bitsandbytes: "
            f"pip install 'qed[8bit]', {alternative}"
        )
    from transformers import BitsAndBytesConfig  # noqa: PLC0415 -- few runs quantize

    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=settings.quantization,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=settings.precision,
    )
    return {"quantization_config": config, "device_map": {"": device}}


def list_dequantized(model: nn.Module) -> dict[str, Source]:
    """Return the model's weights by name; reading a 4-bit one dequantizes it."""
    listed = {name: Source.of(tensor) for name, tensor in model.state_dict().items()}
    for name, module in model.named_modules():
        weight: Any = getattr(module, "weight", None)
        if f"{name}.weight" in listed and is_quantized(weight):
            listed = {key: source for key, source in listed.items() if not key.startswith(f"{name}.weight.")}
            listed[f"{name}.weight"] = _list_quantized(weight)
    return listed


def _list_quantized(weight: Any) -> Source:
    """Return a 4-bit weight as a source of the full weight."""
    state = weight.quant_state
    return Source(tuple(state.shape), state.dtype, lambda: dequantize(weight, state.dtype), sharded=False)


def is_quantized(weight: Any) -> bool:
    """Return whether a weight is in 4 bits."""
    return getattr(weight, "quant_state", None) is not None


def dequantize(weight: Any, dtype: torch.dtype) -> Tensor:
    """Return the full weight of a 4-bit one, [outputs, inputs], without an intermediate copy in its own dtype."""
    return RestoredScales(weight, dtype).read()


class RestoredScales:
    """A 4-bit weight whose scales are dequantized once, so that one kernel dequantizes the weight.

    Args:
        weight: the 4-bit weight.
        dtype: dtype of the full weight.
    """

    def __init__(self, weight: Any, dtype: torch.dtype) -> None:
        from bitsandbytes.functional import QuantState, dequantize_blockwise  # noqa: PLC0415 -- an extra, may be absent

        self.packed, self.dtype, state = weight.data, dtype, weight.quant_state
        scales = state.absmax
        if state.nested:
            scales = dequantize_blockwise(scales, state.state2) + state.offset
        self.state = QuantState(
            scales.float(),
            shape=state.shape,
            code=state.code,
            blocksize=state.blocksize,
            quant_type=state.quant_type,
            dtype=dtype,
        )

    def __len__(self) -> int:
        """Return the number of outputs."""
        return int(self.state.shape[0])

    def numel(self) -> int:
        """Return the number of weights."""
        return math.prod(self.state.shape)

    def read(self) -> Tensor:
        """Return the full weight, [outputs, inputs]."""
        from bitsandbytes.functional import dequantize_4bit  # noqa: PLC0415 -- an extra

        full: Tensor = dequantize_4bit(self.packed, self.state)
        return full


def count_weights(model: nn.Module) -> int:
    """Count the parameters of a model, including 4-bit ones."""
    weights: Iterable[Any] = model.parameters()
    return sum(math.prod(each.quant_state.shape) if is_quantized(each) else each.numel() for each in weights)


def count_restored_bytes(weight: Any) -> int:
    """Count the bytes of the scales that `RestoredScales` keeps for a weight in 4 bits."""
    blocks = -(-math.prod(weight.quant_state.shape) // weight.quant_state.blocksize)
    return torch.float32.itemsize * int(blocks)


def count_packed_bytes(weights: int) -> int:
    """Count the bytes of 4-bit weights: half a byte each, and the scales of their blocks."""
    scales = -(-weights // BLOCK)
    return -(-weights // 2) + scales + torch.float32.itemsize * -(-scales // SCALES)


def count_full_bytes(tensor: Tensor) -> int:
    """Compute the bytes of a tensor in a checkpoint; a quantized one has two weights per byte, saved in float32."""
    return 8 * tensor.nbytes if tensor.dtype == torch.uint8 else tensor.nbytes


def build_unquantized_shell(model: Any) -> Any:
    """Return a model of the same shape with an unquantized config, for saving full weights.

    This is the model itself if it is not quantized, otherwise a copy on the meta device, without memory for weights.
    """
    if getattr(model.config, "quantization_config", None) is None:
        return model
    config = copy.deepcopy(model.config)
    del config.quantization_config
    with torch.device("meta"):
        shell = type(model)(config)
    shell.generation_config = model.generation_config
    return shell
