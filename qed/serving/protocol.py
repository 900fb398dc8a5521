"""Parse requests of OpenAI's API with vLLM's extra fields: `/v1/completions` and `/v1/chat/completions`."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from qed.config.settings import is_temperature
from qed.randomness import derive_seed
from qed.sampling.base import Sampling
from qed.serving.fields import Fields, is_ids, require_ids, require_unicode
from qed.serving.model_text import ModelText
from qed.serving.refusals import Refused

MOST_ANSWERS = 1_024  # per request
MOST_TOP = 20  # most likely tokens per position, as in vLLM by default
MOST_STOPS, LONGEST_STOP = 64, 1_000
DEFAULT_TOKENS = 16  # of a completion, as in OpenAI's API; a chat's answer may fill the window
INT64 = 1 << 63
# Unsupported fields with their values without effect; other values would change the answers.
INERT: dict[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "use_beam_search": (False,),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "response_format": ({"type": "text"},),
}
INERT_COMPLETION = {"suffix": ("",), "prompt_embeds": ()}
INERT_CHAT = {
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none",),
    "function_call": ("none",),
    "chat_template": (),
    "documents": ([],),
    "modalities": (["text"],),
    "audio": (),
    "echo": (False,),
}


@dataclass(frozen=True)
class Question:
    """A request for answers: prompts as token ids, and how to sample and report the `n` answers to each.

    `seeds` has one seed per prompt: that of the request, or random ones. `logprobs` is the number of most likely tokens
    to report at each position, None for no log-probs; `prompt_logprobs` is the same for the prompt. `stop_ids` end an
    answer in addition to the model's own end tokens, unless those are ignored.
    """

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    prompt_texts: tuple[str | None, ...]
    sampling: Sampling
    n: int
    seeds: tuple[int, ...]
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False
    stop_ids: tuple[int, ...] = ()
    ignore_ends: bool = False
    keep_stop: bool = False
    skip_special: bool = True
    stream: bool = False
    show_usage: bool = False
    return_ids: bool = False
    ids_as_names: bool = False
    id: str = field(default_factory=lambda: secrets.token_hex(16))
    created: int = field(default_factory=lambda: int(time.time()))

    def find_seed(self, prompt: int, answer: int) -> int:
        """Return the seed of one of the n answers to a prompt; the first answer has the prompt's own seed."""
        seed = self.seeds[prompt]
        return derive_seed(seed, "answer", answer) if answer else seed


def require_model(fields: Fields, names: tuple[str, ...]) -> None:
    """Require that the requested model is served; a request may leave the name out.

    Raises:
        Refused: the name is unknown.
    """
    name = fields.read_text("model")
    if name and name not in names:
        raise Refused(404, f"The model '{name}' is not served here. This server has '{names[0]}'.", "model")


async def read_completion(fields: Fields, text: ModelText) -> Question:
    """Read the body of `/v1/completions`.

    Raises:
        Refused: it is invalid, requests something unsupported, or does not fit into the context window.
    """
    fields.refuse_others(INERT | INERT_COMPLETION, "this server samples without it.")
    prompts, texts = await _read_prompts(fields, text)
    echo = fields.read_switch("echo")
    asked = _read_most_tokens(fields, ("max_tokens",), 0 if echo else 1)
    own = {"chat": False, "prompt_texts": tuple(texts), "logprobs": _read_top(fields, "logprobs"), "echo": echo}
    return _build(fields, text, prompts, asked, DEFAULT_TOKENS, **own)


async def _read_prompts(fields: Fields, text: ModelText) -> tuple[list[list[int]], list[str | None]]:
    """Read `prompt`: a text, a list of texts, a list of token ids, or a list of such lists."""
    prompt = fields.find("prompt")
    if isinstance(prompt, str):
        prompt = [prompt]
    if prompt and is_ids(prompt):
        prompt = [prompt]
    if not isinstance(prompt, list) or not prompt or not all(isinstance(one, str) or is_ids(one) for one in prompt):
        raise fields.refuse("prompt", "must be a string, a list of strings, or token ids")
    if len(prompt) > MOST_ANSWERS:
        raise fields.refuse("prompt", f"must have at most {MOST_ANSWERS} prompts")
    special = fields.read_switch("add_special_tokens", True)
    rows, texts = [], []
    for one in prompt:
        is_text = isinstance(one, str)
        rows.append(await text.encode(require_unicode(one, "prompt"), "prompt", special) if is_text else one)
        texts.append(one if is_text else None)
    return rows, texts


async def read_chat(fields: Fields, text: ModelText) -> Question:
    """Read the body of `/v1/chat/completions`.

    Raises:
        Refused: see `read_completion`.
    """
    fields.refuse_others({name: INERT_CHAT[name] for name in ("tools", "functions")}, "this server calls no tools.")
    fields.refuse_others(INERT | INERT_CHAT, "this server answers in plain text.")
    prompt = await read_conversation(fields, text)
    asked = _read_most_tokens(fields, ("max_completion_tokens", "max_tokens"), 1)
    logprobs = fields.read_integer("top_logprobs", 0, 0, MOST_TOP) if fields.read_switch("logprobs") else None
    if logprobs is None and fields.find("top_logprobs"):
        raise fields.refuse("top_logprobs", "needs logprobs: true")
    return _build(fields, text, [prompt], asked, text.window, chat=True, prompt_texts=(None,), logprobs=logprobs)


async def read_conversation(fields: Fields, text: ModelText) -> list[int]:
    """Read `messages` and the options of the chat template, and return the token ids of the prompt."""
    messages = _read_messages(fields)
    continues = fields.read_switch("continue_final_message")
    generates = fields.read_switch("add_generation_prompt", not continues)
    if continues and generates:
        raise fields.refuse("continue_final_message", "needs add_generation_prompt: false")
    extra = fields.find("chat_template_kwargs") or {}
    reserved = {"tokenize", "conversation", "chat_template", "return_tensors", "return_dict", "tools", "documents"}
    if not isinstance(extra, dict) or reserved & set(extra):
        raise fields.refuse("chat_template_kwargs", "must be an object with variables of the chat template")
    options = {**extra, "add_generation_prompt": generates, "continue_final_message": continues}
    rendered = text.render(messages, options)
    return await text.encode(rendered, "messages", fields.read_switch("add_special_tokens", False))


def _read_messages(fields: Fields) -> list[dict[str, str]]:
    found = fields.find("messages")
    if not isinstance(found, list) or not found:
        raise fields.refuse("messages", "must be a list of messages, each with a role and a content")
    messages = []
    for number, message in enumerate(found):
        name = f"messages[{number}]"
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or not role:
            raise Refused(400, f"{name} must be an object with a role and a content.", "messages")
        if role in ("tool", "function") or message.get("tool_calls"):
            raise Refused(400, f"{name} belongs to a tool, and this server calls no tools.", "messages")
        messages.append({"role": role, "content": _read_content(message.get("content"), name)})
    return messages


def _read_content(content: Any, name: str) -> str:
    """Return the text of a message; the parts of a list are joined by line breaks, as in vLLM."""
    if isinstance(content, str):
        return require_unicode(content, "messages")
    if isinstance(content, list) and content:
        texts: list[Any] = [
            part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"
        ]
        if len(texts) == len(content) and all(isinstance(one, str) for one in texts):
            return require_unicode("\n".join(texts), "messages")
    raise Refused(400, f"{name}.content must be a string, or a list of parts of the type text.", "messages")


def _read_top(fields: Fields, name: str) -> int | None:
    """Return the requested number of most likely tokens; None if the request asks for no log-probs."""
    return None if fields.find(name) is None else fields.read_integer(name, 0, 0, MOST_TOP)


def _read_most_tokens(fields: Fields, names: tuple[str, ...], least: int) -> int | None:
    """Return the requested maximum of tokens; None if the request gives none."""
    for name in names:
        if fields.find(name) is not None:
            return fields.read_integer(name, 0, least, INT64 - 1)
    return None


def _build(
    fields: Fields, text: ModelText, prompts: list[list[int]], asked: int | None, default: int, **own: Any
) -> Question:
    """Build a question from the fields that both routes share and from a route's own."""
    stop_ids = fields.read_ids("stop_token_ids")
    require_ids(prompts, text.vocabulary, "prompt")
    require_ids([stop_ids], text.vocabulary, "stop_token_ids")
    n = fields.read_integer("n", 1, 1, MOST_ANSWERS)
    if n * len(prompts) > MOST_ANSWERS:
        raise fields.refuse("n", f"times the number of prompts must be at most {MOST_ANSWERS}")
    if fields.find("best_of") not in (None, n):
        raise fields.refuse("best_of", "must be equal to n, or be left out")
    options = fields.find("stream_options") or {}
    if not isinstance(options, dict):
        raise fields.refuse("stream_options", "must be an object")
    stop = fields.read_texts("stop", MOST_STOPS, LONGEST_STOP)
    seeds = tuple(fields.read_integer("seed", secrets.randbits(63), -INT64, INT64 - 1) for _ in prompts)
    scored = _read_top(fields, "prompt_logprobs")
    return Question(
        prompts=tuple(map(tuple, prompts)),
        sampling=_read_sampling(fields, _fit(prompts, text.window, asked, default), stop),
        n=n,
        seeds=seeds,
        prompt_logprobs=scored,
        stop_ids=stop_ids,
        ignore_ends=fields.read_switch("ignore_eos"),
        keep_stop=fields.read_switch("include_stop_str_in_output"),
        skip_special=fields.read_switch("skip_special_tokens", True),
        stream=fields.read_switch("stream"),
        show_usage=Fields(options).read_switch("include_usage"),
        return_ids=fields.read_switch("return_token_ids"),
        ids_as_names=fields.read_switch("return_tokens_as_token_ids"),
        **own,
    )


def _fit(prompts: list[list[int]], window: int, asked: int | None, default: int) -> int:
    """Return the maximum tokens of an answer: as requested, else the default, limited by the window.

    Raises:
        Refused: a prompt is empty, or does not fit into the window together with its answer.
    """
    if not all(prompts):
        raise Refused(400, "The prompt has no tokens. Send at least one.", "prompt")
    longest = max(map(len, prompts))
    most = min(default, max(1, window - longest)) if asked is None else asked
    if longest + most > window:
        raise Refused(
            400,
            f"The model's window has {window} tokens; this request needs {longest + most}: {longest} for the prompt "
            f"and {most} for the answer. Shorten the prompt or lower max_tokens.",
            "max_tokens" if longest < window else "prompt",
        )
    return most


def _read_sampling(fields: Fields, most: int, stop: tuple[str, ...]) -> Sampling:
    top_k = fields.read_integer("top_k", 0, -1, INT64 - 1)
    return Sampling(
        temperature=fields.read_number("temperature", 1.0, is_temperature, "that is 0, or at least 1e-6"),
        max_tokens=most,
        stop=stop,
        top_p=fields.read_number("top_p", 1.0, lambda value: 0 < value <= 1, "above 0 and at most 1"),
        top_k=max(0, top_k),
        min_p=fields.read_number("min_p", 0.0, lambda value: 0 <= value < 1, "of at least 0 and below 1"),
        min_tokens=fields.read_integer("min_tokens", 0, 0, most),
    )
