"""Parse the replies of an OpenAI-compatible endpoint: the text, the stop reason, the reasoning, and token usage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from qed.data.prompts.demonstrations import cut_at_stop
from qed.evaluation.endpoint.prompts import EndpointPrompt, EndpointTemplate
from qed.net.endpoint import PASSING
from qed.types import StopReason

End = Literal["answered", "refused", "failed"]
CUT = ("length", "max_tokens", "max_output_tokens")  # finish reasons of a truncated answer
FILTERED = ("content_filter", "refusal", "safety")
THOUGHT = ("<think>", "</think>")
SHOWN = 200  # characters of a reply in a message


class Refusal(Exception):
    """A request without an answer; the message says why.

    Args:
        message: the reason.
        status: status of the reply; 0 if there was none.
        body: body of the reply.
        passing: whether the same request may succeed later.
        wait: seconds that the endpoint asks to wait.
    """

    def __init__(self, message: str, status: int = 0, body: str = "", passing: bool = False, wait: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.body, self.passing, self.wait = status, body, passing, wait


class NotAnEndpointError(Exception):
    """The reply of something other than an OpenAI-compatible endpoint."""


@dataclass(frozen=True)
class EndpointAnswer:
    """An answer.

    Args:
        text: the text, preceded by the reasoning if the endpoint returns it separately.
        stop_reason: `length` if the answer was truncated.
        finish: the endpoint's own finish reason.
        end: `refused` if the endpoint or its model refused this prompt, `failed` if all attempts failed.
        reason: reason of a refusal or a failure.
        reasoning: separate reasoning that is not in the text.
        usage: token counts by name: prompt, completion, reasoning, cached; and cost, if the endpoint reports a price.
    """

    text: str = ""
    stop_reason: StopReason = "stop"
    finish: str = ""
    end: End = "answered"
    reason: str = ""
    reasoning: str = ""
    usage: Mapping[str, float] = field(default_factory=dict)

    @property
    def length(self) -> int | None:
        """Return its number of tokens, including reasoning; None if the endpoint does not report it."""
        count = self.usage.get("completion")
        return None if count is None else int(count)


def read_reply(reply: Any, prompt: EndpointPrompt, template: EndpointTemplate) -> EndpointAnswer:
    """Read a reply.

    Raises:
        Refusal: the reply is an error.
        NotAnEndpointError: it is not that of an OpenAI-compatible endpoint.
    """
    _raise_error(reply.get("error") if isinstance(reply, dict) else None)
    try:
        choice = reply["choices"][0]
        message = choice["message"] if template.api == "chat" else {"content": choice["text"]}
        content, reasoning = _join(message.get("content")), _find_reasoning(message)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise NotAnEndpointError(
            f"the reply is not that of an OpenAI-compatible endpoint: {str(reply)[:SHOWN]}"
        ) from error
    _raise_error(choice.get("error"))
    finish = str(choice.get("finish_reason") or "")
    usage = read_usage(reply.get("usage"))
    refusal = _join(message.get("refusal"))
    if refusal or finish in FILTERED:
        reason = refusal or f"the endpoint ends the answer with {finish}"
        return EndpointAnswer(content or refusal, "stop", finish, "refused", reason, reasoning, usage)
    # Stop strings apply to the answer only: separate reasoning may contain them.
    content = cut_at_stop(_restore_stop(content, choice, finish, template), template.stop)
    text, kept = _add_reasoning(content, reasoning, template.thought_tags or THOUGHT)
    stop: StopReason = "length" if finish in CUT else "stop"
    return EndpointAnswer(prompt.opened + text, stop, finish, reasoning=kept, usage=usage)


def read_usage(usage: Any) -> dict[str, float]:
    """Read the token usage of an answer; empty if the endpoint does not report it."""
    if not isinstance(usage, dict):
        return {}
    told = {name: usage.get(f"{name}_tokens_details") for name in ("prompt", "completion")}
    details = {name: inner if isinstance(inner, dict) else {} for name, inner in told.items()}
    found = {
        "prompt": usage.get("prompt_tokens"),
        "completion": usage.get("completion_tokens"),
        "reasoning": details["completion"].get("reasoning_tokens") or usage.get("reasoning_tokens"),
        "cached": details["prompt"].get("cached_tokens"),
        "cost": usage.get("cost"),
    }
    return {name: value for name, value in found.items() if isinstance(value, int | float) and value >= 0}


def _join(content: Any) -> str:
    """Return the text of a message's content, which may be a list of parts."""
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    if content is None or isinstance(content, str):
        return content or ""
    raise TypeError(f"the content is {type(content).__name__}")


def _find_reasoning(message: Mapping[str, Any]) -> str:
    """Return the reasoning outside of the content: the field of DeepSeek and SGLang, or of vLLM and OpenRouter."""
    found = message.get("reasoning_content") or message.get("reasoning")
    return found if isinstance(found, str) else ""


def _raise_error(error: Any) -> None:
    """Raise an error that a reply with status 200 contains."""
    if not error:
        return
    told = error if isinstance(error, dict) else {"message": error}
    code = told.get("code")
    status = code if isinstance(code, int) else 400
    raise Refusal(str(told.get("message"))[:SHOWN], status, json.dumps({"error": told}), status in PASSING)


def _restore_stop(content: str, choice: Mapping[str, Any], finish: str, template: EndpointTemplate) -> str:
    """Restore the stop string that ended an answer, which endpoints omit although it belongs to the answer.

    vLLM and qed's own server report which one it was. Otherwise it is inferred if it closes a tag of the answer.
    """
    if finish != "stop" or any(stop in content for stop in template.stop):
        return content
    told = choice.get("stop_reason")
    if isinstance(told, str) and told in template.stop:
        return content + told
    for opening, closing in zip(template.tags[::2], template.tags[1::2], strict=False):
        if closing in template.stop and opening in content:
            return content + closing
    return content


def _add_reasoning(content: str, reasoning: str, tags: tuple[str, str]) -> tuple[str, str]:
    """Return the text preceded by the reasoning in its tags, and any reasoning that is kept separate."""
    if not reasoning:
        return content, ""
    opening, closing = tags
    if opening in content or closing in content:  # the answer itself contains reasoning, as the prompt asks
        return content, reasoning
    # With the space that r1_zero's format requires; other formats accept any whitespace.
    return (f"{opening}{reasoning}{closing} {content.lstrip()}" if content else f"{opening}{reasoning}"), ""
