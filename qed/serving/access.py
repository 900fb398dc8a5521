"""Access control: whoever has the token if one is set, otherwise only programs on this machine, but no web page.

Any web page can make a browser on this machine send requests here. Such a request has a foreign Origin or, after DNS
rebinding, a foreign Host.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from qed.net.access import has_bearer, is_foreign_page, is_loopback, read_host
from qed.serving.refusals import Refused

OPEN = frozenset({"/health"})  # paths that need no token, for monitoring


class Access:
    """Middleware that refuses unauthorized requests.

    Args:
        app: the application that answers the others.
        token: the token that requests must carry; if empty, both Host and client must be this machine.
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
        """Check a request.

        Raises:
            Refused: with 401 for a wrong token, and 403 for a foreign host, page or client.
        """
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if is_foreign_page(headers):
            raise Refused(403, "This server does not answer web pages of other sites (the Origin is not its own).")
        if self._token:
            if scope["path"] not in OPEN and not has_bearer(headers, self._token):
                raise Refused(
                    401,
                    "The token is missing or wrong. Send the header `Authorization: Bearer TOKEN`.",
                    headers={"www-authenticate": "Bearer"},
                )
            return
        if not is_loopback(read_host(host)):
            raise Refused(403, f"Address this server as 127.0.0.1 or localhost, not as '{host[:80]}'.")
        client = scope.get("client")
        if client is not None and not is_loopback(client[0]):
            raise Refused(403, "This server has no token, so it answers only programs on its own machine.")
