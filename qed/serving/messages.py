"""The messages between the web server and the engine's process: plain values, pickled through a pipe.

A `Generation` is one answer of the OpenAI-compatible API; all of them share one continuous batch. A `Batch` is a call
of `generate_batches`, sampled apart from these, so that it returns the same bits as in the learner's process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from qed.config.settings import ModelSettings
from qed.errors import QedError
from qed.sampling.base import PromptBatch, Sampling
from qed.types import Completion, StopReason

PauseMode = Literal["wait", "abort"]


class EngineDied(QedError):
    """The engine's process has ended; the message says how. Pending requests will not be answered."""


class AnswerAborted(QedError):
    """An answer was aborted for new weights; the request can be sent again."""


class PauseTimeout(QedError):
    """Running answers did not end within the deadline of a pause, so the engine is not paused."""


@dataclass(frozen=True)
class ModelSource:
    """The model of an engine, and how it computes; the same values as in a learner's process give the same bits.

    `model` names a Hugging Face folder, an adapter folder (which stays unmerged, so that later adapters replace it) or
    a hub name, with device, precision, dtype and attention. `weights` is a folder of `Engine.update` to load on top,
    and `version` its version: with them an engine continues where another one ended. `threads=0` uses the physical
    cores. `ends` are the tokens that end an answer; if empty, they are determined from the model, and `chat` says
    whether prompts are chats.
    """

    model: ModelSettings
    rows_per_batch: int = 128
    threads: int = 0
    matmul_precision: str = "highest"
    weights: str = ""
    version: int = 0
    chat: bool = True
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class EngineInfo:
    """An engine: its model's name, longest sequence and end tokens, and how it computes.

    For `exact_logps` see `Sampler`; `handed_over` says why the native sampler was replaced by the hf sampler, if so.
    """

    model: str
    window: int
    ends: tuple[int, ...]
    precision: str
    device: str
    threads: int
    exact_logps: bool
    parameters: int
    vocabulary: int
    handed_over: str | None = None
    process: int = 0


@dataclass(frozen=True)
class Generation:
    """A request for one answer: token ids of the prompt, the seed of its random numbers, and how it is sampled.

    `top_logps` is the number of most likely tokens to report at each position. Without `stream` a single `Progress` is
    sent at the end. `ends` are the tokens that end this answer in place of the model's; with () it ends only at its
    maximum length or at a stop string.
    """

    prompt: Sequence[int]
    seed: int
    sampling: Sampling
    top_logps: int = 0
    stream: bool = False
    ends: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Progress:
    """New tokens of an answer, their log-probs, and the most likely tokens at their positions with their log-probs.

    `stop_reason` is set in the last message of an answer; `version` is that of the weights that sampled it. Tokens
    after the end of a stop string are never sent. `top` lists tokens that can be sampled, the most likely first; it is
    empty unless `Generation.top_logps` requests them.
    """

    tokens: Sequence[int]
    logps: Sequence[float]
    top: Sequence[Sequence[tuple[int, float]]] = ()
    stop_reason: StopReason | None = None
    version: int = 0


@dataclass(frozen=True)
class Batch:
    """Batches that are completed together; batches of the same `session` may continue each other's answers."""

    parts: Sequence[PromptBatch]
    session: str = ""


@dataclass(frozen=True)
class Scoring:
    """A request for the log-probs of the output tokens after a prompt, at a temperature, for each row.

    For `top_logps` see `Generation`.
    """

    prompts: Sequence[Sequence[int]]
    outputs: Sequence[Sequence[int]]
    temperature: float = 1.0
    top_logps: int = 0


@dataclass(frozen=True)
class Scored:
    """The log-probs of a row's output, and the most likely tokens at each position, as in `Progress`."""

    logps: Sequence[float]
    top: Sequence[Sequence[tuple[int, float]]] = ()
    version: int = 0


@dataclass(frozen=True)
class EngineStats:
    """Counts since the start, and the current state of an engine."""

    running: int = 0
    waiting: int = 0
    finished: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    version: int = 0
    paused: bool = False
    asleep: bool = False


@dataclass(frozen=True)
class Steps:
    """The number of steps of a `Batch` computed so far."""

    count: int


@dataclass(frozen=True)
class Update:
    """A request for new weights from a complete folder."""

    folder: str
    version: int


@dataclass(frozen=True)
class Pause:
    """A request to start no more answers, and to wait for the running ones for some seconds, or abort them."""

    mode: PauseMode
    seconds: float


@dataclass(frozen=True)
class Abort:
    """A request to abort another request; it gets no reply."""

    call: int


@dataclass(frozen=True)
class Plain:
    """A request without arguments."""

    kind: Literal["check", "resume", "sleep", "wake", "stats", "stop"]


@dataclass(frozen=True)
class Failure:
    """Why a request failed: the name of the error's class, and its message."""

    kind: str
    message: str


Request = Generation | Batch | Scoring | Update | Pause | Abort | Plain
Reply = Progress | Steps | Failure | EngineInfo | EngineStats | list[Scored] | list[list[Completion]] | None
# What is sent: a list of pairs of the call's number and a request or reply.
Requests = list[tuple[int, Request]]
Replies = list[tuple[int, Reply]]
