"""Query a model behind an OpenAI-compatible server, such as vLLM, SGLang or a commercial API."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qed.net.endpoint import Endpoint, RequestError

PATH = "/chat/completions"
THOUGHT = re.compile(r"\A.*(?:^[ \t]*</think>|</think>[ \t]*\n)", re.DOTALL | re.MULTILINE)
Message = dict[str, str]  # with a role and a content


@dataclass(frozen=True)
class ChatModel:
    """A chat model behind an endpoint.

    Args:
        endpoint: the endpoint, at the address that `complete_address` returns.
        model: the model's name at the server.
        max_tokens: the maximum tokens of a reply, reasoning included.
        extra: fields that are added to every request or replace its fields; None removes one.
    """

    endpoint: Endpoint
    model: str
    max_tokens: int
    extra: Mapping[str, Any] = field(default_factory=dict)

    def build_request(self, messages: Sequence[Message]) -> dict[str, Any]:
        """Build the body of a request; decoding is greedy, so that a cached reply can replace a new one."""
        body = {"model": self.model, "messages": list(messages), "max_tokens": self.max_tokens, "temperature": 0.0}
        return {name: value for name, value in {**body, **self.extra}.items() if value is not None}

    def ask(self, messages: Sequence[Message]) -> str:
        """Return the reply to messages, see `read_reply`.

        Raises:
            RequestError: the request failed, or the reply has no text.
        """
        return self.read_reply(self.endpoint.post(self.build_request(messages)))

    def read_reply(self, reply: Any) -> str:
        """Return the text of a server's reply, without the reasoning of a reasoning model.

        Raises:
            RequestError: the reply has no text, or was cut off.
        """
        try:
            choice = reply["choices"][0]
            text = choice["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise RequestError(f"the reply is not from a chat endpoint: {str(reply)[:200]}") from error
        if not isinstance(text, str) or not text.strip():
            raise RequestError(f"the reply has no text; a reasoning model may need more than {self.max_tokens} tokens")
        if choice.get("finish_reason") == "length":
            raise RequestError(f"the reply was cut off at {self.max_tokens} tokens, so it is incomplete")
        return remove_thought(text)


def remove_thought(text: str) -> str:
    """Return a reply without the preceding reasoning, whose opening tag may be part of the prompt.

    A judge may quote the tags of an answer: if a reply that does not begin with reasoning contains both tags, only a
    closing tag at the end or the beginning of a line ends the reasoning.

    Raises:
        RequestError: the reasoning has no end, so there is no reply.
    """
    text = text.strip()
    _, end, reply = text.rpartition("</think>")
    if text.startswith("<think>") and not end:
        raise RequestError("the reply ends within its reasoning")
    if "<think>" in text and not text.startswith("<think>"):
        return THOUGHT.sub("", text).strip()
    return reply.strip() if any(map(str.isalnum, reply)) else text


def complete_address(url: str, path: str = PATH) -> str:
    """Return the address of the chat endpoint, given that address or the server's base, such as http://host:8000/v1.

    Args:
        url: either address. A query such as ?api-version=1 stays at its end.
        path: the path of another endpoint.
    """
    base, mark, query = url.partition("?")
    base = base.rstrip("/")
    return (base if base.endswith(path) else base + path) + mark + query
