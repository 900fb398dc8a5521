"""A model behind an OpenAI-compatible endpoint: requests, rate limits, and the meaning of refusals."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from qed.errors import ModelError, UsageError, suggest_nearest
from qed.evaluation.endpoint.prompts import Api, EndpointPrompt, EndpointTemplate
from qed.evaluation.endpoint.replies import EndpointAnswer, NotAnEndpointError, Refusal, read_reply
from qed.guards.redaction import redact
from qed.net.chat import complete_address
from qed.net.client import HttpClient, Reply, RequestError, check_address, read_reason
from qed.net.endpoint import FIRST_WAIT, LONGEST_WAIT, PASSING
from qed.randomness import derive_seed
from qed.sampling.base import Sampling

PATHS = {"chat": "/chat/completions", "completions": "/completions"}
LIMITED = 429
PATIENCE = 900.0  # total seconds that a request waits for rate limits
MAX_SEED = 2**31 - 1  # some endpoints accept no larger seed
RENAMED = {"max_tokens": "max_completion_tokens"}  # OpenAI's reasoning models accept only the second
UNSUPPORTED = ("unsupported_parameter", "unsupported_value", "unknown_parameter", "unrecognized")
LIST_SECONDS = 10.0  # timeout for the list of an endpoint's models
MAX_NAMED = 5  # models listed in a message
SHOWN = 300  # characters of a refusal in a message


@dataclass(frozen=True)
class EndpointSettings:
    """The address of an endpoint, and how to send requests.

    Args:
        url: its base address, such as http://127.0.0.1:8000/v1, or the full address of a route.
        name: name of the model there.
        api: `chat` or `completions`.
        key_variable: the environment variable with the key; it need not be set.
        concurrency: number of concurrent requests.
        seconds: timeout of a request.
        attempts: maximum number of attempts of a failing request; waits for a rate limit do not count.
        extra: JSON object with additional fields of each request; null removes a field.
    """

    url: str
    name: str
    api: Api = "chat"
    key_variable: str = "OPENAI_API_KEY"
    concurrency: int = 16
    seconds: float = 600.0
    attempts: int = 5
    extra: str = ""

    def __post_init__(self) -> None:
        """Raise on invalid values."""
        if not self.name:
            raise UsageError("--model openai:NAME needs the model's name at the endpoint, such as openai:gpt-4.1-mini.")
        if self.concurrency < 1:
            raise UsageError("--concurrency must be at least 1.")
        if not 0 < self.seconds < float("inf") or self.attempts < 1:
            raise UsageError("A request needs a deadline above 0 seconds, and at least one attempt.")
        check_address(self.address)
        _ = self.fields

    @property
    def address(self) -> str:
        """Return the address of the route."""
        return complete_address(self.url, PATHS[self.api])

    @property
    def place(self) -> str:
        """Return the address for files and messages, without what could be a secret."""
        parts = urlsplit(self.address)
        return redact(f"{parts.scheme}://{parts.netloc}{parts.path}")

    def describe(self) -> dict[str, Any]:
        """Describe what determines the answers, for the files of an evaluation."""
        return {"url": self.place, "api": self.api, "extra": redact(self.extra)}

    @property
    def fields(self) -> dict[str, Any]:
        """Return the additional fields of each request.

        Raises:
            UsageError: they are not a JSON object.
        """
        try:
            fields = json.loads(self.extra or "{}")
        except ValueError as error:
            raise UsageError(f"--extra is not JSON: {error}.") from error
        if not isinstance(fields, dict):
            raise UsageError('--extra must be a JSON object such as {"reasoning_effort": "low"}.')
        return fields


@dataclass
class _Tried:
    """The attempts of a request, its failures other than rate limits, and the seconds spent waiting for rate limits."""

    attempts: int = 0
    failures: int = 0
    waited: float = 0.0


@dataclass
class EndpointModel:
    """Asks an endpoint for single answers, from several threads that share a rate limit.

    Args:
        settings: settings of the endpoint.
        template: the prompt template.
        sampling: temperature, maximum answer length and stop strings.
    """

    settings: EndpointSettings
    template: EndpointTemplate
    sampling: Sampling
    renamed: dict[str, str] = field(default_factory=dict)  # fields for which this endpoint uses another name
    _clear: float = 0.0  # when the rate limit ends
    _closed: threading.Event = field(default_factory=threading.Event)
    _answered: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        """Open the endpoint."""
        self.client = HttpClient(self.settings.address, self.settings.key_variable)

    def ask(self, prompt: EndpointPrompt, address: tuple[int | str, ...]) -> EndpointAnswer:
        """Ask for one answer; `address` is that of its random numbers.

        If the endpoint refuses this prompt, or all attempts fail, return an answer that says so.

        Raises:
            UsageError, ModelError: no request can succeed: the key, the model, the address or a parameter is wrong.
        """
        tried = _Tried()
        while True:
            self._wait_for_limit()
            asked = self.build_request(prompt, address)
            try:
                answer = read_reply(self._post(asked), prompt, self.template)
            except (Refusal, NotAnEndpointError) as error:
                refusal = error if isinstance(error, Refusal) else self._read_odd_reply(error)
                if self._adapt(asked, refusal):
                    continue
                if (given_up := self._wait_or_give_up(refusal, tried)) is not None:
                    return given_up
            else:
                self._answered.set()
                return answer

    def _read_odd_reply(self, error: NotAnEndpointError) -> Refusal:
        """Return a passing refusal if the endpoint has answered before: a gateway's page, or how it refuses a prompt.

        Raises:
            ModelError: it has answered nothing so far.
        """
        if not self._answered.is_set():
            where, api = self.settings.place, self.settings.api
            raise ModelError(f"{where}: {redact(str(error))}. Check --url, and --api {api}.") from error
        return Refusal(str(error), passing=True)

    def build_request(self, prompt: EndpointPrompt, address: tuple[int | str, ...]) -> dict[str, Any]:
        """Build the body of a request."""
        sampling = self.sampling
        asked: dict[str, Any] = {"messages": list(prompt.messages)} if prompt.messages else {"prompt": prompt.text}
        # Fields that some endpoints do not support are omitted where they would have no effect.
        optional = {
            "top_p": (sampling.top_p, 1.0),
            "top_k": (sampling.top_k, 0),
            "min_p": (sampling.min_p, 0.0),
            "stop": (list(self.template.stop), []),
        }
        body = {
            "model": self.settings.name,
            **asked,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": derive_seed(*address) % MAX_SEED,
            **{name: value for name, (value, default) in optional.items() if value != default},
        }
        body = {self.renamed.get(name, name): value for name, value in {**body, **self.settings.fields}.items()}
        return {name: value for name, value in body.items() if value is not None}

    def _post(self, asked: Mapping[str, Any]) -> Any:
        """Send a request, and return the JSON of its reply.

        Raises:
            Refusal: there was no reply, or its status is an error.
            NotAnEndpointError: the reply is a web page.
        """
        try:
            reply = self.client.request("POST", "", asked, seconds=self.settings.seconds)
        except RequestError as error:
            raise Refusal(str(error), passing=error.kind in ("refused", "timed out", "closed")) from error
        if reply.body.lstrip()[:1] == b"<" and reply.status not in PASSING:
            raise NotAnEndpointError(
                f"the reply is a web page (status {reply.status}), not JSON; the address of an API usually ends in /v1"
            )
        if not 200 <= reply.status < 300:
            told, text = f"status {reply.status}: {read_reason(reply.body)}", reply.body.decode(errors="replace")
            raise Refusal(told, reply.status, text, reply.status in PASSING, _read_wait(reply))
        try:
            return json.loads(reply.body)
        except ValueError as error:
            raise Refusal("the reply is not JSON", passing=True) from error

    def close(self) -> None:
        """End all requests, including waiting ones."""
        self._closed.set()
        self.client.close()

    def _wait_for_limit(self) -> None:
        """Wait while the endpoint's rate limit applies, which another thread's request may have hit."""
        while (rest := self._clear - time.monotonic()) > 0:
            if self._closed.wait(rest):
                return

    def _wait_or_give_up(self, error: Refusal, tried: _Tried) -> EndpointAnswer | None:
        """Wait before the next attempt, twice as long each time or as the endpoint asks; return an answer to give up.

        While the rate is limited, the requests of all threads wait.

        Raises:
            Refusal: the model was closed.
        """
        told = self._explain(error)
        if not error.passing:
            return EndpointAnswer(end="refused", reason=told)
        limited = error.status == LIMITED
        doubled = FIRST_WAIT * 2.0 ** min(tried.attempts, 10)
        wait = max(min(LONGEST_WAIT, doubled), min(error.wait, PATIENCE))
        tried.attempts += 1
        tried.waited += wait if limited else 0.0
        tried.failures += not limited
        if tried.failures >= self.settings.attempts or tried.waited > PATIENCE:
            return EndpointAnswer(end="failed", reason=f"{told} ({tried.attempts} attempts)")
        if limited:
            self._clear = max(self._clear, time.monotonic() + wait)
        elif self._closed.wait(wait):
            raise error
        return None

    def _adapt(self, asked: Mapping[str, Any], error: Refusal) -> bool:
        """Return whether the next request will differ, because the endpoint uses another name for a field."""
        detail = _read_detail(error.body)
        for name, other in RENAMED.items():
            if error.status == 400 and name in asked and other in str(detail.get("message", "")):
                self.renamed = {**self.renamed, name: other}
                return True
        return False

    def _explain(self, error: Refusal) -> str:
        """Return in one line why a prompt is refused.

        Raises:
            UsageError, ModelError: every prompt would be refused.
        """
        settings, detail = self.settings, _read_detail(error.body)
        told = redact(" ".join(str(detail.get("message") or error).split()))[:SHOWN]
        where, code = settings.place, str(detail.get("code") or detail.get("type") or "")
        if error.status == 401 or (error.status == 403 and not self._answered.is_set()):
            given = settings.key_variable and os.environ.get(settings.key_variable)
            advice = f"the key in {settings.key_variable}" if given else "a request without a key"
            raise ModelError(
                f"{where} refuses {advice} (status {error.status}: {told}). Put a valid key into the environment "
                f"variable {settings.key_variable or '…'}, or name another one with --key-variable."
            )
        if code == "insufficient_quota" or error.status == 402:
            raise ModelError(f"{where}: the account has no credit left (status {error.status}: {told}).")
        if error.status in (404, 405) or code == "model_not_found":
            raise ModelError(
                f"{where} has no model '{settings.name}', or no such route (status {error.status}: {told}). Check "
                f"--model openai:NAME and --url.{self._list_models()}"
            )
        if 300 <= error.status < 400:
            raise ModelError(
                f"{where} redirects elsewhere (status {error.status}), which qed does not follow: check --url."
            )
        unsupported = any(word in f"{code} {told}".lower() for word in UNSUPPORTED)
        if unsupported and (name := str(detail.get("param") or "")):
            raise ModelError(
                f"{where} does not accept the parameter {name} as sent ({told}). Omit it with "
                f"--extra '{{\"{name}\": null}}', or give another value there."
            )
        return told

    def _list_models(self) -> str:
        """Return a sentence that lists the endpoint's models; empty if it does not list them."""
        base = self.settings.address.partition("?")[0].removesuffix(PATHS[self.settings.api])
        client = HttpClient(base, self.settings.key_variable)
        try:
            listed = client.ask("GET", "/models", seconds=LIST_SECONDS)["data"]
            names = [str(model["id"]) for model in listed]
        except (RequestError, KeyError, TypeError):
            return ""
        finally:
            client.close()
        shown = suggest_nearest(self.settings.name, names) or f" There are: {', '.join(names[:MAX_NAMED])}."
        return redact(shown) if names else ""


def _read_wait(reply: Reply) -> float:
    """Return the seconds that an endpoint asks to wait, given as a number or a date; 0 if invalid."""
    header = reply.headers.get("retry-after", "")
    with suppress(ValueError):
        return max(0.0, float(header))
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    return 0.0


def _read_detail(body: str) -> Mapping[str, Any]:
    """Return the error in a reply: in OpenAI's format, vLLM's older one, or FastAPI's."""
    try:
        reply = json.loads(body)
    except ValueError:
        return {}
    error = reply.get("error", reply) if isinstance(reply, dict) else {}
    if isinstance(error, str):
        return {"message": error}
    if not isinstance(error, dict):
        return {}
    return error if "message" in error else {**error, "message": error.get("detail") or ""}
