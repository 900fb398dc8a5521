"""The C++ functions by name, and whether there are Triton kernels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from qed.kernels.build import load_library
from qed.kernels.structures import COUNT, DOUBLE, FLAG, NUMBER, POINTER
from qed.kernels.trials import describe_failure

HALF = (torch.bfloat16, torch.float16)
CAPABILITY = (8, 0)  # the lowest compute capability with bfloat16
LANES = 8  # elements of a vector in vectors.h, of which a head's width is a multiple
KINDS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
SIGNATURES = {
    "pack": (POINTER, COUNT, COUNT, POINTER),
    "multiply": (POINTER, COUNT, COUNT, POINTER, COUNT, POINTER),
    "attend": (POINTER,) * 6,
    "norm": (POINTER, POINTER, POINTER, NUMBER, COUNT, COUNT, COUNT, POINTER),
    "gate": (POINTER, POINTER, COUNT, COUNT, COUNT, COUNT, POINTER),
    "draw": (POINTER, COUNT, COUNT, COUNT, POINTER, COUNT, POINTER, POINTER),
    "shape": (POINTER, COUNT, COUNT, COUNT, NUMBER, COUNT, DOUBLE, NUMBER, COUNT, POINTER),
    "append": (COUNT, COUNT, *(POINTER,) * 8),
    "step": (POINTER,) * 5,
    "norm_forward": (POINTER, POINTER, POINTER, NUMBER, COUNT, COUNT, COUNT, POINTER, POINTER, POINTER),
    "norm_backward": (*(POINTER,) * 5, COUNT, COUNT, COUNT, POINTER, POINTER),
    "gate_backward": (POINTER, POINTER, POINTER, COUNT, COUNT, COUNT, POINTER, POINTER),
    "rotate_forward": (POINTER, POINTER, NUMBER, POINTER, POINTER, COUNT, COUNT, COUNT, COUNT, POINTER),
    "rotate_backward": (POINTER, POINTER, POINTER, NUMBER, POINTER, POINTER, COUNT, COUNT, COUNT, COUNT, POINTER),
    "reduce_logits": (POINTER, POINTER, COUNT, NUMBER, COUNT, COUNT, COUNT, POINTER, POINTER, COUNT),
    "reverse_logits": (POINTER, POINTER, COUNT, NUMBER, *(POINTER,) * 4, COUNT, COUNT, COUNT, *(POINTER,) * 3),
    "pack_tiles": (POINTER, COUNT, COUNT, COUNT, COUNT, POINTER),
    "weight_gradient": (POINTER, POINTER, POINTER, COUNT, COUNT, COUNT, FLAG, COUNT, POINTER),
    "attend_forward": (POINTER,) * 6,
    "attend_backward": (POINTER,) * 10,
}


def has_kernels() -> bool:
    """Return whether there are C++ functions."""
    return load_library().library is not None


@cache
def multiplies_in_tiles(width: int) -> bool:
    """Return whether C++ attention in bfloat16, with heads of a width, uses AMX tiles."""
    library = load_library().library
    if library is None:
        return False
    library.multiplies_in_tiles.argtypes, library.multiplies_in_tiles.restype = (COUNT,), FLAG
    return bool(library.multiplies_in_tiles(width))


@cache
def has_tile_products() -> bool:
    """Return whether C++ functions use AMX tiles for matrix products, and so also compute gradients of weights."""
    library = load_library().library
    if library is None:
        return False
    library.has_tile_products.restype = FLAG
    return bool(library.has_tile_products())


@cache
def has_cuda_kernels(device: torch.device) -> bool:
    """Return whether Triton can compile and run a kernel on a CUDA device."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        from qed.kernels.cuda import drawing  # noqa: PLC0415 -- loads Triton, which only some machines have

        tokens, _ = drawing.draw(torch.tensor([[0.0, 1.0]], device=device), None)
        return tokens.tolist() == [1]
    except Exception as error:  # noqa: BLE001 -- a compiler fails in many ways
        warnings.warn(f"Triton fails, so torch's own operations are used: {describe_failure(error)}", stacklevel=2)
        return False


def has_half_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether there are Triton kernels for a device and a half-precision dtype."""
    able = device.type == "cuda" and dtype in HALF and torch.cuda.get_device_capability(device) >= CAPABILITY
    return able and has_cuda_kernels(device)


@cache
def find_function(name: str, dtype: torch.dtype | None = None) -> Callable[..., None]:
    """Return a C++ function; pass a dtype for those that exist once for each dtype."""
    library = load_library().library
    assert library is not None
    function: Any = getattr(library, name if dtype is None else f"{name}_{KINDS[dtype]}")
    function.argtypes, function.restype = SIGNATURES[name], None
    return function  # type: ignore[no-any-return]


def call_function(name: str, dtype: torch.dtype, *values: Tensor | float | None) -> None:
    """Call a C++ function with numbers and the addresses of tensors."""
    find_function(name, dtype)(*(each.data_ptr() if isinstance(each, Tensor) else each for each in values))
