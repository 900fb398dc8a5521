"""Reads the adapter of a linear layer, for those who compute the layer without its module."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor, nn

NAME = "default"  # peft's own name of a single adapter


class Adapter(NamedTuple):
    """The adapter of a linear layer, which adds factor * up (down x) to W x."""

    down: Tensor  # [rank, inputs]
    up: Tensor  # [outputs, rank]
    factor: float


def is_adapted_linear(layer: Any) -> bool:
    """Return whether a layer is a linear one with an adapter that is not merged."""
    from peft.tuners.lora import Linear  # noqa: PLC0415 -- slow to import, and few runs use it

    return type(layer) is Linear and type(layer.base_layer) is nn.Linear and not layer.merged


def read_adapter(layer: Any) -> Adapter | None:
    """Return the only adapter of such a layer; None if the layer computes anything else."""
    if layer.active_adapters != [NAME] or layer.lora_variant or not isinstance(layer.lora_dropout[NAME], nn.Identity):
        return None
    down, up = layer.lora_A[NAME], layer.lora_B[NAME]
    if down.bias is not None or up.bias is not None:
        return None
    return Adapter(down.weight, up.weight, float(layer.scaling[NAME]))
