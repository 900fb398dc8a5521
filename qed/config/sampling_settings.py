"""The settings of sampling: how answers are sampled in training and evaluations, by which sampler, how far ahead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qed.config.settings import can_sample_at, require, shelf_field


@dataclass(frozen=True)
class SamplingSettings:
    """How answers are sampled during training."""

    problems_per_step: int = 16
    """Problems sampled from in each step."""
    group_size: int = 8
    """Answers sampled per problem."""
    curriculum: Literal["uniform", "difficulty", "thompson", "learnability"] = "uniform"
    """Order of problems: all in turn, easy ones first, or (thompson, learnability) those that are sometimes solved."""
    curriculum_column: str = "level"
    """Column that curriculum=difficulty sorts by: a number, or text with one; -COLUMN if high numbers are easy."""
    curriculum_target: float = 0.5
    """Pass rate of the problems that curriculum=thompson prefers."""
    curriculum_memory: float = 0.8
    """Factor by which each visit to a problem discounts its earlier answers in its pass rate; 1 forgets nothing."""
    mix: tuple[str, ...] = ()
    """Weights of the data's sources in the problems of a step, SOURCE=WEIGHT; empty weights each by its size."""
    temperature: float = 1.0
    """Sampling temperature; divides the logits, in sampling and in every log-prob."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens with this total probability, and train on their renormalised log-probs."""
    top_k: int = 0
    """Sample from this many of the most likely tokens, and train on their renormalised log-probs; 0 or -1: from all."""
    min_p: float = 0.0
    """Sample from tokens with at least this share of the largest probability, and train on renormalised log-probs."""
    max_tokens: int = 256
    """Maximum length of an answer in tokens, end token included."""
    min_tokens: int = 0
    """Minimum length of an answer before its end token or stop string, which have probability 0 until then."""
    stop: tuple[str, ...] = ()
    """Strings that end an answer, besides the prompt's; they stay in the answer, and apply in evaluations too."""
    rows_per_batch: int = 128
    """Maximum number of answers generated at the same time; limits the memory of the sampler."""
    sampler: str = shelf_field("samplers", "native")
    """The sampler: native is fast; hf works with any model; server uses those at sampling.url; vllm starts its own."""
    url: tuple[str, ...] = ()
    """Addresses of running inference servers, such as http://127.0.0.1:8000; for the sampler server."""
    servers: int = 0
    """Number of servers that the run starts: native (0 samples in the learner's process) or vllm (0 starts one)."""
    devices: tuple[str, ...] = ()
    """Devices of the servers that the run starts, for example cuda:1,cuda:2; empty: those the learner does not use."""
    colocate: bool = False
    """Share the learner's device with the server, which sleeps while the learner updates."""
    memory_share: float = 0.7
    """Share of a device's memory that a vLLM server may use."""
    request_seconds: float = 600.0
    """Seconds without progress after which qed resends a request, to another server if there are several."""
    weights_folder: str = ""
    """Folder through which servers get new weights; empty: /dev/shm if it has enough space, else the run's folder."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(self.problems_per_step >= 1, "sampling.problems_per_step must be at least 1.")
        require(self.group_size >= 1, "sampling.group_size must be at least 1.")
        require(bool(self.curriculum_column.strip("-")), "sampling.curriculum_column must name a column.")
        require(0 < self.curriculum_target < 1, "sampling.curriculum_target must lie between 0 and 1.")
        require(0 <= self.curriculum_memory <= 1, "sampling.curriculum_memory must lie in [0, 1].")
        require(all(map(_is_weight, self.mix)), "sampling.mix must be SOURCE=WEIGHT with weights of at least 0.")
        sources = [entry.rpartition("=")[0].strip() for entry in self.mix]
        require(len(set(sources)) == len(sources), "sampling.mix names a source twice. Give each one weight.")
        hot = can_sample_at(self.temperature)
        require(
            hot, "sampling.temperature must be a finite number above 0, at least 1e-6; evaluation is greedy by itself."
        )
        require(0 < self.top_p <= 1, "sampling.top_p must lie in (0, 1]; 1 keeps all tokens.")
        require(self.top_k >= -1, "sampling.top_k must be a number of tokens; 0 or -1 keeps all.")
        require(0 <= self.min_p < 1, "sampling.min_p must lie in [0, 1); 0 keeps all tokens.")
        require(self.max_tokens >= 1, "sampling.max_tokens must be at least 1.")
        require(0 <= self.min_tokens < self.max_tokens, "sampling.min_tokens must be 0 or more, below max_tokens.")
        require(all(self.stop), "sampling.stop must not hold an empty string.")
        require(self.rows_per_batch >= 1, "sampling.rows_per_batch must be at least 1.")
        require(self.servers >= 0, "sampling.servers must not be negative.")
        require(0 < self.memory_share < 1, "sampling.memory_share must lie in (0, 1).")
        require(0 < self.request_seconds < float("inf"), "sampling.request_seconds must be a finite number above 0.")
        asks = self.sampler == "server"
        starts = self.sampler in ("native", "vllm")
        require(
            not self.servers or starts, "sampling.servers needs sampling.sampler=native or vllm; server starts none."
        )
        sleeps = self.sampler in ("vllm", "server")
        require(not self.colocate or sleeps, "sampling.colocate needs sampling.sampler=vllm, whose servers can sleep.")
        require(not self.url or asks, "sampling.url needs sampling.sampler=server, the sampler that asks a server.")


def _is_weight(entry: str) -> bool:
    """Whether an entry of a mix is SOURCE=WEIGHT with a finite weight that is not negative."""
    source, _, weight = entry.rpartition("=")
    try:
        return bool(source.strip()) and 0 <= float(weight) < float("inf")
    except ValueError:
        return False


@dataclass(frozen=True)
class EvaluationSettings:
    """The evaluation, on problems that are never trained on."""

    tasks: tuple[str, ...] = ()
    """Held-out tasks; empty uses the test split of the training tasks, or holds out part of the training problems."""
    problems: int = 200
    """Number of problems per task, drawn by seed 0 in proportion to its sources and subjects."""
    every: int = 0
    """Evaluate every N steps, on the validation split if there is one; 0 evaluates only at the start and the end."""
    samples: int = 1
    """Answers sampled per problem, in addition to the greedy one."""
    sampler: str = ""
    """Sampler of evaluations during training: native or vllm in its own process, or server; empty: as in training."""
    url: tuple[str, ...] = ()
    """Addresses of the servers for evaluations during training; for evaluation.sampler=server."""
    devices: tuple[str, ...] = ()
    """Devices of the server that the run starts for its evaluations, for example cuda:1; empty takes a free one."""
    at_start: bool = True
    """Also evaluate the model before the first step."""
    at_end: bool = True
    """Also evaluate the model after the last step."""
    temperature: float | None = None
    """Temperature of the sampled answers; null: as in training."""
    top_p: float | None = None
    """For sampled answers: smallest set of tokens with this total probability to sample from; null: as in training."""
    top_k: int | None = None
    """For sampled answers: number of most likely tokens to sample from, 0: from all; null: as in training."""
    min_p: float | None = None
    """For sampled answers: drop tokens below this share of the largest probability; null: as in training."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(self.problems >= 1, "evaluation.problems must be at least 1.")
        require(self.every >= 0, "evaluation.every must not be negative.")
        require(self.samples >= 0, "evaluation.samples must not be negative.")
        require(self.sampler in ("", "native", "vllm", "server"), "evaluation.sampler must be native, vllm or server.")
        given = bool(self.url) == (self.sampler == "server")
        require(given, "evaluation.sampler=server and evaluation.url=ADDRESS belong together: give both or neither.")
        hot = self.temperature is None or can_sample_at(self.temperature)
        require(hot, "evaluation.temperature must be above 0, at least 1e-6; greedy answers are always sampled too.")
        require(self.top_p is None or 0 < self.top_p <= 1, "evaluation.top_p must lie in (0, 1].")
        require(self.top_k is None or self.top_k >= 0, "evaluation.top_k must not be negative.")
        require(self.min_p is None or 0 <= self.min_p < 1, "evaluation.min_p must lie in [0, 1).")


@dataclass(frozen=True)
class RolloutSettings:
    """How far sampling may run ahead of training."""

    max_staleness: int = 0
    """How many updates the sampling policy may lag behind; 0 alternates sampling and training, 1 overlaps them."""

    def __post_init__(self) -> None:
        """Refuse invalid values."""
        require(self.max_staleness >= 0, "rollout.max_staleness must not be negative.")
