"""Measures, in every step, how far a sampler's log-probs are from the learner's and how old its weights were."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from qed.rollout.ahead import measure_staleness
from qed.rollout.stages import flatten
from qed.sampling.base import Sampler, has_exact_logps, is_remote
from qed.training.learner import Learner
from qed.types import Groups, Rollout

# Answers scored only for this measurement if the step scores no old log-probs: about 1 % of its time.
ANSWERS = 4
Scored = tuple[Rollout, Sequence[float]]  # an answer, and the learner's log-probs of its tokens
RARE = 0.99  # quantile of the gap that is reported besides its mean and maximum


def measure_sampler(
    learner: Learner, sampler: Sampler, groups: Groups, step: int, scored: Sequence[Scored] = ()
) -> dict[str, float]:
    """Return the metrics of a step's sampler, before its update; all ranks must call this.

    Args:
        learner: learner with the weights before the update.
        sampler: sampler of the step. One in this process with exact log-probs has no metrics.
        groups: scored groups of the step.
        step: number of the step.
        scored: answers that the learner has already scored, used if the step needs no old log-probs.
    """
    remote = is_remote(sampler)
    if not remote and has_exact_logps(sampler):
        return {}
    answers = [rollout for rollout in flatten(groups) if rollout.source == "policy"]
    figures = _measure_gap(learner, answers, scored)
    versions = [rollout.version for rollout in answers]
    if remote and versions:
        figures |= {"rollout/version_min": min(versions), "rollout/version_max": max(versions)}
        figures |= measure_staleness(groups, step - 1)
    return figures


def read_figures(sampler: Sampler) -> dict[str, float]:
    """Return a server sampler's metrics of a step: the seconds of the weight update, retries and lost servers."""
    figures = dict(getattr(getattr(sampler, "sync", None), "figures", {}))
    counts = getattr(sampler, "counts", None)
    if counts is not None:
        figures |= {f"sampler/{name}": counts.pop(name, 0) for name in ("asked_again", "servers_lost")}
    return figures


def rest_servers(sampler: Sampler) -> None:
    """Put servers on the learner's device to sleep while it updates; their next weight update wakes them."""
    sync = getattr(sampler, "sync", None)
    if sync is not None:
        sync.rest()


def _measure_gap(learner: Learner, answers: Sequence[Rollout], others: Sequence[Scored]) -> dict[str, float]:
    """Measure |sampler - learner| over the log-probs of sampled tokens, in nats."""
    scored = [(rollout, rollout.old_logps) for rollout in answers if rollout.old_logps is not None]
    scored = scored or [each for each in others if each[0].source == "policy"]
    if not scored:
        some = answers[:: max(1, len(answers) // ANSWERS)][:ANSWERS]
        scored = list(zip(some, learner.score_outputs(learner.model, some), strict=True))
    gaps = sorted(
        abs(sampled - own)
        for rollout, logps in scored
        for sampled, own, mine in zip(rollout.logps, logps, rollout.on_policy, strict=True)
        if mine and math.isfinite(sampled - own)
    )
    if not gaps:
        return {}
    rare = gaps[math.ceil(RARE * len(gaps)) - 1]
    return {"sampler/logp_gap_mean": fmean(gaps), "sampler/logp_gap_p99": rare, "sampler/logp_gap_max": gaps[-1]}
