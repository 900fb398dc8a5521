"""Recognises that memory has run out, and lets go of everything that the failed computation held."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
# Of CUDA, MPS, cuBLAS, and of the CPU's allocator on Linux and on Windows.
SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of the device or of the host has run out."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)


def call_if_it_fits(compute: Callable[[], Result]) -> list[Result]:
    """Return a function's result in a list, which is empty if memory has run out.

    The memory of a failed call is free afterwards: the frames of an error's traceback hold the graph and its
    activations.
    """
    try:
        return [compute()]
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        held: BaseException | None = error
        while held is not None:
            traceback.clear_frames(held.__traceback__)
            held = held.__context__
    free_failed()
    return []


def free_failed() -> None:
    """Free what a failed computation held: its frames and tensors refer to each other."""
    gc.collect()
    free_cache()


def free_cache() -> None:
    """Return memory that nothing uses to the device."""
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()  # does nothing where CUDA is not in use
