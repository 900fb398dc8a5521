"""Who may use the viewer, and the headers that protect its page from other sites.

Without a token the viewer accepts only requests from this machine, by its loopback names. Pages of any site can make a
browser on this machine send requests, too: these have a foreign Host (after DNS rebinding), Origin or Sec-Fetch-Site.
The only request that a foreign site may cause is that of the page itself, by a link that the user clicked: the page is
the same for everyone, and opens in a separate browsing context.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qed.net.access import has_bearer, is_foreign_page, is_loopback, is_same_secret
from qed.viewer.params import Refused
from qed.viewer.replies import report_bug

LONGEST_TARGET = 8_192  # bytes of a request's path and query
METHODS = ("GET", "HEAD")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
EVERYWHERE = ("0.0.0.0", "::")  # addresses that stand for all interfaces of this machine
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


def create_token() -> str:
    """Return a new token."""
    return secrets.token_urlsafe(24)


@dataclass(frozen=True)
class Access:
    """Who may use the viewer.

    Args:
        hosts: the allowed Host headers, in lower case; one without a port allows any port.
        everywhere: whether the server listens on all addresses, so that the address that a client reached is allowed.
        token: the token that requests must carry; empty for none.
        port: the server's port; all ports of a host share cookies, so it is part of their name.
    """

    hosts: frozenset[str]
    token: str = ""
    port: int = 0
    everywhere: bool = False

    @property
    def cookie(self) -> str:
        """The name of the cookie."""
        return f"qed_view_{self.port}"

    @property
    def pass_value(self) -> str:
        """The value of the cookie, which does not reveal the token and is the same after a restart."""
        return hmac.new(self.token.encode(), b"cookie of qed view", sha256).hexdigest()


def list_hosts(host: str, port: int, others: Iterable[str] = ()) -> frozenset[str]:
    """Return the allowed Host headers of a server.

    Args:
        host: the address that it listens on.
        port: its port.
        others: further names, with a port, or without one for any port.
    """
    names = {_bracket(host)}
    if is_loopback(host):
        names = {*LOOPBACK, *names}
    elif host in EVERYWHERE:
        names = {*LOOPBACK, socket.gethostname()}
    exact = {f"{name}:{port}" for name in names} | (names if port == 80 else set())
    return frozenset(one.lower() for one in (*exact, *others))


def _bracket(address: str) -> str:
    return f"[{address}]" if ":" in address else address


class Guard:
    """ASGI application that passes allowed requests on, and refuses the others.

    Args:
        app: the application that answers.
        access: who may use it.
    """

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        begun = False

        async def send_guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["cache-control"] = "no-store" if scope["path"].startswith("/api/") else "no-cache"
            await send(message)

        try:
            reply: ASGIApp = self._check(scope) or self.app
        except Refused as error:
            reply = _build_refusal(error)
        try:
            await reply(scope, receive, send_guarded)
        except Exception as error:  # noqa: BLE001 -- the server keeps running
            report_bug(scope["path"][:80], error)
            if not begun:
                await _build_refusal(Refused(500, "The viewer failed; see its terminal for details."))(
                    scope, receive, send_guarded
                )

    def _check(self, scope: Scope) -> Response | None:
        """Refuse a request, or return the reply that gives a browser its cookie; None for all others.

        Raises:
            Refused: with 405 for the method, 414 for a long address, 403 for a foreign host or page, 401 for a wrong
                token.
        """
        headers = Headers(scope=scope)
        if scope["method"] not in METHODS:
            raise Refused(405, "The viewer is read-only: it accepts GET and HEAD.")
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_TARGET:
            raise Refused(414, f"The address is longer than {LONGEST_TARGET} bytes.")
        self._check_origin(scope, headers)
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token") if scope["path"] == "/" else None
        if not self.access.token or (given is None and self._has_pass(headers)):
            return None
        if given is None or not is_same_secret(given[0], self.access.token.encode()):
            raise Refused(
                401,
                "The token is missing or wrong. Open the address that the viewer printed, with ?token=…, or send "
                "the header `Authorization: Bearer TOKEN`.",
            )
        reply = RedirectResponse("/", 303)
        reply.set_cookie(self.access.cookie, self.access.pass_value, httponly=True, samesite="strict", path="/")
        return reply

    def _check_origin(self, scope: Scope, headers: Headers) -> None:
        """Refuse requests that name another host, or that a page of another site caused."""
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self._is_own(hosts[0].lower(), scope):
            shown = quote((hosts or [""])[0][:80], safe=":[].")
            raise Refused(
                403,
                f"The viewer does not accept the host '{shown}'. Open one of {', '.join(sorted(self.access.hosts))}, "
                "or start it with --allow-host NAME (such as localhost for a tunnel to another port).",
            )
        if is_foreign_page(headers):
            raise Refused(403, "The viewer does not answer pages of other sites (the Origin is not its own).")
        site = headers.get("sec-fetch-site", "none").lower()
        if site not in ("same-origin", "none") and not _is_clicked_link(scope, headers):
            raise Refused(403, "The viewer does not answer pages of other sites. Enter its address by hand.")

    def _is_own(self, host: str, scope: Scope) -> bool:
        reached = scope.get("server")
        if self.access.everywhere and reached and host == f"{_bracket(reached[0])}:{reached[1]}":
            return True
        name, _, port = host.rpartition(":")
        any_port = name if port.isdecimal() else host
        return host in self.access.hosts or any_port in self.access.hosts

    def _has_pass(self, headers: Headers) -> bool:
        if has_bearer(headers, self.access.token.encode()):
            return True
        # Not the parser of http.cookies, which stops at a malformed cookie of another program.
        value = cookie_parser(headers.get("cookie", "")).get(self.access.cookie, "")
        return is_same_secret(value, self.access.pass_value.encode())


def _is_clicked_link(scope: Scope, headers: Headers) -> bool:
    """Return whether a request opens the page itself in a tab because the user clicked a link."""
    sent = {name: headers.get(f"sec-fetch-{name}", "") for name in ("mode", "dest", "user")}
    return (
        scope["path"] == "/"
        and not scope["query_string"]
        and sent == {"mode": "navigate", "dest": "document", "user": "?1"}
    )


def _build_refusal(error: Refused) -> Response:
    extra = {405: {"allow": ", ".join(METHODS)}, 401: {"www-authenticate": "Bearer"}}.get(error.status)
    return JSONResponse({"error": str(error)}, error.status, extra)
