"""The pool of a policy's own right answers, kept to be learned from again as ExGRPO does (arXiv 2510.02245).

An answer is kept as its token ids, the log-probs under the policy that wrote it, and that policy's version: nothing is
tokenised again, and the learner corrects for the policy's age.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from qed.errors import DataError
from qed.randomness import derive_seed
from qed.types import Grade, Group, Problem, Rollout

Row = dict[str, Any]
MASKS = ("sampled_mask", "loss_mask")  # of a rollout; in a row a list of 0 and 1


@dataclass
class ReplayBuffer:
    """Answers by their problem; how many of a problem's group were right when it was last kept; what is solved.

    A solved problem is not drawn from the pool any more; with the end of the epoch it is retired: forgotten by the pool
    and no longer asked.
    """

    answers: dict[str, list[Rollout]] = field(default_factory=dict)
    successes: dict[str, int] = field(default_factory=dict)
    solved: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)

    def keep(self, group: Group, right: Sequence[Rollout]) -> None:
        """Keep the right answers that the policy sampled whole, each once, and how many of the group were right."""
        problem = group[0].problem.id
        kept = self.answers.setdefault(problem, [])
        known = {answer.output for answer in kept}
        for rollout in right:
            if rollout.source == "policy" and rollout.is_on_policy and rollout.output not in known:
                kept.append(_convert_to_replay(rollout))
                known.add(rollout.output)
        if kept:
            self.successes[problem] = len(right)
        else:
            del self.answers[problem]

    def trim(self, version: int, max_age: int, per_problem: int, size: int) -> None:
        """Forget what is too old, then the oldest of each problem, then the oldest of all; 0 sets no bound.

        Args:
            version: of the policy as it is.
            max_age: the oldest version that stays is so much smaller.
            per_problem: answers that stay of each problem.
            size: answers that stay of all.
        """
        for problem, kept in list(self.answers.items()):
            fresh = [answer for answer in kept if not max_age or version - answer.version <= max_age]
            # Sorted newest first; what is of the same version stays in the order in which it came.
            self._set(problem, sorted(fresh, key=lambda answer: -answer.version)[: per_problem or None])
        everything = [answer for kept in self.answers.values() for answer in kept]
        if size and len(everything) > size:
            stays = {id(answer) for answer in sorted(everything, key=lambda answer: -answer.version)[:size]}
            for problem, kept in list(self.answers.items()):
                self._set(problem, [answer for answer in kept if id(answer) in stays])

    def _set(self, problem: str, kept: list[Rollout]) -> None:
        if kept:
            self.answers[problem] = kept
        else:
            self._forget(problem)

    def _forget(self, problem: str) -> None:
        self.answers.pop(problem, None)
        self.successes.pop(problem, None)

    def buckets(self) -> dict[int, list[str]]:
        """The problems that may be drawn, by how many of their answers were right."""
        found: dict[int, list[str]] = {}
        for problem in sorted(self.answers):
            if problem not in self.solved and problem not in self.retired:
                found.setdefault(self.successes[problem], []).append(problem)
        return found

    def draw(self, count: int, weight: Callable[[int], float], address: Sequence[int | str]) -> list[str]:
        """Different problems, at most `count`: of each bucket a multinomial number, then that many of its problems.

        What a bucket has too few problems for goes to the others one by one, by the same weights.

        Args:
            count: how many are wanted.
            weight: of a bucket, from its number of right answers.
            address: of the draws.
        """
        buckets = dict(sorted(self.buckets().items()))
        draws = random.Random(derive_seed(*address))
        taken = dict.fromkeys(buckets, 0)
        weights = {bucket: weight(bucket) for bucket in buckets}
        for _ in range(min(count, sum(map(len, buckets.values())))):
            taken[_draw_bucket(buckets, weights, draws)] += 1
        excess = 0
        for bucket, problems in buckets.items():
            excess += max(0, taken[bucket] - len(problems))
            taken[bucket] = min(taken[bucket], len(problems))
        for _ in range(excess):
            roomy = [bucket for bucket, problems in buckets.items() if taken[bucket] < len(problems)]
            taken[_draw_bucket(roomy, weights, draws)] += 1
        return [problem for bucket, problems in buckets.items() for problem in draws.sample(problems, taken[bucket])]

    def end_epoch(self, problems: int, wanted: int) -> None:
        """Retire what was solved; where fewer problems than a step wants would be left, all are asked again.

        Args:
            problems: how many there are.
            wanted: how many a step asks.
        """
        for problem in self.solved:
            self._forget(problem)
        self.retired |= self.solved
        self.solved = set()
        if problems - len(self.retired) < wanted:
            self.retired = set()

    def sizes(self) -> dict[str, float]:
        """For the metrics; empty as long as nothing was kept."""
        if not (self.answers or self.solved or self.retired):
            return {}
        return {
            "replay/pool_problems": len(self.answers),
            "replay/pool_answers": sum(map(len, self.answers.values())),
            "replay/solved": len(self.solved),
            "replay/retired": len(self.retired),
        }

    def copy(self) -> ReplayBuffer:
        """The pool as it is now; what happens to either of the two does not change the other."""
        answers = {problem: list(kept) for problem, kept in self.answers.items()}
        return ReplayBuffer(answers, dict(self.successes), set(self.solved), set(self.retired))

    def rows(self) -> list[Row]:
        """All of it as rows of JSON."""
        return [
            *({"kept": encode_rollout(answer)} for kept in self.answers.values() for answer in kept),
            {"successes": self.successes, "solved": sorted(self.solved), "retired": sorted(self.retired)},
        ]

    @classmethod
    def of(cls, rows: Iterable[Row], problems: Mapping[str, Problem]) -> ReplayBuffer:
        """The pool that `rows` wrote."""
        pool = cls()
        for row in rows:
            if "kept" in row:
                answer = decode_rollout(row["kept"], problems)
                pool.answers.setdefault(answer.problem.id, []).append(answer)
            elif "successes" in row:
                pool.successes = dict(row["successes"])
                pool.solved, pool.retired = set(row["solved"]), set(row["retired"])
        return pool


def _draw_bucket(buckets: Iterable[int], weights: Mapping[int, float], draws: random.Random) -> int:
    """One of the buckets by its weight; where no weight is above 0, each is as likely."""
    choices = list(buckets)
    own = [weights[bucket] for bucket in choices]
    return draws.choices(choices, own if sum(own) > 0 else None)[0]


def _convert_to_replay(rollout: Rollout) -> Rollout:
    """An answer as it joins another group: given as a whole, its log-probs those of the policy that wrote it."""
    recorded = rollout.logps if rollout.old_logps is None else rollout.old_logps
    return replace(
        rollout,
        logps=(0.0,) * len(rollout.output),
        source="replay",
        sampled_mask=(False,) * len(rollout.output),
        behaviour=recorded,
        grade=None,
        advantage=0.0,
        old_logps=None,
        ref_logps=None,
    )


def encode_rollout(rollout: Rollout) -> Row:
    """A rollout as JSON that gives back every number as it was; of its problem the id alone."""
    row = {part.name: getattr(rollout, part.name) for part in fields(Rollout)}
    row |= {name: [int(value) for value in row[name]] for name in MASKS}
    return {**row, "problem": rollout.problem.id, "grade": rollout.grade and asdict(rollout.grade)}


def decode_rollout(row: Row, problems: Mapping[str, Problem]) -> Rollout:
    """The rollout that `as_row` wrote; a row of an earlier version has `given`, a count of first tokens, for a mask.

    Raises:
        DataError: its problem is none of these.
    """
    if row["problem"] not in problems:
        raise DataError(
            f"The checkpoint keeps an answer to the problem {row['problem']}, which is no training problem. "
            "Resume a run with the data that it began with."
        )
    values: Row = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    values |= {name: tuple(map(bool, values.get(name, ()))) for name in MASKS}
    if count := values.pop("given", 0):
        length = len(values["output"])
        values["sampled_mask"] = (False,) * count + (True,) * (length - count)
        if known := values.get("behaviour", ()):
            values["behaviour"] = (*known, *(math.nan,) * (length - len(known)))
    grade = row["grade"] and Grade(**row["grade"])
    return Rollout(**{**values, "problem": problems[row["problem"]], "grade": grade})
