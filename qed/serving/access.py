"""Who may ask: a token where one is set, and otherwise only programs of this machine, but no web page.

A browser on this machine is asked by pages of any site to send requests here. A page's request has an Origin that is
not ours, or, where its name was rebound to this machine, a Host that is not ours.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qed.net.access import has_bearer, is_foreign_page, is_loopback, read_host
from qed.serving.refusals import Refused

OPEN = frozenset({"/health"})  # paths that need no token, for whatever watches the server


class Access:
    """Middleware that refuses requests of those who may not ask.

    Args:
        app: what answers the others.
        token: that requests must carry; without one the Host, and the client, must be of this machine.
    """

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self.app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        try:
            self._check(scope)
        except Refused as error:
            await error.build_reply()(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        """Refuse a request.

        Raises:
            Refused: with 401 for a wrong token, and 403 for a foreign host, page or client.
        """
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if is_foreign_page(headers):
            raise Refused(403, "This server answers no web pages of other sites (the Origin is not its own).")
        if self._token:
            if scope["path"] not in OPEN and not has_bearer(headers, self._token):
                raise Refused(
                    401,
                    "The token is missing or wrong. Send the header `Authorization: Bearer TOKEN`.",
                    headers={"www-authenticate": "Bearer"},
                )
            return
        if not is_loopback(read_host(host)):
            raise Refused(403, f"This server is asked as 127.0.0.1 or localhost, not as '{host[:80]}'.")
        client = scope.get("client")
        if client is not None and not is_loopback(client[0]):
            raise Refused(403, "This server has no token, and answers programs of its own machine only.")
