"""Write a prompt for an endpoint, which takes messages or text instead of token ids.

A chat prompt (`boxed`, `chat`, `think_answer`, …) is sent as messages, which the endpoint renders with the template
of its model. A plain prompt is sent as one user message, without a tag that it opens at its end, because the model
starts a new turn. With the API `completions` a plain prompt is sent unchanged, and the model continues it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from qed.data.prompts.base import make_prompt
from qed.data.prompts.in_environment import require_one_turn
from qed.data.sources.finished import is_chat_text
from qed.errors import UsageError
from qed.types import Problem

Api = Literal["chat", "completions"]
Messages = tuple[dict[str, str], ...]
RENDERED = "\0the messages, as the endpoint's chat template renders them\0"


@dataclass(frozen=True)
class EndpointPrompt:
    """A prompt: its messages, or the text to continue. `opened` is the tag that the text's end opens for the answer."""

    messages: Messages = ()
    text: str = ""
    opened: str = ""

    @property
    def shown(self) -> str:
        """Return the prompt as readable text."""
        turns = (f"{message['role']}: {message['content']}" for message in self.messages)
        return self.text or "\n\n".join(turns)


class _ChatTemplate:
    """Stands in for the tokenizer of the endpoint's model, recording the messages that a prompt renders."""

    chat_template = RENDERED
    bos_token = eos_token = ""

    def __init__(self) -> None:
        self.messages: Messages = ()

    def apply_chat_template(self, messages: list[dict[str, str]], **options: Any) -> str:
        """Record the messages, and return a placeholder text.

        Raises:
            UsageError: there are options of the chat template, which the endpoint applies itself.
        """
        if given := options.keys() - {"tokenize", "add_generation_prompt"}:
            raise UsageError(
                f"An endpoint applies its own chat template: pass {', '.join(sorted(given))} with --extra, if it "
                """supports that, as vLLM does: --extra '{"chat_template_kwargs": {"enable_thinking": false}}'."""
            )
        self.messages = tuple(dict(message) for message in messages)
        return RENDERED


class EndpointTemplate:
    """A prompt template for an endpoint.

    Args:
        leaf: a built-in or user-defined prompt module.
        api: `chat` takes messages, `completions` a text to continue.
        stop: the user's stop strings, in addition to the prompt's.

    Raises:
        UsageError: the prompt needs a chat template, but the API takes text.
    """

    def __init__(self, leaf: Any, api: Api, stop: tuple[str, ...] = ()) -> None:
        require_one_turn(leaf, "An endpoint")
        self.leaf, self.api = leaf, api
        self.stop: tuple[str, ...] = tuple(dict.fromkeys((*leaf.STOP, *stop)))
        self.tags: tuple[str, ...] = tuple(getattr(leaf, "TAGS", ()))
        if api == "completions" and leaf.CHAT:
            raise UsageError(
                f"The prompt {self.name} consists of messages, but --api completions takes text: omit --api, or use a "
                "plain prompt such as --prompt r1_zero or few_shot_gsm8k."
            )

    @property
    def name(self) -> str:
        """Return the name of the prompt."""
        return str(getattr(self.leaf, "__name__", type(self.leaf).__module__)).rpartition(".")[2]

    @property
    def thought_tags(self) -> tuple[str, str] | None:
        """Return the tags that the prompt puts around the reasoning, if it defines them."""
        return (self.tags[0], self.tags[1]) if self.tags else None

    def write(self, problem: Problem) -> EndpointPrompt:
        """Write the prompt of a problem.

        A prompt already rendered in the data is used unchanged, except by a chat template, which is another model's.

        Raises:
            UsageError: the prompt cannot be written without a tokenizer.
        """
        rendered = str(problem.meta.get("rendered") or "")
        recorder = _ChatTemplate()
        text = rendered if rendered and not is_chat_text(rendered) else self._render(problem, recorder)
        before, found, after = text.partition(RENDERED)
        if not found:
            return self._write_plain(text)
        if before.strip() or make_prompt(self.leaf, after).text.strip() not in ("", *self._list_openings()):
            raise UsageError(
                f"The prompt {self.name} adds text around the rendered chat template, which an endpoint does not "
                "support: use another prompt, such as --prompt boxed."
            )
        return EndpointPrompt(messages=recorder.messages)

    def _list_openings(self) -> tuple[str, ...]:
        return (*self.tags[:1], *getattr(self.leaf, "OPENS", ()), "<think>")

    def _write_plain(self, text: str) -> EndpointPrompt:
        prompt = make_prompt(self.leaf, text)
        if self.api == "completions":
            return EndpointPrompt(text=text, opened=prompt.opened)
        bare = text.removesuffix(prompt.opened).rstrip() if prompt.opened else text
        return EndpointPrompt(messages=({"role": "user", "content": bare},))

    def _render(self, problem: Problem, recorder: _ChatTemplate) -> str:
        try:
            return str(self.leaf.render(problem, recorder))
        except (AttributeError, TypeError) as error:
            raise UsageError(
                f"The prompt {self.name} cannot be written without the model's tokenizer, which an endpoint does not "
                f"have ({error}): use another prompt, such as --prompt boxed."
            ) from error
