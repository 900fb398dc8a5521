"""Find free ports of this machine."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from qed.errors import QedError


@contextmanager
def reserve_port() -> Iterator[int]:
    """Yield a free port that is reserved for a server while the block runs.

    On Linux a socket that is bound but does not listen keeps the port from all programs except those that ask to share
    it, as servers with a fixed port do. On other systems the port is released before it is used.

    Raises:
        QedError: no port can be bound.
    """
    with _bind_port() as holder:
        port = int(holder.getsockname()[1])
        if sys.platform != "linux":
            holder.close()
        yield port


def _bind_port() -> socket.socket:
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        with suppress(OSError), ExitStack() as stack:
            holder = stack.enter_context(socket.socket(family))
            if family == socket.AF_INET6:
                holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((address, 0))
            stack.pop_all()
            return holder
    raise QedError("No port of this machine can be bound, so processes cannot connect to each other.")
