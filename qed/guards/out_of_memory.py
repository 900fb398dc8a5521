"""Free everything that a computation held after it ran out of memory."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

from qed.errors import is_out_of_memory

Result = TypeVar("Result")


def call_if_it_fits(compute: Callable[[], Result]) -> list[Result]:
    """Return a function's result in a list, which is empty if the call ran out of memory.

    The memory of a failed call is freed: the frames in an error's traceback would keep the graph and its activations.
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
    """Free what a failed computation held; its frames and tensors form reference cycles."""
    gc.collect()
    free_cache()


def free_cache() -> None:
    """Return unused cached memory to the device."""
    if "torch" in sys.modules:
        sys.modules["torch"].cuda.empty_cache()  # does nothing if CUDA is not in use
