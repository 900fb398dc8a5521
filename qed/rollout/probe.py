"""The probe of a weight update: fixed rows whose log-probs a server must compute as the learner does.

A server may report new weights and yet continue with old ones, with only part of the new ones, or with a KV cache
computed by the old ones. Its answers are fluent all the same. So after every update the probe's log-probs are compared
with the learner's, at several lengths. One greedy answer to each row is also compared with the server's own score of
the same tokens: engines compute prompts afresh when they score, but read a prefix cache when they sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from statistics import fmean

import torch

from qed.errors import QedError
from qed.rollout.sampler_check import PromptTokens, SamplerCheck, compare_logps
from qed.sampling.base import PromptBatch, Sampling
from qed.sampling.server.dialect import Job, Server
from qed.training.scoring import Score
from qed.types import Problem, Rollout

# Numbers of context and scored tokens. Engines cache blocks of 16 to 128 tokens; the longest row spans some.
LENGTHS = ((6, 10), (32, 32), (240, 48))
GREEDY = Sampling(0.0, 4)
CACHED = 2.0  # multiple of the rounding tolerance, for an engine's two ways to compute a token
# Change of the learner's values, in nats per token, above which a server's must change too.
MOVED = 1e-6


Values = tuple[tuple[float, ...], ...]  # the log-probs of some rows


class Stale(QedError):
    """A server that is alive, but has not taken the weights that it was sent."""


@dataclass(frozen=True)
class Reading:
    """A server's results: log-probs of the probe's rows, greedy answers to them, and its scores of these answers."""

    values: Values
    greedy: list[Rollout]
    rescored: Values


@dataclass(frozen=True)
class Learner:
    """How the learner computes: its score at temperature 1, its precision, and the servers' if different."""

    score: Score
    precision: torch.dtype
    rounding: torch.dtype | None = None


def build_probe(prompts: Sequence[PromptTokens], window: int) -> list[Rollout]:
    """Build the probe's rows from prompts of a run, repeated until they are long enough.

    Args:
        prompts: prompts of some problems.
        window: longest sequence of model and servers, in tokens.
    """
    tokens = cycle(chain.from_iterable(prompts))
    rows: dict[int, Rollout] = {}
    for before, scored in LENGTHS:
        whole = tuple(islice(tokens, min(before + scored, window - GREEDY.max_tokens)))
        cut = min(before, len(whole) // 2)
        rows[len(whole)] = _build_row(whole[:cut], whole[cut:], ())
    return list(rows.values())


def read_probe(server: Server, rows: Sequence[Rollout]) -> Reading:
    """Request a server's scores of the probe's rows, a greedy answer to each, and its scores of these answers.

    Raises:
        Stale: some log-probs are missing, or not finite.
    """
    values = _read_values(server, rows)
    prompts = [(*row.prompt, *row.output) for row in rows]
    answers = list(chain(*server.complete(Job([PromptBatch(prompts, [[0]] * len(prompts), GREEDY)]), lambda: None)))
    greedy = [_build_row(prompt, answer.tokens, answer.logps) for prompt, answer in zip(prompts, answers, strict=True)]
    return Reading(values, greedy, _read_values(server, greedy))


def require_reading(
    server: Server, version: int, reading: Reading, rows: Sequence[Rollout], learner: Learner
) -> SamplerCheck:
    """Compare a server's log-probs with the learner's, and its cached results with its own scores.

    Args:
        server: server that should have the version's weights.
        version: step that produced the weights.
        reading: the server's results.
        rows: rows of the probe.
        learner: learner with the same weights.

    Returns:
        The comparison with the learner.

    Raises:
        Stale: rounding does not explain the differences.
    """
    own = [replace(row, logps=logps) for row, logps in zip(rows, reading.values, strict=True)]
    check = compare_logps(own, learner.score, learner.precision, learner.rounding)
    if not check.passed:
        raise Stale(
            f"{server.url} has not taken the weights of step {version}: its log-probs of a fixed probe differ from the "
            f"learner's by up to {check.largest:.3g} nats, by {check.mean:.3g} on average ({check.rounding} explains "
            f"{check.tolerance.largest:.2g} and {check.tolerance.mean:.2g}), though it reported the update as done. It "
            "may still have older weights, or serve another model. Restart it, and resume the run."
        )

    gaps = [abs(one - two) for one, two in zip(_list_logps(reading.greedy), chain(*reading.rescored), strict=True)]
    allowed = CACHED * check.tolerance.largest
    # With so few tokens, the mean varies more than that of the rows.
    if max(gaps) > allowed or fmean(gaps) > allowed / 4:
        raise Stale(
            f"{server.url} answers from a stale prefix cache after the update to step {version}: the log-probs of "
            f"greedy answers to a fixed probe differ from its own score of the same tokens by up to {max(gaps):.3g} "
            f"nats ({check.rounding} explains {allowed:.2g}). Start it without a prefix cache, and resume the run."
        )
    return check


def require_change(server: Server, version: int, values: Sequence[Values], learner: Sequence[Values]) -> None:
    """Raise if a server's values are bit-identical to those before an update that changed the learner's.

    Args:
        server: server that has reported an update.
        version: step that produced the weights.
        values: the server's values before and after.
        learner: the learner's values before and after.

    Raises:
        Stale: the server still has the previous weights.
    """
    before, after = (list(chain(*each)) for each in learner)
    moved = fmean(abs(one - two) for one, two in zip(before, after, strict=True))
    if values[0] == values[1] and moved > MOVED:
        raise Stale(
            f"{server.url} has not taken the weights of step {version}: its log-probs of a fixed probe have the "
            f"same bits as before, although the update changed the learner's by {moved:.3g} nats on average. It "
            "reported the update as done. Restart it, and resume the run."
        )


def _read_values(server: Server, rows: Sequence[Rollout]) -> Values:
    logps = server.score([row.prompt for row in rows], [row.output for row in rows], 1.0)
    if [len(row.output) for row in rows] != [*map(len, logps)] or not all(map(math.isfinite, chain(*logps))):
        raise Stale(f"{server.url} returns log-probs of a fixed probe that are missing or not finite: {logps}"[:300])
    return tuple(map(tuple, logps))


def _list_logps(rows: Sequence[Rollout]) -> list[float]:
    return [logp for row in rows for logp in row.logps]


def _build_row(prompt: Sequence[int], output: Sequence[int], logps: Sequence[float]) -> Rollout:
    return Rollout(Problem("", "", ""), tuple(prompt), tuple(output), tuple(logps), "", "length")
