"""What the web server and the engine's process send each other: plain values, pickled through a pipe.

A `Generation` is one answer of the OpenAI-compatible API; all of them share one continuous batch. A `Batch` is a call
of `Sampler.generate` that is sampled as a batch of its own, so that it returns the same bits as in the learner's
process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from qed.sampling.base import Sampling
from qed.types import StopReason


@dataclass(frozen=True)
class EngineInfo:
    """An engine: its model's name, longest sequence and end tokens, and how it computes.

    `exact_logps` as for `Sampler`; `handed_over` says why the native sampler does not sample itself, if so.
    """

    model: str
    window: int
    ends: tuple[int, ...]
    precision: str
    device: str
    threads: int
    exact_logps: bool
    parameters: int
    handed_over: str | None = None


@dataclass(frozen=True)
class Generation:
    """A request for one answer: token ids of the prompt, the seed of its random numbers, and how it is sampled.

    `top_logps` is the number of most likely tokens to report at each position.
    """

    prompt: Sequence[int]
    seed: int
    sampling: Sampling
    top_logps: int = 0


@dataclass(frozen=True)
class Progress:
    """New tokens of an answer, their log-probs, and the most likely tokens at their positions with their log-probs.

    `stop_reason` is set in the last message of an answer; `version` is that of the weights that sampled it. Tokens
    after the end of a stop string are never sent.
    """

    tokens: Sequence[int]
    logps: Sequence[float]
    top: Sequence[Sequence[tuple[int, float]]] = ()
    stop_reason: StopReason | None = None
    version: int = 0


@dataclass(frozen=True)
class Batch:
    """The arguments of a call of `Sampler.generate`."""

    prompts: Sequence[Sequence[int]]
    seeds: Sequence[Sequence[int]]
    sampling: Sampling
    prefix_lengths: Sequence[int] = ()


@dataclass(frozen=True)
class Scoring:
    """A request for the log-probs of tokens that follow a prompt, at a temperature, for each row.

    `top_logps` as for `Generation`.
    """

    prompts: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    temperature: float = 1.0
    top_logps: int = 0


@dataclass(frozen=True)
class EngineStats:
    """Counts since the start, and the present state of an engine."""

    running: int = 0
    waiting: int = 0
    finished: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    version: int = 0
    paused: bool = False
    extra: dict[str, float] = field(default_factory=dict)
