"""The options of a web server, which are checked before torch is imported."""

from __future__ import annotations

from dataclasses import dataclass

from qed.net.access import require_safe_address


@dataclass(frozen=True)
class ServerOptions:
    """Where a server listens and who may ask: the address, the port (0 lets the system choose), and a token.

    `name` is that of the model for clients, `others` are names it answers to as well. `body_limit` is in bytes.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""
    name: str = "model"
    others: tuple[str, ...] = ()
    body_limit: int = 10_000_000

    def __post_init__(self) -> None:
        """Refuse to listen to other machines without a token.

        Raises:
            UsageError: there is none, or a number is out of its range.
        """
        require_safe_address(self.host, self.port, self.token, "QED_SERVE_TOKEN")
