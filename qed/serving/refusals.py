"""Error replies in the format of OpenAI's API: a status, a message, its type, the field, and a code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse

from qed.errors import QedError

# The `type` of an error by its status, as in vLLM.
TYPES = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    429: "RateLimitError",
    500: "InternalServerError",
    503: "ServiceUnavailableError",
}
RETRY = {"retry-after": "1"}  # headers of a reply to a request that may succeed in a second


class Refused(QedError):
    """A request is refused with an error reply.

    Args:
        status: the HTTP status.
        message: what is wrong, and what to do.
        param: the field of the request that is the reason, if any.
        headers: the headers of the reply.
    """

    def __init__(
        self, status: int, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.headers = status, param, dict(headers or {})

    def build_body(self) -> dict[str, Any]:
        """Return the JSON body of the reply."""
        kind = TYPES.get(self.status, "BadRequestError")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.status}}

    def build_reply(self) -> JSONResponse:
        """Return the reply."""
        return JSONResponse(self.build_body(), self.status, self.headers)
