"""Checks that a policy's sampler and the learner's forward pass agree, on prompts of a run or an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from qed.config.phases import Settings
from qed.console.live import Console
from qed.data.prompts.base import PromptTemplate
from qed.errors import ModelError
from qed.models import load
from qed.models.compiled_layers import leave_out_compiled_layers
from qed.models.families import split_head
from qed.models.fast_float32 import compute_batches_in
from qed.models.precision import read_precision
from qed.rollout.policy import Policy
from qed.rollout.sampler_check import PROBLEMS, Options, SamplerCheck, check_sampler, choose_prompts, require_agreement
from qed.runs.run import Row
from qed.sampling.base import Sampler, Sampling
from qed.training.attention import supports_packing
from qed.training.scoring import Score, score_with
from qed.types import Problem, Rollout

# Per forward pass. The compared prompts differ greatly in length, so a single pass would be mostly padding.
FORWARD_TOKENS = 1_024
IN_EVALUATION = Options("--sampler", "--precision", "--preflight false")


def compare_sampler(
    sampler: Sampler,
    score: Score,
    template: PromptTemplate,
    problems: Sequence[Problem],
    window: int,
    sampling: Sampling,
    settings: Settings,
) -> SamplerCheck:
    """Compare a sampler's log-probs with the learner's on the prompts of some problems.

    Args:
        sampler: holds the learner's weights.
        score: computes the learner's log-probs, at the temperature of `sampling`.
        template: renders the prompts.
        problems: problems of the run or the evaluation; the first `PROBLEMS` are candidates.
        window: the model's maximum context, in tokens.
        sampling: sampling parameters of the run or the evaluation.
        settings: provides the precision and the seed.
    """
    prompts = [template.tokens(template.prompt(problem)) for problem in problems[:PROBLEMS]]
    address = (settings.run.seed, "sampler check")
    batches = choose_prompts(prompts, sampling.max_tokens, min(window, getattr(sampler, "window", window)))
    rounding = getattr(sampler, "rounding", None)  # set by servers in another precision
    return check_sampler(sampler, score, batches, sampling, read_precision(settings.model), address, rounding)


def require_sampler(
    policy: Policy,
    template: PromptTemplate,
    problems: Sequence[Problem],
    sampling: Sampling,
    settings: Settings,
    console: Console,
    options: Options,
) -> Row:
    """Compare sampler and model outside of training, and print the difference.

    Returns:
        The fields of the comparison; empty if `run.preflight` is off.

    Raises:
        UsageError: they differ by more than rounding explains.
    """
    if not settings.run.preflight:
        return {}
    score = score_independently(policy.model, sampling.temperature or 1.0)
    window = load.read_window(policy.model)
    check = compare_sampler(policy.sampler, score, template, problems, window, sampling, settings)
    console.say(check.describe())
    require_agreement(check, policy.sampler, options)
    return check.fields


def score_independently(model: Any, temperature: float) -> Score:
    """Build a function that scores tokens with the layers of transformers, not with qed's compiled ones.

    On a CPU, a prompt shared by several answers is computed once if the model supports packed rows.

    Args:
        model: model on its device.
        temperature: divides the logits.
    """

    @cache
    def choose(precision: torch.dtype) -> Score:
        packing = False
        if model.device.type == "cpu":
            # Weights of mixed precision, as with adapters, are all computed in that of the comparison.
            with compute_batches_in(model.device.type, precision):
                packing = _can_pack(model)
        return score_with(model, temperature, packing, FORWARD_TOKENS)

    def score_by_transformers(rows: Sequence[Rollout], precision: torch.dtype) -> list[tuple[float, ...]]:
        with leave_out_compiled_layers():
            return choose(precision)(rows, precision)

    return score_by_transformers


def _can_pack(model: Any) -> bool:
    try:
        return supports_packing(split_head(model)[0])
    except ModelError:
        return False
