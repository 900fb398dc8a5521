"""Ask the endpoints of the viewer without a server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from qed.viewer.app import ENDPOINTS
from qed.viewer.library import Library
from qed.viewer.params import Params


class Asked:
    """The endpoints over a folder of runs."""

    def __init__(self, *places: Path, cache: Path) -> None:
        self.library = Library(places, cache)

    def __call__(self, endpoint: str, **params: Any) -> dict[str, Any]:
        """Return a reply as a client gets it; what JSON lacks is an error."""
        reply: dict[str, Any] = json.loads(
            json.dumps(ENDPOINTS[endpoint](self.library, Params(params)), allow_nan=False)
        )
        return reply
