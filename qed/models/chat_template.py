"""The chat template of a tokenizer: rendering of messages, and the token that ends a turn."""

from __future__ import annotations

from typing import Any

from jinja2 import TemplateError

from qed.errors import ModelError

SENTINEL = "qed-sentinel"


def find_turn_end(tokenizer: Any) -> int | None:
    """Find the token id that ends an assistant turn in the chat template; None without a template or such a token."""
    if not tokenizer.chat_template:
        return None
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": SENTINEL}]
    _, said, behind = render_chat(messages, tokenizer, add_generation_prompt=False).rpartition(SENTINEL)
    if not said:  # the template omits answers
        return None
    ids = tokenizer(behind.lstrip(), add_special_tokens=False)["input_ids"]
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None


def render_reply(text: str, tokenizer: Any, **options: Any) -> str:
    """Render the text between two assistant messages: the end of the first, and a user message.

    Raises:
        ModelError: the template does not accept several turns, or changes the assistant's message.
    """
    said = {"role": "assistant", "content": SENTINEL}
    messages = [{"role": "user", "content": "?"}, said, {"role": "user", "content": text}]
    rendered = render_chat(messages, tokenizer, add_generation_prompt=True, **options)
    if SENTINEL not in rendered:
        raise ModelError(
            "The tokenizer's chat template omits earlier answers, so an environment cannot reply to them; use a "
            "plain prompt, such as --prompt r1_zero, or another template."
        )
    return rendered[rendered.rfind(SENTINEL) + len(SENTINEL) :]


def render_chat(messages: list[dict[str, str]], tokenizer: Any, add_generation_prompt: bool, **options: Any) -> str:
    """Render messages with the tokenizer's chat template; `options` are additional template variables.

    Raises:
        ModelError: the template does not accept the messages.
    """
    try:
        text: str = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt, **options
        )
    except TemplateError as error:
        raise ModelError(f"The tokenizer's chat template cannot render a question: {error}") from error
    return text
