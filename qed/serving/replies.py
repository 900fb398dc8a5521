"""Write answers as JSON of OpenAI's API with vLLM's extra fields: complete, or as chunks of a stream."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from qed.serving.answering import Piece, ScoredPrompt, Top
from qed.serving.model_text import ModelText
from qed.serving.protocol import Question

LOWEST = -9999.0  # replaces an infinite log-prob, as in vLLM: JSON has no infinity
DONE = b"data: [DONE]\n\n"
Scores = Sequence[ScoredPrompt]


def format_event(content: Any) -> bytes:
    """Return a value as an event of a stream."""
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


class Writer:
    """Writes the replies to one question.

    Args:
        question: the question.
        text: the tokenizer of the model.
        model: the name of the model in replies.
        scores: the log-probs of the prompts, if the question requests them.
    """

    def __init__(self, question: Question, text: ModelText, model: str, scores: Scores = ()) -> None:
        self.question, self.text, self.model, self.scores = question, text, model, scores
        answers = len(question.prompts) * question.n
        self._offsets = [0] * answers  # where the next token of each answer's stream begins
        self._begun = [False] * answers
        self._tokens = 0

    def write_whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """Return the reply with complete answers."""
        choices = [self._write_choice(piece) for piece in pieces]
        kind = "chat.completion" if self.question.chat else "text_completion"
        body = {**self._head(kind), "choices": choices, "usage": self._usage(sum(len(one.tokens) for one in pieces))}
        if self.question.chat:
            body |= self._describe_prompt(0)
        return body

    def _write_choice(self, piece: Piece) -> dict[str, Any]:
        choice = {"index": piece.index, **self._describe(piece)}
        if self.question.chat:
            return {**choice, "message": {"role": "assistant", "content": piece.text}}
        text = self._find_echo(piece) + piece.text
        return {**choice, "text": text, **self._describe_prompt(piece.index // self.question.n)}

    def write_chunks(self, piece: Piece) -> Iterator[bytes]:
        """Yield the events of a piece."""
        first = not self._begun[piece.index]
        prompt = self._describe_prompt(piece.index // self.question.n) if first else {}
        self._tokens += len(piece.tokens)
        choice = {"index": piece.index, **self._describe(piece)}
        if not self.question.chat:
            text = (self._find_echo(piece) if first else "") + piece.text
            yield self._event([{**choice, "text": text, **prompt}])
        else:
            if first:
                opening = {"index": piece.index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
                yield self._event([opening], prompt)
            yield self._event([{**choice, "delta": {"content": piece.text}}])
        self._begun[piece.index] = True

    def write_end(self) -> Iterator[bytes]:
        """Yield the events after the last piece."""
        if self.question.show_usage:
            yield self._event([], {"usage": self._usage(self._tokens)})
        yield DONE

    def _event(self, choices: list[dict[str, Any]], more: dict[str, Any] | None = None) -> bytes:
        kind = "chat.completion.chunk" if self.question.chat else "text_completion"
        return format_event({**self._head(kind), "choices": choices, **(more or {})})

    def _head(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.question.chat else "cmpl"
        created = self.question.created
        return {"id": f"{prefix}-{self.question.id}", "object": kind, "created": created, "model": self.model}

    def _usage(self, generated: int) -> dict[str, int]:
        prompt = sum(map(len, self.question.prompts))
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}

    def _find_echo(self, piece: Piece) -> str:
        """Return the text of an answer's prompt, if the answer must repeat it (`echo`)."""
        if not self.question.echo:
            return ""
        row = piece.index // self.question.n
        text = self.question.prompt_texts[row]
        return self.text.decode(self.question.prompts[row], self.question.skip_special) if text is None else text

    def _describe_prompt(self, row: int) -> dict[str, Any]:
        """Return the token ids and log-probs of a prompt, if they are requested."""
        found: dict[str, Any] = {}
        if self.question.return_ids:
            found["prompt_token_ids"] = list(self.question.prompts[row])
        if self.question.prompt_logprobs is not None:
            found["prompt_logprobs"] = self._write_prompt_logprobs(row)
        return found

    def _write_prompt_logprobs(self, row: int) -> list[dict[str, Any] | None]:
        score, prompt = self.scores[row], self.question.prompts[row]
        found: list[dict[str, Any] | None] = [None]
        for token, logp, top in zip(prompt[1:], score.logps, _pad(score), strict=True):
            kept = top[: self.question.prompt_logprobs]
            ranks = {one: rank for rank, (one, _) in enumerate(top, 1)}
            found.append(
                {
                    str(one): {"logprob": clamp(value), "rank": ranks.get(one), "decoded_token": self.text.name(one)}
                    for one, value in ((token, logp), *kept)
                }
            )
        return found

    def _describe(self, piece: Piece) -> dict[str, Any]:
        """Return the fields of a choice besides its text."""
        logprobs = None
        if self.question.logprobs is not None:
            logprobs = self._write_chat_logprobs(piece) if self.question.chat else self._write_logprobs(piece)
        return {
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "token_ids": list(piece.tokens),
            "weight_version": piece.version,
        }

    def _write_logprobs(self, piece: Piece) -> dict[str, Any]:
        """Return the log-probs of a completion's tokens, preceded by those of its prompt if that is repeated."""
        tokens, logps, tops = list(piece.tokens), list[float | None](piece.logps), list(_pad(piece))
        if self.question.echo and not self._begun[piece.index]:
            row = piece.index // self.question.n
            score = self.scores[row]
            tokens[:0], logps[:0] = self.question.prompts[row], (None, *score.logps)
            tops[:0] = [(), *_pad(score)]
        names = [self._name(token) for token in tokens]
        ends = list(accumulate(map(len, names), initial=self._offsets[piece.index]))
        self._offsets[piece.index] = ends.pop()
        return {
            "tokens": names,
            "token_logprobs": [None if logp is None else clamp(logp) for logp in logps],
            "top_logprobs": [
                None if logp is None else self._write_top(token, logp, top)
                for token, logp, top in zip(tokens, logps, tops, strict=True)
            ],
            "text_offset": ends,
        }

    def _write_top(self, token: int, logp: float, top: Top) -> dict[str, float]:
        """Return the sampled and the most likely tokens with their log-probs; the most likely one of equal names."""
        found: dict[str, float] = {}
        for one, value in (*top[: self.question.logprobs], (token, logp)):
            found.setdefault(self._name(one), clamp(value))
        return found

    def _write_chat_logprobs(self, piece: Piece) -> dict[str, Any]:
        content = [
            {
                **self._describe_token(token, logp),
                "top_logprobs": [self._describe_token(*one) for one in top[: self.question.logprobs]],
            }
            for token, logp, top in zip(piece.tokens, piece.logps, _pad(piece), strict=True)
        ]
        return {"content": content}

    def _describe_token(self, token: int, logp: float) -> dict[str, Any]:
        name = self._name(token)
        return {"token": name, "logprob": clamp(logp), "bytes": list(name.encode("utf-8", "replace"))}

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self.question.ids_as_names else self.text.name(token)


def clamp(logp: float) -> float:
    """Return a log-prob that JSON can represent."""
    return logp if math.isfinite(logp) else LOWEST


def _pad(scored: Piece | ScoredPrompt) -> Iterable[Top]:
    """Return a row of most likely tokens for each log-prob; empty rows if the engine was not asked for them."""
    return scored.top or [()] * len(scored.logps)
