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
        UsageError: it is in use, or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UsageError(
            f"The server cannot listen at {host}, port {port}: {error.strerror}. Give another --host "
            "or --port; --port 0 takes a free port."
        ) from error
    # Connections inherit it. asyncio sets it only where a socket names its protocol, and without it the body of a reply
    # waits for the acknowledgement of its head, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def format_url(listener: socket.socket) -> str:
    """Return the address of a socket for clients of this machine; `everywhere` includes loopback."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
