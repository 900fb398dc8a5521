"""Records per-token statistics of a few answers of each online step, for the viewer.

The learner scores them before and after the step's updates in the same micro-batches, so that the ratio adds no
rounding error. The step's results and metrics do not change, except for times and, with an inexact sampler, which
answers the gap to it is measured on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor

from qed.algorithms.base import Algorithm
from qed.loops.mismatch import Scored
from qed.loops.phase import Phase
from qed.models.families import split_head
from qed.rollout.stages import flatten
from qed.runs.run import Row
from qed.training.batch import Batch, split_rows
from qed.training.learner import Learner
from qed.training.logps import compute_scores
from qed.training.top_logps import compute_top_logps
from qed.types import Group, Groups, Rollout

SOURCES = ("policy", "expert", "replay", "demonstration")
DIGITS = 5
POINT = "statistics"  # for `check_signals`
Place = tuple[int, int]  # index of a group in the step's file, and of an answer in the group


class TokenStats:
    """Records the statistics of a phase's steps; all ranks must take part, and rank 0 writes.

    Args:
        phase: the phase; `run.save_token_stats` and `run.save_top_logps` set how much is recorded.
    """

    def __init__(self, phase: Phase) -> None:
        settings = phase.settings.run
        self.phase = phase
        self.count = settings.save_token_stats if settings.save_rollouts else 0
        self.top = settings.save_top_logps
        self.scored: list[Scored] = []  # the chosen answers of the last step, before its updates
        self._chosen: dict[Place, Rollout] = {}
        self._rows: list[Row] = []

    def score_before(self, groups: Groups, minibatches: Sequence[Group]) -> None:
        """Choose answers and score them with the policy before the step's updates.

        Args:
            groups: all sampled groups, as written to the step's file.
            minibatches: minibatches of the updates.
        """
        learner = self.phase.learner
        self._chosen = choose_answers(groups, flatten(minibatches), learner.algorithm, self.count)
        self.scored = []
        if not self._chosen:
            return
        rollouts = list(self._chosen.values())
        with _uncounted(learner):
            batch = learner.collate(rollouts)
            logps, entropy = (split_rows(column, rollouts) for column in self._score(batch))
            top = self._list_top(batch, rollouts) if self.top else []
        self._rows, self.scored = [], list(zip(rollouts, logps, strict=True))
        for number, ((group, answer), rollout) in enumerate(self._chosen.items()):
            row = {"group": group, "answer": answer, "learner_logps": _mask(logps[number], rollout)}
            row["entropy"] = _mask(entropy[number], rollout)
            if rollout.ref_logps is not None:
                row["ref_logps"] = _mask(rollout.ref_logps, rollout)
            if rollout.values is not None:
                row["values"] = _mask(rollout.values, rollout)
            self._rows.append(row | ({"top": top[number]} if top else {}))

    def score_after(self, step: int) -> None:
        """Score the chosen answers with the policy after the step's updates, and write all statistics."""
        if not self._chosen:
            return
        learner, rollouts = self.phase.learner, list(self._chosen.values())
        with _uncounted(learner):
            logps, _ = self._score(learner.collate(rollouts))
        for row, rollout, values in zip(self._rows, rollouts, split_rows(logps, rollouts), strict=True):
            row["updated_logps"] = _mask(values, rollout)
        self.phase.setup.run.token_stats(step, self._rows)
        self._chosen, self._rows = {}, []

    def _score(self, batch: Batch) -> Tensor:
        """Compute the log-probs and entropies of answers under the policy, [2, B, T]."""
        learner = self.phase.learner
        return learner.forward_columns(learner.model, batch, compute_scores, 2, POINT)

    def _list_top(self, batch: Batch, rollouts: Sequence[Rollout]) -> list[list[Any]]:
        """List the most likely tokens at each trained position of each answer, with their log-probs."""
        learner = self.phase.learner
        count = min(self.top, split_head(learner.model)[1].out_features)
        compute = partial(compute_top_logps, count=count)
        found = learner.forward_columns(learner.model, batch, compute, 2 * count, POINT)
        columns = [split_rows(column, rollouts) for column in found]
        return [
            [
                [[int(each[1]), round(each[0], DIGITS)] for each in pairs if math.isfinite(each[0])] if trained else []
                for trained, pairs in zip(rollout.trained, _pair(columns, number, count), strict=True)
            ]
            for number, rollout in enumerate(rollouts)
        ]


def choose_answers(groups: Groups, rows: Sequence[Rollout], algorithm: Algorithm, count: int) -> dict[Place, Rollout]:
    """Choose answers of a step, in the order of its file.

    They are spread evenly over the groups that have a gradient: from each, first the answer with the highest advantage,
    then the one with the lowest.

    Args:
        groups: all sampled groups; empty ones are not in the file.
        rows: the rollouts that are trained on.
        algorithm: determines whether an advantage of 0 has no gradient.
        count: number of answers to choose.
    """
    trained = {id(row) for row in rows}
    ranked: list[list[tuple[float, Place, Rollout]]] = []
    for group_number, group in enumerate(filter(None, groups)):
        members = [
            (advantage, (group_number, number), rollout)
            for number, rollout in enumerate(group)
            if id(rollout) in trained and rollout.source in SOURCES and rollout.trained_count
            if (advantage := _read_advantage(rollout)) or not algorithm.by_advantage
        ]
        if members:
            ranked.append(sorted(members, key=lambda member: (-member[0], member[1])))
    wanted = min(len(ranked), math.ceil(count / 2))
    spread = [ranked[number * len(ranked) // wanted] for number in range(wanted)]
    chosen: list[tuple[Place, Rollout]] = []
    while len(chosen) < count and any(spread):
        # Alternate between the ends of each group.
        for end in (0, -1):
            chosen += [members.pop(end)[1:] for members in spread if members]
    return dict(sorted(chosen[:count], key=lambda member: member[0]))


def _read_advantage(rollout: Rollout) -> float:
    """Return an answer's advantage; of per-token advantages, the one furthest from 0."""
    values = rollout.advantage if isinstance(rollout.advantage, tuple) else (rollout.advantage,)
    return max(values, key=abs, default=0.0)


def _mask(values: Sequence[float], rollout: Rollout) -> list[float | None]:
    """Round the values of an answer's tokens; None if a token is not trained or its value is not finite."""
    return [
        round(value, DIGITS) if trained and math.isfinite(value) else None
        for value, trained in zip(values, rollout.trained, strict=True)
    ]


def _pair(columns: Sequence[Sequence[Sequence[float]]], row: int, count: int) -> Iterator[list[tuple[float, float]]]:
    """Yield the (log-prob, token) pairs of each position of a row; columns of tokens follow those of log-probs."""
    for values in zip(*(column[row] for column in columns), strict=True):
        yield list(zip(values[:count], values[count:], strict=True))


@contextmanager
def _uncounted(learner: Learner) -> Iterator[None]:
    """Exclude the block's operations from the step's FLOP count."""
    total = learner.flops.total
    try:
        yield
    finally:
        learner.flops.total = total
