"""Sockets that listen for clients, and the address that clients use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from qed.errors import UsageError


@contextmanager
def open_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at an address while the block runs.

    Raises:
        UsageError: the address is in use, or does not belong to this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"The server cannot listen on {host}, port {port}: {error.strerror}. Use another --host "
            "or --port; --port 0 chooses a free port."
        ) from error
    # Connections inherit this option. asyncio sets it only for sockets that name their protocol; without it, the body
    # of a reply waits 40 ms for the acknowledgement of its head.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def format_url(listener: socket.socket) -> str:
    """Return the address of a socket for clients on this machine; `everywhere` includes loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
