"""Compare the log-probs that a sampler reports with the learner's forward pass, on a few sampled tokens.

A policy gradient divides one by the other, and an evaluation trusts that the sampled model is the one it names. A
sampler that ignores padding, a sliding window or the temperature, shifts its log-probs or holds old weights still
writes fluent text, so no later check is sure to find it. Any sampler can be compared, also one behind a network: the
function needs `generate` and a function that scores tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from statistics import fmean
from typing import Any

import torch

from qed.errors import UsageError
from qed.randomness import derive_seed
from qed.sampling.base import Sampler, Sampling
from qed.sampling.hf import HFSampler
from qed.training.scoring import Score
from qed.types import Problem, Rollout

ANSWERS, LONG_ANSWERS = 4, 2  # sampled for each prompt, and for the longest one
TOKENS = 16  # of each answer: about 220 tokens in all
SHORT = 4  # tokens of the shortest prompt
PROBLEMS = 64  # whose prompts are looked through for a short, a usual and a long one
# Sliding windows and scaled rotations show beyond their length only. Most windows hold 4,096 tokens or fewer, and one
# forward pass over twice as many is cheap beside a step that trains answers of that length.
LONGEST = 8_192

PromptTokens = tuple[int, ...]


@dataclass(frozen=True)
class Tolerance:
    """The largest difference of a token, and the largest mean difference of a prompt's tokens, in nats."""

    largest: float
    mean: float


@dataclass(frozen=True)
class Rounding:
    """What rounding does to log-probs in one precision of the matrix products."""

    name: str
    floor: Tolerance
    share: float  # of the error of bfloat16


# A product rounds each result by a share u of its size: 2^-24 in float32, 2^-11 in TF32, 2^-9 in bfloat16. A log-prob
# is a difference of logits of size 10 to 50, and every layer adds an error of its own, like a random walk. So the error
# in nats is about u x logit size x sqrt(2 x layers): 2e-5 in float32 for 50 and 24 layers, and 0.7 at worst in
# bfloat16, whose mean error is some 20 times smaller because few logits are that large. The floors leave room of one
# to two orders of magnitude in float32, where broken samplers are off by 0.01 nats and mostly by whole nats, and little
# in bfloat16, where the mean over a prompt's tokens tells noise from a fault and single tokens hardly do.
#
# What a model makes of rounding also depends on its weights: a near tie in a router or in an attention of large logits
# multiplies it by hundreds. Where a floor is exceeded that is measured, not guessed: the learner scores the same tokens
# in bfloat16 and in float32, and their difference is what bfloat16 does to this model. float32 gets 2^-12 of it in
# place of 2^-15, because sums of thousands of terms in float32 lose some more bits, and in bfloat16 are made in
# float32 too. The factor covers engines that round more often than the learner does (residual stream, logits).
FLOAT32 = Rounding("float32", Tolerance(1e-3, 1e-4), 2.0**-12)
TF32 = Rounding("TF32", Tolerance(0.05, 5e-3), 2.0**-2)
BFLOAT16 = Rounding("bfloat16", Tolerance(0.25, 0.02), 1.0)
FACTOR = 3.0


@dataclass(frozen=True)
class SamplerCheck:
    """How far a sampler's log-probs are from the learner's.

    `largest` is the largest difference of a token, found at `position` (from 0) of an answer to a prompt of
    `prompt_length` tokens; `mean` is the mean difference of the prompt where that is largest. Differences are absolute
    and in nats.
    """

    largest: float
    mean: float
    tokens: int
    tolerance: Tolerance
    rounding: str
    prompt_length: int
    position: int

    @property
    def passed(self) -> bool:
        """Whether rounding explains the differences."""
        return self.largest <= self.tolerance.largest and self.mean <= self.tolerance.mean

    @property
    def metrics(self) -> dict[str, float]:
        """Entries of metrics.jsonl."""
        return {
            "sampler_check/logp_diff_max": self.largest,
            "sampler_check/logp_diff_mean": self.mean,
            "sampler_check/tokens": self.tokens,
        }

    @property
    def fields(self) -> dict[str, Any]:
        """Everything, as JSON can say it."""
        return {
            "passed": self.passed,
            "logp_diff_max": _encode_number(self.largest),
            "logp_diff_mean": _encode_number(self.mean),
            "tokens": self.tokens,
            "tolerance_max": self.tolerance.largest,
            "tolerance_mean": self.tolerance.mean,
            "rounding": self.rounding,
            "prompt_length": self.prompt_length,
            "position": self.position,
        }

    def describe(self) -> str:
        """Say the differences in one line."""
        if not self.tokens:
            return "Sampler against learner: no sampled token has a log-prob to compare."
        return (
            f"Sampler against learner, {self.tokens} tokens: log-probs differ by at most {self.largest:.2g} nats, by "
            f"{self.mean:.2g} on average ({self.rounding} explains {self.tolerance.largest:.2g} and "
            f"{self.tolerance.mean:.2g})."
        )


def check_sampler(
    sampler: Sampler,
    score: Score,
    batches: Sequence[Sequence[PromptTokens]],
    sampling: Sampling,
    precision: torch.dtype,
    address: tuple[int | str, ...],
) -> SamplerCheck:
    """Sample a few answers and compare their log-probs with the learner's.

    Args:
        sampler: holds the learner's weights.
        score: the learner's log-probs, at the temperature of `sampling`.
        batches: prompts; those of one batch are asked in one call, so that short ones are padded.
        sampling: its temperature, where it is above 0, and `max_tokens` are used. Cuts such as top-p are not: they
            change a log-prob, and the learner's are of the whole distribution.
        precision: of the computation.
        address: of the draws.
    """
    whole = Sampling(sampling.temperature or 1.0, min(TOKENS, sampling.max_tokens))
    rows = [row for batch in batches for row in _sample(sampler, batch, whole, address)]
    differences = _list_differences(rows, score(rows, precision) if rows else [])
    rounding = _describe_rounding(precision)
    check = _compare(rows, differences, rounding, rounding.floor)
    if check.passed:
        return check
    return _compare(rows, differences, rounding, _measure_tolerance(rows, score, rounding))


def choose_prompts(prompts: Sequence[PromptTokens], max_tokens: int, window: int) -> list[list[PromptTokens]]:
    """Choose what to ask: a short, a usual and a long prompt in one batch, and by itself one that reaches far.

    Args:
        prompts: some of the data's; those that leave no room for an answer are not asked.
        max_tokens: of an answer in this run.
        window: tokens that the model can hold.
    """
    answer = min(TOKENS, max_tokens)
    fitting = {prompt for prompt in prompts if 0 < len(prompt) <= window - answer}
    if not fitting:
        return []
    ordered = sorted(fitting, key=lambda prompt: (len(prompt), prompt))
    longest = ordered[-1]
    # A beginning of one, so that most of its columns are padding even where all prompts have one length.
    short = ordered[0][: max(1, min(SHORT, len(ordered[0]) // 2))]
    chosen = list(dict.fromkeys([short, ordered[len(ordered) // 2], longest]))
    # As far as the longest prompt and its longest answer reach together.
    wanted = min(len(longest) + max_tokens, window, LONGEST) - answer
    if wanted <= len(longest):
        return [chosen]
    text = (token for prompt in cycle(reversed(ordered)) for token in prompt)
    # The far one comes first: rotations that adapt to the length return to their beginning with the short ones.
    return [[tuple(islice(text, wanted))], chosen]


@dataclass(frozen=True)
class Options:
    """How a command line chooses the sampler and the precision, and how it leaves the comparison out."""

    sampler: str = "--sampling.sampler"
    precision: str = "--model.precision"
    skip: str = "--run.preflight false"


def require_agreement(check: SamplerCheck, sampler: Sampler, options: Options) -> None:
    """Refuse a sampler whose log-probs are not the learner's.

    Args:
        check: what was found.
        sampler: that was compared.
        options: that the message names.

    Raises:
        UsageError: they differ by more than rounding explains.
    """
    if check.passed:
        return
    if type(sampler) is HFSampler:
        advice = (
            "This is transformers' own generation, so the model computes differently with a cache than without one. "
            f"Please report the model and this message; {options.precision} float32 shows whether the precision is "
            "the cause."
        )
    else:
        advice = f"Sample with {options.sampler} hf, which is slower and takes any model, and please report the model."
    raise UsageError(
        f"The sampler's log-probs are not the model's own. Over {check.tokens} tokens they differ by up to "
        f"{check.largest:.3g} nats (token {check.position} of an answer to a prompt of {check.prompt_length} tokens), "
        f"and by {check.mean:.3g} on average; rounding in {check.rounding} explains {check.tolerance.largest:.2g} and "
        f"{check.tolerance.mean:.2g}. What it writes would be another model's.\n{advice}\n"
        f"{options.skip} begins all the same."
    )


def _sample(
    sampler: Sampler, prompts: Sequence[PromptTokens], sampling: Sampling, address: tuple[int | str, ...]
) -> list[Rollout]:
    count = ANSWERS if len(prompts) > 1 else LONG_ANSWERS
    seeds = [
        [derive_seed(*address, len(prompt), which, number) for number in range(count)]
        for which, prompt in enumerate(prompts)
    ]
    answers = sampler.generate(prompts, seeds, sampling)
    return [
        Rollout(Problem("", "", ""), tuple(prompt), answer.tokens, answer.logps, "", answer.stop_reason)
        for prompt, some in zip(prompts, answers, strict=True)
        for answer in some
    ]


def _list_differences(rows: Sequence[Rollout], scored: Sequence[tuple[float, ...]]) -> list[list[float]]:
    """The absolute differences of each row's tokens; infinity where a score is no number, NaN where the sampler told
    none."""
    return [
        [
            math.nan if math.isnan(own) else _measure_distance(own, other)
            for own, other in zip(row.logps, logps, strict=True)
        ]
        for row, logps in zip(rows, scored, strict=True)
    ]


def _measure_distance(one: float, other: float) -> float:
    distance = abs(one - other)
    return math.inf if math.isnan(distance) else distance


def _compare(
    rows: Sequence[Rollout], differences: Sequence[Sequence[float]], rounding: Rounding, tolerance: Tolerance
) -> SamplerCheck:
    known = [
        (value, row.prompt, position)
        for row, values in zip(rows, differences, strict=True)
        for position, value in enumerate(values)
        if not math.isnan(value)
    ]
    if not known:
        return SamplerCheck(0.0, 0.0, 0, tolerance, rounding.name, 0, 0)
    largest, prompt, position = max(known, key=lambda one: one[0])
    return SamplerCheck(largest, _find_worst_mean(known), len(known), tolerance, rounding.name, len(prompt), position)


def _find_worst_mean(known: Sequence[tuple[float, PromptTokens, int]]) -> float:
    """The mean difference of the prompt where it is largest: a fault of long prompts must not be averaged away."""
    prompts = {prompt for _, prompt, _ in known}
    return max(fmean(value for value, own, _ in known if own == prompt) for prompt in prompts)


def _measure_tolerance(rows: Sequence[Rollout], score: Score, rounding: Rounding) -> Tolerance:
    """The floor, and above it what rounding is seen to do to this model's log-probs of these tokens."""
    half, full = (score(rows, precision) for precision in (torch.bfloat16, torch.float32))
    noise = [
        abs(one - other)
        for some, others in zip(half, full, strict=True)
        for one, other in zip(some, others, strict=True)
        if math.isfinite(one - other)
    ]
    scale = FACTOR * rounding.share
    return Tolerance(
        rounding.floor.largest + scale * max(noise, default=0.0),
        rounding.floor.mean + scale * (fmean(noise) if noise else 0.0),
    )


def _describe_rounding(precision: torch.dtype) -> Rounding:
    if precision in (torch.float32, torch.float64):
        return {"highest": FLOAT32, "high": TF32}.get(torch.get_float32_matmul_precision(), BFLOAT16)
    return BFLOAT16


def _encode_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
