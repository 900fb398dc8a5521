"""The state that all routes of the web server share, and the replies to the errors that they raise."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from qed.errors import ModelError, QedError, UsageError
from qed.serving.keeper import EngineKeeper
from qed.serving.messages import AnswerAborted, EngineDied, EngineInfo, PauseTimeout
from qed.serving.metrics import Metrics
from qed.serving.model_text import ModelText
from qed.serving.refusals import RETRY, Refused


@dataclass
class ServerState:
    """The engine, the model's text, the names under which the model is served, and the limit of a body in bytes."""

    keeper: EngineKeeper
    text: ModelText
    names: tuple[str, ...]
    body_limit: int
    metrics: Metrics = field(default_factory=Metrics)
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def info(self) -> EngineInfo:
        """The description of the engine."""
        return self.keeper.info


def find_state(request: Request) -> ServerState:
    """Return the state of the server that received a request."""
    state: ServerState = request.app.state.server
    return state


def refuse_error(error: Exception) -> Refused:
    """Return the reply to an error; of an unexpected one (no QedError) the client learns only the class."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, PauseTimeout):
        return Refused(409, str(error))
    if isinstance(error, EngineDied | AnswerAborted):
        return Refused(503, f"{error} Try again.", headers=RETRY)
    if isinstance(error, UsageError | ModelError):
        return Refused(400, str(error))
    if isinstance(error, QedError):
        return Refused(500, str(error))
    return Refused(500, f"The server failed with {type(error).__name__}; its log has the traceback.")
