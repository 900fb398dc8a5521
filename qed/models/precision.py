"""The precision of the weights and of the computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from qed.config.settings import ModelSettings
from qed.errors import UsageError
from qed.models.rounded_products import compute_rounded, lacks_bfloat16


def read_precision(settings: ModelSettings) -> torch.dtype:
    """Return the compute precision."""
    return {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(settings.precision, torch.float32)


def read_weights_dtype(settings: ModelSettings) -> torch.dtype:
    """Return the dtype of the weights: float64 if the computation is in float64, otherwise that of the settings."""
    if settings.precision == "float64":
        return torch.float64
    return torch.bfloat16 if settings.dtype == "bfloat16" else torch.float32


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast a model's weights; buffers, such as rotary frequencies, keep their dtype."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def compute_in(device: str, precision: torch.dtype) -> AbstractContextManager[object]:
    """Return a context in which a model computes in a precision.

    Args:
        device: type of the model's device.
        precision: bfloat16 uses autocast, float64 avoids a model's float32 parts, and float32 changes nothing.
    """
    if precision == torch.float64:
        return KeepFloat64()
    if precision == torch.bfloat16 and device == "cpu" and lacks_bfloat16():
        return compute_rounded()
    return torch.autocast(device, dtype=precision) if precision != torch.float32 else nullcontext()


def read_compute_dtype(source: Any) -> torch.dtype:
    """Return the dtype of products with a tensor or a model's weights, in the current autocast."""
    kind = source.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else source.dtype


class KeepFloat64(TorchFunctionMode):
    """Computes in float64 where a model asks for float32.

    Norms, rotary embeddings and some softmaxes of transformers compute in float32 regardless of the weights' dtype:
    enough for half precision, but in float64 this would round everything to float32.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch with float64 in place of float32."""
        if func is torch.Tensor.float:
            return args[0].double()
        kwargs = kwargs or {}
        for value in (*args, *kwargs.values()):
            if value is torch.float32:
                return func(*map(_widen, args), **{name: _widen(each) for name, each in kwargs.items()})
        return func(*args, **kwargs)


def _widen(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def require_float64(settings: ModelSettings, device: torch.device) -> None:
    """Reject float64 on a device without it.

    Raises:
        UsageError: the device has no float64.
    """
    if settings.precision == "float64" and device.type == "mps":
        raise UsageError("model.precision float64 is not supported on mps: use model.device=cpu, or float32.")
