"""Check where a request comes from: its host, its origin and its token."""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from qed.errors import UsageError


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback, that is, reachable only from this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_host(header: str) -> str:
    """Return the host of a Host header, without its port; empty if it has none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_foreign_page(headers: Headers) -> bool:
    """Return whether a page of another site sends the request: its Origin differs from the requested host."""
    origin = headers.get("origin")
    try:
        return origin is not None and urlsplit(origin).netloc != headers.get("host", "")
    except ValueError:
        return True


def has_bearer(headers: Headers, token: bytes) -> bool:
    """Return whether a request carries a token as `Authorization: Bearer TOKEN`, compared in constant time."""
    kind, _, given = headers.get("authorization", "").partition(" ")
    return kind.lower() == "bearer" and is_same_secret(given.strip(), token)


def is_same_secret(given: str, secret: bytes) -> bool:
    """Compare a text with a secret in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret)


def require_safe_address(host: str, port: int, token: str, variable: str) -> None:
    """Require a token for an address that other machines can reach.

    Args:
        host: the host to listen on.
        port: the port; 0 lets the system choose.
        token: the token that requests must carry; empty for none.
        variable: the environment variable that holds the token, for the message.

    Raises:
        UsageError: there is no token, it cannot be sent in a header, or the port is out of range.
    """
    if not is_loopback(host) and not token:
        raise UsageError(
            f"--host {host} opens the server to other machines, which requires a token: set {variable}, or give "
            "--token. Without --host, only this machine can connect."
        )
    if any(not 33 <= ord(sign) <= 126 for sign in token):
        raise UsageError("The token is sent in a header, so it must have only printable ASCII characters, no spaces.")
    if not 0 <= port <= 65_535:
        raise UsageError("--port must be a number from 0 to 65535; 0 lets the system choose.")
