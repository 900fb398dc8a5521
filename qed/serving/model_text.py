"""The web server's use of the model's tokenizer: prompts to token ids within limits, and token ids to text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jinja2 import TemplateError

from qed.sampling.text_stream import TextStream, count_partial
from qed.serving.refusals import Refused

INLINE = 4_000  # characters to tokenise in the event loop; longer texts are tokenised in a thread
# If a text has more characters than this multiple of the window, that part is tokenised first, and the text is refused
# if the part has more tokens than the window. The margin allows for tokens that depend on what follows.
BEGINNING, MARGIN = 16, 2


class ModelText:
    """A model's tokenizer with the limits of its prompts.

    Args:
        tokenizer: the tokenizer of the model.
        vocabulary: the number of token ids of the model.
        window: the model's longest sequence in tokens.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, window: int) -> None:
        self.tokenizer, self.vocabulary, self.window = tokenizer, vocabulary, window
        self._longest = max(map(len, tokenizer.get_vocab()), default=1)
        # One thread: two threads must not both set the truncation of a tokenizer of the `tokenizers` library.
        self._thread = ThreadPoolExecutor(1, "tokenize")
        self._names: dict[int, str] = {}

    def require_length(self, length: int, name: str) -> None:
        """Check the characters of a text, so that one that cannot fit need not be tokenised.

        Raises:
            Refused: the text has more tokens than the window, however it is tokenised.
        """
        least = -(-length // self._longest)
        if least > self.window:
            raise Refused(
                400,
                f"{name} has {length} characters, which are at least {least} tokens; the model's window has "
                f"{self.window}. Shorten it.",
                name,
            )

    async def encode(self, text: str, name: str, special: bool = True) -> list[int]:
        """Return the token ids of a text; `special` adds the tokenizer's special tokens around it.

        Raises:
            Refused: it cannot fit into the window.
        """
        self.require_length(len(text), name)
        if len(text) <= INLINE:
            return self._encode(text, special)
        run = asyncio.get_running_loop().run_in_executor
        beginning = BEGINNING * self.window
        if len(text) > beginning:
            # A long text may take seconds, so its beginning is tokenised first.
            count = len(await run(self._thread, self._encode, text[:beginning], special))
            if count > MARGIN * self.window:
                raise Refused(
                    400,
                    f"{name} has {len(text)} characters, of which the first {beginning} alone are {count} tokens; the "
                    f"model's window has {self.window}. Shorten it.",
                    name,
                )
        return await run(self._thread, self._encode, text, special)

    def _encode(self, text: str, special: bool) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=special, return_attention_mask=False)["input_ids"]
        return ids

    def render(self, messages: list[dict[str, str]], options: dict[str, Any]) -> str:
        """Return the text of a conversation by the model's chat template.

        Raises:
            Refused: the model has none, or it does not accept the messages.
        """
        if not self.tokenizer.chat_template:
            raise Refused(400, "The model's tokenizer has no chat template. Send a text to /v1/completions instead.")
        self.require_length(sum(len(message["content"]) for message in messages), "messages")
        try:
            text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise Refused(400, f"The model's chat template refuses these messages: {error}", "messages") from error
        return text

    def decode(self, tokens: Sequence[int], skip_special: bool = True) -> str:
        """Return the text of tokens."""
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=skip_special)
        return text

    def name(self, token: int) -> str:
        """Return the text of a single token, special ones included; an incomplete character becomes U+FFFD."""
        if token not in self._names:
            self._names[token] = self.decode([token], skip_special=False)
        return self._names[token]

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)


class AnswerText:
    """The text of an answer as it is sampled, in complete characters; possible stop strings are held back.

    Args:
        text: the tokenizer of the model.
        stop: the stop strings.
        keep_stop: whether to include the stop string in the text.
        skip_special: whether to leave out special tokens.
        early: the number of first tokens in which a stop string does not count.
    """

    def __init__(
        self,
        text: ModelText,
        stop: Sequence[str] = (),
        keep_stop: bool = False,
        skip_special: bool = True,
        early: int = 0,
    ) -> None:
        self._stream = TextStream(text.tokenizer, skip_special=skip_special)
        self._stop, self._keep, self._early = tuple(stop), keep_stop, early
        self._all = ""
        self._shown = 0  # characters already returned
        self._from = 0  # a stop string that ends up to here does not count
        self._read = 0  # tokens already read
        self.found: str | None = None  # the stop string that was found

    def read(self, tokens: Sequence[int], last: bool = False) -> str:
        """Return the new text.

        Args:
            tokens: all tokens so far.
            last: whether these are all tokens of the answer.
        """
        if self._read < self._early < len(tokens):
            self._all += self._stream.read(tokens[: self._early])
            self._from = len(self._all)
        self._all += self._stream.read(tokens, last)
        if len(tokens) <= self._early:
            self._from = len(self._all)
        self._read = len(tokens)
        end = self._find_end()
        if end is None:
            held = 0 if last else count_partial(self._all[self._shown :], self._stop)
            end = len(self._all) - held
        new, self._shown = self._all[self._shown : end], end
        return new

    def _find_end(self) -> int | None:
        """Return where the first stop string ends the text, and remember which one; None if there is none."""
        found = [
            (place + len(stop), stop)
            for stop in self._stop
            if (place := self._all.find(stop, max(self._shown, self._from - len(stop) + 1))) >= 0
        ]
        if not found:
            return None
        end, self.found = min(found)
        return end if self._keep else end - len(self.found)
