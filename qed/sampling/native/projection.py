"""Linear layers of a decoding step: layers with the same input are joined, and packed on a CPU.

A decoding step multiplies few rows by every weight, repeatedly with the same weights, so it pays to store a weight in
the order in which it is read. In float32 the functions in C++ do so, and in bfloat16 on a CPU with AMX. Elsewhere
oneDNN does so in bfloat16, which halves the time for few rows and, without a C++ compiler, also in float32 on AMD CPUs
with AVX-512, which MKL leaves unused. A CPU without bfloat16 instructions multiplies rounded numbers in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qed import host
from qed.kernels.decoding import Linear, TileLinear
from qed.kernels.functions import KINDS, has_kernels, has_tile_products
from qed.models import fast_float32, lora
from qed.models.adapted_layer import Adapter, is_adapted_linear, is_adapted_quantized, read_adapter
from qed.models.own_layers import has_own_forward
from qed.models.qlora import RestoredScales, count_restored_bytes
from qed.models.rounded_products import lacks_bfloat16

SMALL = 1 << 20  # most weights of unpacked projections to join in one copy
ROWS = 32  # rows that a packed weight is laid out for; any number works
FEW_ROWS, FEW_WEIGHTS = 32, 1 << 17  # MKL is faster in float32 up to these: a oneDNN call costs 10 µs more
Weight = Tensor | RestoredScales
COPIES_SHARE = 10  # packed copies of the weights may take at most 1 / this of the memory


class Projections:
    """Builds functions from a model's linear layers, valid as long as the weights do not change.

    Args:
        model: model whose weights are read; products use the current autocast.
    """

    def __init__(self, model: Any) -> None:
        kind: str = model.device.type
        self.cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        dtype = self.cast or next(model.parameters()).dtype
        rounds = kind == "cpu" and dtype == torch.bfloat16 and lacks_bfloat16() and has_kernels()
        width = torch.float32.itemsize if rounds else dtype.itemsize
        size = sum(weight.numel() * width for weight in model.parameters())
        fits = size * COPIES_SHARE <= host.total_memory()
        self.rounds = rounds and fits
        self.compiled = kind == "cpu" and fits and has_product(dtype)
        self.tiles = kind == "cpu" and fits and dtype == torch.bfloat16 and has_tile_products()
        packs = self.compiled or self.rounds or self.tiles
        self.packs = packs or (kind == "cpu" and fits and can_pack(dtype))
        # On a device, weights of another precision are cast once for all steps. Autocast also casts the trained ones,
        # for the prompts, and keeps its casts as long.
        self.casts = kind == "cuda" and self.cast is not None
        plain = (module.weight for module in model.modules() if type(module) is nn.Linear)
        cast = sum(weight.numel() for weight in plain if weight.dtype != dtype) * dtype.itemsize * self.casts
        # 4-bit weights of layers with adapters are dequantized once too, if that takes little memory.
        layers = [module for module in model.modules() if self.casts and is_adapted_quantized(module)]
        quantized = [layer.base_layer.weight for layer in layers]
        full = sum(math.prod(weight.quant_state.shape) for weight in quantized) * dtype.itemsize
        self.dequantizes = full > 0 and full * COPIES_SHARE <= count_device_memory(model.device)
        restored = full if self.dequantizes else sum(map(count_restored_bytes, quantized))
        self.copied_bytes = size if self.packs else cast + restored

    def join(self, *modules: Any) -> Callable[[Tensor], Sequence[Tensor]] | Joined:
        """Join several layers that read the same states into one function."""
        found = [self._read_layer(module) for module in modules]
        plain = [layer for layer in found if layer is not None]
        adapters = [layer.adapter for layer in plain if layer.adapter is not None]
        biased = {layer.bias is not None for layer in plain}
        factors = {adapter.factor for adapter in adapters}
        copied = all(layer.weight.dtype != self.cast for layer in plain) if self.casts else self.packs
        joins = copied or sum(layer.weight.numel() for layer in plain) <= SMALL
        joins = joins and not any(isinstance(layer.weight, RestoredScales) for layer in plain)
        same = len(biased) == 1 and len(factors) <= 1 and len(adapters) in (0, len(modules))
        uncast = all(layer.weight.dtype == self.cast for layer in plain)
        if len(plain) == len(modules) == len(adapters) and same and not joins and uncast:
            return Joined(_AdaptedTogether(plain, adapters), [len(layer.weight) for layer in plain])
        if len(plain) < len(modules) or not same or not joins:
            functions = [self._build(*each) for each in zip(modules, found, strict=True)]
            return lambda states: [function(states) for function in functions]
        multiply = self._multiply_by(
            [layer.weight for layer in plain],
            torch.cat([layer.bias for layer in plain if layer.bias is not None]) if biased == {True} else None,
        )
        if adapters:
            multiply = _Adapted(multiply, _join_adapters(adapters), self.cast)
        return Joined(multiply, [len(layer.weight) for layer in plain])

    def take(self, module: Any) -> Callable[[Tensor], Tensor]:
        """Return a layer as a function; a plain one without the overhead of a module's call."""
        return self._build(module, self._read_layer(module))

    def _build(self, module: Any, layer: _Weights | None) -> Callable[[Tensor], Tensor]:
        if layer is None:
            return module  # type: ignore[no-any-return]
        if not self.packs and not self.casts:
            return partial(nn.functional.linear, weight=_read(layer.weight), bias=layer.bias)
        multiply = self._multiply_by([layer.weight], layer.bias)
        return multiply if layer.adapter is None else _Adapted(multiply, layer.adapter, self.cast)

    def _read_layer(self, module: Any) -> _Weights | None:
        """Return the weights of a plain or adapted linear layer; None if it computes anything else."""
        if is_changed(module):
            return None
        if type(module) is nn.Linear:
            return _Weights(module.weight, module.bias)
        if not (self.compiled or self.casts) or not hasattr(module, "lora_A") or is_changed(module.get_base_layer()):
            return None
        if not self.compiled:
            return self._read_adapted(module)
        # In half precision, merging would lose adapter updates smaller than the weight's last bit.
        weight = lora.compute_merged_weight(module)
        return None if weight is None else _Weights(weight, module.get_base_layer().bias)

    def _read_adapted(self, module: Any) -> _Weights | None:
        """Return the unmerged weights of an adapted linear layer; None if it computes anything else."""
        base, quantized = module.get_base_layer(), is_adapted_quantized(module)
        if not quantized and not is_adapted_linear(module):
            return None
        adapter = None if module.disable_adapters else read_adapter(module)
        if adapter is None and (quantized or not module.disable_adapters):
            return None
        if not quantized:
            return _Weights(base.weight, base.bias, adapter)
        assert self.cast is not None
        restored = RestoredScales(base.weight, self.cast)
        return _Weights(restored.read() if self.dequantizes else restored, base.bias, adapter)

    def _multiply_by(self, weights: Sequence[Weight], bias: Tensor | None) -> Callable[[Tensor], Tensor]:
        dtype = self.cast or weights[0].dtype
        bias = None if bias is None else bias.to(dtype)
        if isinstance(weights[0], RestoredScales):
            restored = weights[0]
            return lambda states: nn.functional.linear(states.to(dtype), restored.read(), bias)
        if self.tiles and dtype == torch.bfloat16:
            plain = map(_read, weights)
            return TileLinear([weight if weight.dtype in KINDS else weight.to(dtype) for weight in plain], bias)
        # Autocast caches casts only of parameters, and a joined weight is not one, so cast it once here. Each part is
        # cast separately, so that no copy exists in both precisions.
        cast = [_read(weight).to(dtype) for weight in weights]
        weight = torch.cat(cast) if len(cast) > 1 else cast[0]
        if self.compiled:
            return Linear(weight, bias)
        if self.rounds:
            return Rounded(weight, bias)
        return _Packed(weight, bias) if self.packs else partial(nn.functional.linear, weight=weight, bias=bias)


class _Weights(NamedTuple):
    """The weights of a linear layer, and of its adapter if it has one."""

    weight: Weight
    bias: Tensor | None
    adapter: Adapter | None = None


def _read(weight: Weight) -> Tensor:
    return weight.read() if isinstance(weight, RestoredScales) else weight


class _Adapted:
    """Computes a linear layer and its adapter without merging their weights.

    Args:
        multiply: multiplies by the layer's own weight.
        adapter: adapter whose output is added.
        dtype: dtype of the products; None for that of the weights.
    """

    def __init__(self, multiply: Callable[[Tensor], Tensor], adapter: Adapter, dtype: torch.dtype | None) -> None:
        self.multiply, self.factor = multiply, adapter.factor
        self.down, self.up = (weight.to(dtype or weight.dtype) for weight in (adapter.down, adapter.up))

    def __call__(self, states: Tensor) -> Tensor:
        """Return [R, outputs] of states [R, inputs]."""
        inner = nn.functional.linear(states, self.down)
        return self.multiply(states).addmm_(inner, self.up.T, alpha=self.factor)


class _AdaptedTogether:
    """Computes layers with the same input, and their adapters, into one tensor, without copying the weights.

    The small products of all adapters become two, because launching each takes longer than computing it.

    Args:
        layers: layers with weights in the dtype of the products.
        adapters: adapters of the layers, all with the same factor.
    """

    def __init__(self, layers: Sequence[_Weights], adapters: Sequence[Adapter]) -> None:
        self.weights = [layer.weight for layer in layers]
        dtype = self.weights[0].dtype
        self.down, self.up, self.factor = _join_adapters(adapters)
        self.down, self.up = self.down.to(dtype), self.up.to(dtype)
        biases = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases).to(dtype) if biases else None

    def __call__(self, states: Tensor) -> Tensor:
        """Return [R, outputs] of states [R, inputs]."""
        states = states.to(self.down.dtype)
        product = states.new_empty(len(states), len(self.up))
        if self.bias is not None:
            product.copy_(self.bias)
        sizes = [len(weight) for weight in self.weights]
        for weight, part in zip(self.weights, torch.split_with_sizes(product, sizes, 1), strict=True):
            weight = _read(weight)
            if self.bias is None:
                torch.mm(states, weight.T, out=part)
            else:
                part.addmm_(states, weight.T)
        return product.addmm_(states @ self.down.T, self.up.T, alpha=self.factor)


def _join_adapters(adapters: Sequence[Adapter]) -> Adapter:
    """Return one adapter whose output concatenates those of several with the same input and factor."""
    ups: Tensor = torch.block_diag(*(adapter.up for adapter in adapters))  # type: ignore[no-untyped-call]
    return Adapter(torch.cat([adapter.down for adapter in adapters]), ups, adapters[0].factor)


class Joined(NamedTuple):
    """Several linear layers with the same input as one product."""

    multiply: Callable[[Tensor], Tensor]
    sizes: list[int]  # the outputs of each

    def __call__(self, states: Tensor) -> Sequence[Tensor]:
        """Return the result of each layer, views of one tensor."""
        return torch.split_with_sizes(self.multiply(states), self.sizes, -1)


class Rounded:
    """A linear layer in bfloat16 by the product in float32, see `qed.models.rounded_products`."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.multiply = Linear(weight.float(), None if bias is None else bias.float())

    def __call__(self, states: Tensor) -> Tensor:
        """Return [R, outputs] of states [R, inputs], which are rounded."""
        return self.multiply(states.to(torch.bfloat16).float()).to(torch.bfloat16)


class _Packed:
    """A linear layer with a weight packed for oneDNN, and unpacked if that is faster for few rows."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.dtype, self.bias = weight.dtype, bias
        self.plain = weight if weight.dtype == torch.float32 and weight.numel() < FEW_WEIGHTS else None
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
        self.multiply = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, states: Tensor) -> Tensor:
        """Return [R, outputs] of states [R, inputs], which are rounded to the dtype of the weight."""
        if self.plain is not None and len(states) <= FEW_ROWS:
            return nn.functional.linear(states.to(self.dtype), self.plain, self.bias)
        product: Tensor = self.multiply(states.to(self.dtype), self.weight, self.bias, "none", [], "")
        return product


def count_device_memory(device: torch.device) -> int:
    """Return the total memory of a device in bytes; unlike free memory, it gives the same decisions in every run."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return host.total_memory()


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Return whether this CPU multiplies few rows faster with weights of a dtype packed by oneDNN."""
    if dtype == torch.bfloat16:
        has_products = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        return has_products and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32 and fast_float32.is_faster()


def has_product(dtype: torch.dtype) -> bool:
    """Return whether there is a C++ product for a dtype, which is faster than MKL's for few rows."""
    return dtype == torch.float32 and has_kernels()


def is_changed(module: nn.Module) -> bool:
    """Return whether a module has its own forward pass, or hooks other than FSDP's, which `gather_weights` replaces."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    # Checked by name, because only one module of qed may import torch.distributed's FSDP.
    sharded = any(kind.__name__ == "FSDPModule" for kind in type(module).__mro__)
    return has_own_forward(module) or (bool(hooks) and not sharded)
