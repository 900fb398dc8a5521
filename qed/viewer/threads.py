"""Run work in daemon threads, which do not keep the process from exiting."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


async def call_in_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a new thread, which does not keep the process from exiting."""
    loop, future = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

    def finish(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def work() -> None:
        result, failure = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 -- raised where it is awaited
            failure = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, failure)

    threading.Thread(target=work, name="viewer", daemon=True).start()
    value: Result = await future
    return value
