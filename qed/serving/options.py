"""The options of a web server; they are checked before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from qed.net.access import require_safe_address


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens and who may connect: the address, the port (0 lets the system choose), and a token.

    `name` is the model's name for clients, `others` are additional names for it. `body_limit` is in bytes.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    name: str = "model"
    others: tuple[str, ...] = ()
    body_limit: int = 10_000_000

    def __post_init__(self) -> None:
        """Check the address and the token.

        Raises:
            UsageError: other machines can connect but there is no token, or a number is out of range.
        """
        require_safe_address(self.host, self.port, self.token, "QED_SERVE_TOKEN")
