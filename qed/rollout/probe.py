"""The probe of a weights update: fixed rows whose log-probs a server must compute as the learner does.

A server may report that it has new weights and go on with old ones, with a part of them, or with a cache of keys and
values that the old ones computed. Its answers are fluent all the same. So after every update the probe's log-probs are
compared with the learner's, over several lengths, and one greedy answer to each row is compared with the server's own
score of the same tokens: engines compute prompts afresh when they score, but read a prefix cache when they sample.
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

# The tokens before and within the scored part. Engines cache blocks of 16 to 128 tokens, so the longest spans some.
LENGTHS = ((6, 10), (32, 32), (240, 48))
GREEDY = Sampling(0.0, 4)
CACHED = 2.0  # times what rounding explains, between an engine's own two ways to compute a token
# The learner's own values have moved at least by this, in nats per token, if a server's should have moved too.
MOVED = 1e-6


Values = tuple[tuple[float, ...], ...]  # the log-probs of some rows


class Stale(QedError):
    """A server that is alive, but has not taken the weights that it was sent."""


@dataclass(frozen=True)
class Reading:
    """What a server computes: log-probs of the probe's rows, greedy answers after them, and its score of these."""

    values: Values
    greedy: list[Rollout]
    rescored: Values


@dataclass(frozen=True)
class Learner:
    """How the learner computes: its score at temperature 1, its precision, and the servers' if that is another."""

    score: Score
    precision: torch.dtype
    rounding: torch.dtype | None = None


def build_probe(prompts: Sequence[PromptTokens], window: int) -> list[Rollout]:
    """Build the probe's rows from prompts of a run, repeated until they are long enough.

    Args:
        prompts: of some problems.
        window: the longest sequence of model and servers, in tokens.
    """
    tokens = cycle(chain.from_iterable(prompts))
    rows: dict[int, Rollout] = {}
    for before, scored in LENGTHS:
        whole = tuple(islice(tokens, min(before + scored, window - GREEDY.max_tokens)))
        cut = min(before, len(whole) // 2)
        rows[len(whole)] = _build_row(whole[:cut], whole[cut:], ())
    return list(rows.values())


def read_probe(server: Server, rows: Sequence[Rollout]) -> Reading:
    """Ask a server for its score of the probe's rows, a greedy answer to each, and its score of these answers.

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
    """Compare what a server has computed with the learner, and its cache with its own score.

    Args:
        server: that has the weights of the version.
        version: the step that made them.
        reading: of the server.
        rows: of the probe.
        learner: with the same weights.

    Returns:
        the comparison with the learner.

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
    # These are few tokens, whose mean varies more than that of the rows.
    if max(gaps) > allowed or fmean(gaps) > allowed / 4:
        raise Stale(
            f"{server.url} answers from a stale prefix cache after the update to step {version}: the log-probs of "
            f"greedy answers to a fixed probe differ from its own score of the same tokens by up to {max(gaps):.3g} "
            f"nats ({check.rounding} explains {allowed:.2g}). Start it without a prefix cache, and resume the run."
        )
    return check


def require_change(server: Server, version: int, values: Sequence[Values], learner: Sequence[Values]) -> None:
    """Refuse a server whose values have the same bits as before an update that has moved the learner's.

    Args:
        server: that has taken an update.
        version: the step that made the weights.
        values: the server's before and after.
        learner: the learner's before and after.

    Raises:
        Stale: the server has still the weights from before.
    """
    before, after = (list(chain(*each)) for each in learner)
    moved = fmean(abs(one - two) for one, two in zip(before, after, strict=True))
    if values[0] == values[1] and moved > MOVED:
        raise Stale(
            f"{server.url} has not taken the weights of step {version}: its log-probs of a fixed probe have the same "
            f"bits as before, though the update moved the learner's by {moved:.3g} nats on average. It reported the "
            "update as done. Restart it, and resume the run."
        )


def _read_values(server: Server, rows: Sequence[Rollout]) -> Values:
    logps = server.score([row.prompt for row in rows], [row.output for row in rows], 1.0)
    if [len(row.output) for row in rows] != [*map(len, logps)] or not all(map(math.isfinite, chain(*logps))):
        raise Stale(f"{server.url} computes log-probs of a fixed probe that are missing or not finite: {logps}"[:300])
    return tuple(map(tuple, logps))


def _list_logps(rows: Sequence[Rollout]) -> list[float]:
    return [logp for row in rows for logp in row.logps]


def _build_row(prompt: Sequence[int], output: Sequence[int], logps: Sequence[float]) -> Rollout:
    return Rollout(Problem("", "", ""), tuple(prompt), tuple(output), tuple(logps), "", "length")
