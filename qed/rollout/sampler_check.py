"""Compares the log-probs that a sampler reports with the learner's forward pass, on a few sampled tokens.

A policy gradient uses the ratio of the two, and an evaluation assumes that the named model is sampled. A
sampler that ignores padding, a sliding window or the temperature, shifts its log-probs or has old weights still writes
fluent text, so later checks may miss the fault. Any sampler can be compared, even a remote one: the check needs
only `generate` and a function that scores tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from statistics import fmean
from typing import Any

import torch

from qed.errors import UsageError
from qed.randomness import derive_seed
from qed.sampling.base import Sampler, Sampling, is_remote, require_support
from qed.sampling.hf import HFSampler
from qed.training.scoring import Score
from qed.types import Problem, Rollout

ANSWERS, LONG_ANSWERS = 4, 2  # answers sampled for each prompt, and for the longest one
TOKENS = 16  # per answer: about 220 tokens in total
SHORT = 4  # tokens of the shortest prompt
PROBLEMS = 64  # candidates among whose prompts a short, a median and a long one are chosen
# Faults of sliding windows and of scaled RoPE appear only beyond their length. Most windows have 4,096 tokens or fewer,
# and one forward pass over twice as many is cheap compared with a step that trains on answers of that length.
LONGEST = 8_192

PromptTokens = tuple[int, ...]


@dataclass(frozen=True)
class Tolerance:
    """The largest difference of a token, and the largest mean difference of a prompt's tokens, in nats."""

    largest: float
    mean: float


@dataclass(frozen=True)
class Rounding:
    """The rounding error of log-probs in one precision of the matrix products."""

    name: str
    floor: Tolerance
    share: float  # as a fraction of the bfloat16 error


# Each result of a matrix product has a relative rounding error u: 2^-24 in float32, 2^-11 in TF32, 2^-9 in bfloat16. A
# log-prob is a difference of logits of size 10 to 50, and every layer adds an error, like a random walk. So the error
# in nats is about u x logit size x sqrt(2 x layers): 2e-5 in float32 for logits of 50 and 24 layers, and at worst 0.7
# in bfloat16, whose mean error is about 20 times smaller because few logits are that large. The float32 floors are one
# to two orders of magnitude above this; broken samplers are off by at least 0.01 nats and mostly by several nats. The
# bfloat16 floors leave little margin: the mean over a prompt's tokens separates noise from a fault, but single tokens
# hardly do.
#
# The error also depends on the weights: a near tie in a router, or attention with large logits, multiplies it by
# hundreds. So if a floor is exceeded, the model's own error is measured: the learner scores the same tokens in bfloat16
# and in float32, and the difference is this model's bfloat16 error. float32 is allowed 2^-12 of it, not 2^-15, because
# float32 sums of thousands of terms lose some more bits, while bfloat16 products are also summed in float32. FACTOR
# covers engines that round more often than the learner (residual stream, logits). In float64 the error is about 4e-14,
# and the floor leaves room for any weights, so nothing is measured.
FLOAT64 = Rounding("float64", Tolerance(1e-8, 1e-9), 0.0)
FLOAT32 = Rounding("float32", Tolerance(1e-3, 1e-4), 2.0**-12)
TF32 = Rounding("TF32", Tolerance(0.05, 5e-3), 2.0**-2)
BFLOAT16 = Rounding("bfloat16", Tolerance(0.25, 0.02), 1.0)
FACTOR = 3.0


@dataclass(frozen=True)
class SamplerCheck:
    """The difference between a sampler's log-probs and the learner's.

    `largest` is the largest difference of a token, at `position` (from 0) of an answer to a prompt of `prompt_length`
    tokens. `mean` is the largest mean difference of a prompt's tokens. Differences are absolute, in nats.
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
        """Return whether rounding explains the differences."""
        return self.largest <= self.tolerance.largest and self.mean <= self.tolerance.mean

    @property
    def metrics(self) -> dict[str, float]:
        """Return the entries of metrics.jsonl."""
        return {
            "sampler_check/logp_diff_max": self.largest,
            "sampler_check/logp_diff_mean": self.mean,
            "sampler_check/tokens": self.tokens,
        }

    @property
    def fields(self) -> dict[str, Any]:
        """Return all fields as strict JSON values."""
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
        """Describe the differences in one line."""
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
    rounding: torch.dtype | None = None,
) -> SamplerCheck:
    """Sample a few answers and compare their log-probs with the learner's.

    Args:
        sampler: holds the learner's weights.
        score: computes the learner's log-probs, at the temperature of `sampling`.
        batches: prompts; each batch is sampled in one call, so short prompts are padded.
        sampling: its temperature, if above 0, and `max_tokens` are used. If it records the support, answers are
            sampled twice: from the full distribution, where a fault shows at every token, and as in training.
        precision: precision of the learner's computation.
        address: address of the random numbers.
        rounding: precision of the sampler's computation, if different.
    """
    tokens = min(TOKENS, sampling.max_tokens)
    whole = Sampling(sampling.temperature or 1.0, tokens)
    truncated = replace(sampling, max_tokens=tokens, min_tokens=min(sampling.min_tokens, tokens // 2), stop=())
    kinds = [whole, truncated] if sampling.record else [whole]
    rows = [row for kind in kinds for batch in batches for row in _sample(sampler, batch, kind, address)]
    return compare_logps(rows, score, precision, rounding)


def compare_logps(
    rows: Sequence[Rollout], score: Score, precision: torch.dtype, rounding: torch.dtype | None = None
) -> SamplerCheck:
    """Compare the log-probs that a sampler reported with the learner's.

    Args:
        rows: rollouts whose `logps` are the sampler's.
        score: computes the learner's log-probs.
        precision: precision of the learner's computation.
        rounding: precision of the sampler's computation, if different.
    """
    differences = _list_differences(rows, score(rows, precision) if rows else [])
    allowed = _select_rounding(rounding or precision)
    check = _compare(rows, differences, allowed, allowed.floor)
    if check.passed or not allowed.share:
        return check
    return _compare(rows, differences, allowed, _measure_tolerance(rows, score, allowed))


def choose_prompts(prompts: Sequence[PromptTokens], max_tokens: int, window: int) -> list[list[PromptTokens]]:
    """Choose a short, a median and a long prompt as one batch, and a very long one as a separate batch.

    Args:
        prompts: prompts of some problems; those that leave no room for an answer are skipped.
        max_tokens: limit of an answer in this run.
        window: the model's maximum context, in tokens.
    """
    answer = min(TOKENS, max_tokens)
    fitting = {prompt for prompt in prompts if 0 < len(prompt) <= window - answer}
    if not fitting:
        return []
    ordered = sorted(fitting, key=lambda prompt: (len(prompt), prompt))
    longest = ordered[-1]
    # Take a prefix, so that the batch has much padding even if all prompts have the same length.
    short = ordered[0][: max(1, min(SHORT, len(ordered[0]) // 2))]
    batch = list(dict.fromkeys([short, ordered[len(ordered) // 2], longest]))
    # As long as the longest prompt plus its longest answer.
    length = min(len(longest) + max_tokens, window, LONGEST) - answer
    if length <= len(longest):
        return [batch]
    tokens = (token for prompt in cycle(reversed(ordered)) for token in prompt)
    # The very long prompt comes first: RoPE variants that adapt to the length are reset by the short prompts after it.
    return [[tuple(islice(tokens, length))], batch]


@dataclass(frozen=True)
class Options:
    """A command's options that select the sampler and the precision, and that skip the comparison."""

    sampler: str = "--sampling.sampler"
    precision: str = "--model.precision"
    skip: str = "--run.preflight false"


def require_agreement(check: SamplerCheck, sampler: Sampler, options: Options) -> None:
    """Require that a sampler's log-probs agree with the learner's.

    Args:
        check: the comparison.
        sampler: the sampler that was compared.
        options: options to name in the message.

    Raises:
        UsageError: they differ by more than rounding explains.
    """
    if check.passed:
        return
    if type(sampler) is HFSampler:
        advice = (
            "This is transformers' own generate, so the model computes different log-probs with a KV cache than "
            f"without one. Please report the model and this message; {options.precision} float32 shows whether the "
            "precision is the cause."
        )
    elif is_remote(sampler):
        advice = (
            "Its servers compute another model, or in another precision: start them with the run's model, without "
            f"quantization, in the precision of {options.precision}. {options.sampler} native, without servers, shows "
            "whether they are the cause."
        )
    else:
        advice = f"Sample with {options.sampler} hf, which is slower but takes any model, and please report the model."
    raise UsageError(
        f"The sampler's log-probs are not the model's own. Over {check.tokens} tokens they differ by up to "
        f"{check.largest:.3g} nats (token {check.position} of an answer to a prompt of {check.prompt_length} tokens), "
        f"and by {check.mean:.3g} on average; rounding in {check.rounding} explains {check.tolerance.largest:.2g} and "
        f"{check.tolerance.mean:.2g}. Its answers would be samples of another distribution.\n{advice}\n"
        f"{options.skip} starts anyway."
    )


def _sample(
    sampler: Sampler, prompts: Sequence[PromptTokens], sampling: Sampling, address: tuple[int | str, ...]
) -> list[Rollout]:
    count = ANSWERS if len(prompts) > 1 else LONG_ANSWERS
    seeds = [
        [derive_seed(*address, len(prompt), index, number) for number in range(count)]
        for index, prompt in enumerate(prompts)
    ]
    answers = sampler.generate(prompts, seeds, sampling)
    for answer in chain.from_iterable(answers):
        require_support(answer, sampling)
    return [
        Rollout(
            Problem("", "", ""),
            tuple(prompt),
            answer.tokens,
            answer.logps,
            "",
            answer.stop_reason,
            support=answer.support,
        )
        for prompt, completions in zip(prompts, answers, strict=True)
        for answer in completions
    ]


def _list_differences(rows: Sequence[Rollout], scored: Sequence[tuple[float, ...]]) -> list[list[float]]:
    """Return the absolute differences of each row's tokens; NaN where the sampler reported no log-prob."""
    return [
        [_compute_difference(sampled, own) for sampled, own in zip(row.logps, logps, strict=True)]
        for row, logps in zip(rows, scored, strict=True)
    ]


def _compute_difference(sampled: float, own: float) -> float:
    """Return the absolute difference of the sampler's and the learner's log-prob; inf if only the latter is NaN."""
    difference = abs(sampled - own)
    return math.inf if math.isnan(difference) and not math.isnan(sampled) else difference


def _compare(
    rows: Sequence[Rollout], differences: Sequence[Sequence[float]], rounding: Rounding, tolerance: Tolerance
) -> SamplerCheck:
    tokens = [
        (value, prompt, position)
        for prompt, values in zip([tuple(row.prompt) for row in rows], differences, strict=True)
        for position, value in enumerate(values)
        if not math.isnan(value)
    ]
    if not tokens:
        return SamplerCheck(0.0, 0.0, 0, tolerance, rounding.name, 0, 0)
    largest, prompt, position = max(tokens, key=lambda token: token[0])
    return SamplerCheck(largest, _find_worst_mean(tokens), len(tokens), tolerance, rounding.name, len(prompt), position)


def _find_worst_mean(tokens: Sequence[tuple[float, PromptTokens, int]]) -> float:
    """Return the largest mean difference of any prompt: a mean over all would hide a fault of long prompts."""
    prompts = {prompt for _, prompt, _ in tokens}
    return max(fmean(value for value, of, _ in tokens if of == prompt) for prompt in prompts)


def _measure_tolerance(rows: Sequence[Rollout], score: Score, rounding: Rounding) -> Tolerance:
    """Return the floor plus the measured rounding error of this model's log-probs on these tokens."""
    half, full = (score(rows, precision) for precision in (torch.bfloat16, torch.float32))
    noise = [
        abs(low - high)
        for half_row, full_row in zip(half, full, strict=True)
        for low, high in zip(half_row, full_row, strict=True)
        if math.isfinite(low - high)
    ]
    scale = FACTOR * rounding.share
    return Tolerance(
        rounding.floor.largest + scale * max(noise, default=0.0),
        rounding.floor.mean + scale * (fmean(noise) if noise else 0.0),
    )


def _select_rounding(precision: torch.dtype) -> Rounding:
    """Return the rounding of matrix products in a precision, under torch's setting for float32 products."""
    if precision == torch.float64:
        return FLOAT64
    if precision == torch.float32:
        return {"highest": FLOAT32, "high": TF32}.get(torch.get_float32_matmul_precision(), BFLOAT16)
    return BFLOAT16


def _encode_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
