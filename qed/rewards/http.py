"""A reward from a server: a chat model that rates answers by a rubric, or a reward model.

`http.kind` is `chat` for an OpenAI-compatible chat model; `reward` for a reward model that takes messages (vLLM's
/pooling), `classify` for one that takes text (vLLM's /classify), `score` for one that compares two texts (/score).
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from qed.errors import UsageError
from qed.net.cache import ReplyCache
from qed.net.chat import ChatModel, complete_address
from qed.net.endpoint import Endpoint, RequestError
from qed.types import Grade, Rollout

RUBRIC = """Rate the response to the question below.

[Question]
{question}

[Reference answer]
{answer}

[Response]
{response}

Consider whether the response is correct, complete and clear. Explain briefly, then end with a line of the form
Score: N
where N is a number from 0 (useless) to {scale} (perfect)."""
# What looks like a number after the word; a dash before it is a minus sign, unless a space follows.
SCORE = re.compile(
    r"(?<![^\W_])score(?:[^\w.+\-−–—]|[-–—](?=\s)){0,8}([+\-−]?\.?\d[\d.,/%+\-−–]*(?:\s*(?:/|out of)\s*[\d.]+)?)",
    re.IGNORECASE,
)
NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d+)?|\.\d+))(?:\s*(?:/|out of)\s*(\d+(?:\.\d+)?))?", re.IGNORECASE)
# The path of the score in a reply.
PLACES = {"reward": "data.0.data", "classify": "data.0.probs", "score": "data.0.score"}


@dataclass(frozen=True)
class HttpReward:
    """Reward = the score of a server, divided by `scale`. An answer that the server cannot score is not graded."""

    url: str = ""
    """The server's address; for a chat model the base address, such as http://127.0.0.1:8000/v1."""

    kind: Literal["chat", "reward", "classify", "score"] = "chat"
    """What the server does: chat, reward, classify or score."""

    model: str = ""
    """The model's name at the server."""

    rubric: str = ""
    """A text file with {question}, {answer} and {response}: the request to a chat model, or the text to classify."""

    scale: float = 0.0
    """The score that earns a reward of 1; 0: 10 for a chat model, 1 for the others."""

    threshold: float = 0.0
    """The lowest reward that counts as a correct answer; 0: another reward decides correctness."""

    key_variable: str = "OPENAI_API_KEY"
    """The environment variable with the API key; it need not be set."""

    seconds: float = 60.0
    """Timeout of a request in seconds."""

    attempts: int = 4
    """Number of attempts of a request that fails for a temporary reason."""

    patience: float = 300.0
    """Seconds to keep retrying a server that has answered before but is unreachable or busy."""

    concurrency: int = 32
    """Number of concurrent requests."""

    reply_tokens: int = 1024
    """Maximum length of a chat model's reply, in tokens."""

    read: str = ""
    """Path of the score in a reply, such as data.0.score; empty: vLLM's. If there are several, the last one counts."""

    extra: str = ""
    """JSON object with additional fields of each request, such as {"seed": 1}; null removes a field."""

    cache: str = ""
    """A file that stores scores between runs; empty keeps them in memory."""

    @property
    def judges(self) -> bool:
        """Whether this reward decides correctness."""
        return self.threshold > 0

    def __call__(self, rollout: Rollout) -> Grade:
        """Score an answer.

        Raises:
            RequestError: the server did not score it.
        """
        request = self._build_request(rollout)
        # The path and the scale are part of the key, because they change the score.
        asked = [self._endpoint.url, request, self.kind, self._place, self._scale]
        score = self._replies.find(asked)
        if not isinstance(score, int | float) or not math.isfinite(score):
            score = self._fetch_score(request)
            self._remember(asked, score)
        value = float(score) / self._scale
        correct = self.judges and value >= self.threshold
        return Grade(value, correct, True, None, {"score": float(score)}, tier="http", reason=f"score {score:g}")

    def _remember(self, asked: list[Any], score: float) -> None:
        """Save a score; if it cannot be written, as on a full disk, keep it only in this process."""
        try:
            self._replies.add(asked, score)
        except OSError as error:
            warnings.warn(
                f"http.cache: {self.cache} cannot be written ({error.strerror or error}). Scores are kept in memory "
                "until the end of the run.",
                stacklevel=1,
            )

    def prepare(self) -> None:
        """Check the settings.

        Raises:
            UsageError: there is no address or model, or a file or value is invalid.
        """
        if not self.url:
            raise UsageError("The reward http needs the address of a server: set http.url=http://127.0.0.1:8000/v1.")
        _ = (self._endpoint, self._extra, self._rubric, self._replies)
        if not self.model:
            raise UsageError("The reward http needs the name of the server's model: set http.model.")
        if self.concurrency < 1 or self.scale < 0:
            raise UsageError("http.concurrency must be at least 1, and http.scale not negative.")

    def close(self) -> None:
        """Cancel all requests."""
        self._endpoint.close()

    @cached_property
    def _endpoint(self) -> Endpoint:
        address = complete_address(self.url) if self.kind == "chat" else self.url
        return Endpoint(address, self.key_variable, self.seconds, self.attempts, self.patience)

    @cached_property
    def _replies(self) -> ReplyCache:
        return ReplyCache(Path(self.cache) if self.cache else None)

    @property
    def _place(self) -> str:
        return self.read or PLACES.get(self.kind, "")

    @cached_property
    def _scale(self) -> float:
        return self.scale or (10.0 if self.kind == "chat" else 1.0)

    @cached_property
    def _extra(self) -> dict[str, Any]:
        try:
            extra = json.loads(self.extra or "{}")
        except ValueError as error:
            raise UsageError(f"http.extra is not JSON: {error}.") from error
        if not isinstance(extra, dict):
            raise UsageError('http.extra must be a JSON object such as {"seed": 1}.')
        return extra

    @cached_property
    def _rubric(self) -> str:
        if not self.rubric:
            return RUBRIC if self.kind == "chat" else "{question}\n\n{response}"
        try:
            text = Path(self.rubric).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"http.rubric: {self.rubric} cannot be read ({error}).") from error
        if "{response}" not in text:
            raise UsageError(
                f"http.rubric: {self.rubric} does not contain {{response}}, so it cannot be used to rate answers."
            )
        return text

    def _build_request(self, rollout: Rollout) -> dict[str, Any]:
        problem = rollout.problem
        fields = {"question": problem.question, "answer": problem.answer, "response": rollout.text}
        text = fill(self._rubric, {**fields, "scale": f"{self._scale:g}"})
        if self.kind == "chat":
            return self._chat.build_request([{"role": "user", "content": text}])
        turns = [("user", problem.question), ("assistant", rollout.text)]
        bodies: dict[str, dict[str, Any]] = {
            "reward": {"messages": [{"role": role, "content": content} for role, content in turns]},
            "classify": {"input": text},
            "score": {"text_1": problem.question, "text_2": rollout.text},
        }
        body = {"model": self.model, **bodies[self.kind], **self._extra}
        return {name: value for name, value in body.items() if value is not None}

    @cached_property
    def _chat(self) -> ChatModel:
        return ChatModel(self._endpoint, self.model, self.reply_tokens, self._extra)

    def _fetch_score(self, request: dict[str, Any]) -> float:
        if self.kind == "chat":
            return parse_score(self._chat.read_reply(self._endpoint.post(request)), self._scale)
        reply = self._endpoint.post(request)
        results = reply.get("data") if isinstance(reply, dict) else None
        if not self.read and isinstance(results, list) and len(results) != 1:
            raise RequestError(f"the reply has {len(results)} results for one answer: {str(reply)[:200]}")
        score = _find_number(reply, self._place)
        if score is None or not math.isfinite(score):
            raise RequestError(f"the reply has no number at {self._place}: {str(reply)[:200]}")
        return score


def fill(template: str, fields: Mapping[str, str]) -> str:
    """Replace each {name} in a template by its field; other braces are kept, and fields are not expanded again."""
    return re.sub(r"\{(\w+)\}", lambda match: fields.get(match[1], match[0]), template)


def parse_score(reply: str, scale: float) -> float:
    """Return the N of the last `Score: N` in a reply, or of a reply that is only a number; `N/SCALE` is N.

    Raises:
        RequestError: there is no score, it is not from 0 to `scale`, or it is on another scale.
    """
    written = (SCORE.findall(reply) or [reply.strip()])[-1]
    number = NUMBER.fullmatch(written.replace("−", "-").rstrip(".,"))
    if number is None:
        raise RequestError(f"the reply has no score: {reply[-200:]}")
    score, most = float(number[1]), number[2]
    if most is not None and float(most) != scale:
        raise RequestError(f"the score {written} is not on the scale from 0 to {scale:g}")
    if not 0 <= score <= scale:
        raise RequestError(f"the score {score:g} is not from 0 to {scale:g}")
    return score


def _find_number(value: Any, place: str) -> float | None:
    """Return the number at a path in a reply; the last number of a list."""
    for name in place.split("."):
        try:
            value = value[int(name)] if isinstance(value, list) else value[name]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    while isinstance(value, list) and value:
        value = value[-1]
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


reward = HttpReward()
