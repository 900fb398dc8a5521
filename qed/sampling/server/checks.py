"""Checks requests to a server and its replies, so that a broken answer is never trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from qed.errors import Diverged, QedError, UsageError
from qed.sampling.base import Sampling
from qed.sampling.hf import completes_stop
from qed.sampling.server.dialect import Capabilities, Job, Reader
from qed.types import Completion, StopReason, Support

LARGEST = 1e-3  # a log-prob may exceed 0 by rounding
LOWEST = -9999.0  # means minus infinity in vLLM's replies, and such a token cannot be sampled


@dataclass(frozen=True)
class Answer:
    """An answer as returned by a server: `reason` is the server's finish reason, the rest as in `Completion`."""

    tokens: Sequence[int]
    logps: Sequence[float]
    reason: str
    support: Support | None = None
    version: int | None = None


def check_room(job: Job, url: str, capabilities: Capabilities) -> None:
    """Reject prompts that leave no room for an answer of the maximum length, before anything is sent.

    Raises:
        UsageError: a prompt is empty or too long.
    """
    for index, (prompt, _, sampling) in enumerate(job.list_prompts()):
        room = sampling.max_tokens
        if not len(prompt):
            raise UsageError(f"Prompt {index} has no tokens; a server needs at least one.")
        if room < 1:
            raise UsageError(f"Prompt {index} leaves no tokens to sample: its given part has sampling.max_tokens.")
        if len(prompt) + room > capabilities.window:
            raise UsageError(
                f"Prompt {index} has {len(prompt)} tokens and its answer up to {room}, but the server {url} takes "
                f"sequences of {capabilities.window}. Lower sampling.max_tokens, drop long prompts, or "
                "start the server with a larger window."
            )


def check_sampling(sampling: Sampling, url: str, capabilities: Capabilities) -> None:
    """Reject sampling parameters whose answers the server cannot fully report.

    Raises:
        UsageError: the learner would need the support of truncated distributions.
    """
    if sampling.record and not capabilities.records:
        raise UsageError(
            f"The server {url} ({capabilities.engine}) does not report which tokens sampling.top_p, top_k, min_p and "
            "min_tokens left at each position, so the learner cannot compute the log-probs that the answers were "
            "sampled with. Remove these settings, or sample with qed's own server: qed serve MODEL."
        )


def read_completion(url: str, reader: Reader, sampling: Sampling, answer: Answer) -> Completion:
    """Check an answer against its request, and return it.

    Args:
        url: address of the server, for messages.
        reader: tokens that end an answer, and the tokenizer.
        sampling: parameters of this answer; its `max_tokens` and `min_tokens` exclude given tokens.
        answer: answer as returned by the server.

    Raises:
        QedError: the answer contradicts itself or the request.
        Diverged: a log-prob is not a number.
    """
    tokens, logps = answer.tokens, answer.logps
    if not all(isinstance(logp, float | int) and math.isfinite(logp) for logp in logps):
        raise Diverged(f"Log-probs of the server {url} are not finite: its model is broken, maybe by the last update.")
    stopped = _is_stopped(reader, sampling, tokens)
    wrong = _find_contradiction(reader, sampling, answer, stopped)
    if wrong is not None:
        raise QedError(
            f"An answer of the server {url} contradicts itself: {wrong} (it has {len(tokens)} of at most "
            f"{sampling.max_tokens} tokens and its last one is {list(tokens[-1:])}; end tokens are "
            f"{list(reader.ends)}, stop strings {list(sampling.stop)}). Its engine, tokenizer or generation config "
            "does not fit this run."
        )
    reason: StopReason = "stop" if stopped else "length"
    return Completion(tuple(tokens), tuple(map(float, logps)), reason, answer.support, answer.version)


def _find_contradiction(reader: Reader, sampling: Sampling, answer: Answer, stopped: bool) -> str | None:
    """Describe what is wrong with an answer; None if nothing is."""
    tokens, logps, reason = answer.tokens, answer.logps, answer.reason
    if not tokens or len(tokens) > sampling.max_tokens or len(tokens) != len(logps):
        return f"there are {len(tokens)} tokens and {len(logps)} log-probs"
    ends = set(reader.find_ends(sampling.stop))
    # SGLang and older versions of vLLM check the length before end tokens.
    full = len(tokens) == sampling.max_tokens
    fits = reason == ("stop" if stopped else "length") or (full and reason == "length")
    contradictions = {
        f"its log-probs lie between {min(logps):g} and {max(logps):g}": max(logps) > LARGEST or min(logps) <= LOWEST,
        "it continues after an end token": not ends.isdisjoint(tokens[:-1]),
        f"its finish reason is {reason}": not fits,
        "its finish reason is length, but it is shorter than the maximum": not stopped and not full,
        f"it ends before sampling.min_tokens, {sampling.min_tokens}": stopped and len(tokens) <= sampling.min_tokens,
    }
    return next((what for what, holds in contradictions.items() if holds), None)


def _is_stopped(reader: Reader, sampling: Sampling, tokens: Sequence[int]) -> bool:
    """Return whether the last token is an end token or completes a stop string."""
    if not tokens:
        return False
    return tokens[-1] in reader.find_ends(sampling.stop) or _ends_with_stop(reader, sampling, tokens)


def _ends_with_stop(reader: Reader, sampling: Sampling, tokens: Sequence[int]) -> bool:
    """Return whether the last token completes a stop string."""
    if not sampling.stop or len(tokens) <= sampling.min_tokens:
        return False
    # A stop string spans at most as many tokens as it has bytes, plus one that begins before it.
    tail = list(tokens[-max(len(text.encode()) for text in sampling.stop) - 1 :])
    if sampling.min_tokens:
        return completes_stop(reader.tokenizer, tail, sampling.stop)
    text = reader.tokenizer.decode(tail, skip_special_tokens=False)
    return any(stop in text for stop in sampling.stop)
