"""The replay buffer: the policy's correct answers, to be trained on again as in ExGRPO (arXiv 2510.02245).

It also holds demonstrations that wait for a separate update, as in ReLIFT (arXiv 2506.07527).

An answer is stored with its token ids, the log-probs of the policy that sampled it, and that policy's version: no text
is tokenised again, and the learner corrects for the older policy.
"""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from qed.errors import DataError
from qed.randomness import derive_seed
from qed.types import COLUMNS, Column, Grade, Group, Problem, Rollout, Support

Row = dict[str, Any]
MASKS = ("sampled_mask", "loss_mask")  # of a rollout; stored in a row as a list of 0 and 1


@dataclass
class ReplayBuffer:
    """Answers by problem id, the number of correct ones in a problem's last group (`successes`), and solved problems.

    A solved problem is no longer drawn from the buffer. At the end of the epoch it is retired: its answers are deleted,
    and it is no longer sampled. `waiting` holds demonstrations for later updates, the oldest first.
    """

    answers: dict[str, list[Rollout]] = field(default_factory=dict)
    successes: dict[str, int] = field(default_factory=dict)
    solved: set[str] = field(default_factory=set)
    retired: set[str] = field(default_factory=set)
    waiting: list[Rollout] = field(default_factory=list)

    def keep(self, group: Group, right: Sequence[Rollout]) -> None:
        """Store correct answers sampled entirely by the policy, without duplicates, and record how many are `right`."""
        problem = group[0].problem.id
        answers = self.answers.setdefault(problem, [])
        outputs = {answer.output for answer in answers}
        for rollout in right:
            if rollout.source == "policy" and rollout.is_on_policy and rollout.output not in outputs:
                answers.append(_convert_to_replay(rollout))
                outputs.add(rollout.output)
        if answers:
            self.successes[problem] = len(right)
        else:
            del self.answers[problem]

    def trim(self, version: int, max_age: int, per_problem: int, size: int) -> None:
        """Remove answers that are too old, then the oldest of each problem, then the oldest of all; 0 means no limit.

        Args:
            version: version of the current policy.
            max_age: the largest difference to the version of a stored answer.
            per_problem: answers to keep for each problem.
            size: answers to keep in total.
        """
        for problem, answers in list(self.answers.items()):
            fresh = [answer for answer in answers if not max_age or version - answer.version <= max_age]
            # Newest first; the sort is stable, so answers of one version keep their order.
            self._set(problem, sorted(fresh, key=lambda answer: -answer.version)[: per_problem or None])
        everything = [answer for answers in self.answers.values() for answer in answers]
        if size and len(everything) > size:
            newest = {id(answer) for answer in sorted(everything, key=lambda answer: -answer.version)[:size]}
            for problem, answers in list(self.answers.items()):
                self._set(problem, [answer for answer in answers if id(answer) in newest])

    def _set(self, problem: str, answers: list[Rollout]) -> None:
        if answers:
            self.answers[problem] = answers
        else:
            self._forget(problem)

    def _forget(self, problem: str) -> None:
        self.answers.pop(problem, None)
        self.successes.pop(problem, None)

    def buckets(self) -> dict[int, list[str]]:
        """Group the problems that may be drawn by their number of correct answers."""
        buckets: dict[int, list[str]] = {}
        for problem in sorted(self.answers):
            if problem not in self.solved and problem not in self.retired:
                buckets.setdefault(self.successes[problem], []).append(problem)
        return buckets

    def draw(self, count: int, weight: Callable[[int], float], address: Sequence[int | str]) -> list[str]:
        """Draw at most `count` distinct problems: a multinomial number from each bucket, without replacement.

        If a bucket has too few problems, the rest is drawn from the other buckets one by one, with the same weights.

        Args:
            count: number of problems to draw.
            weight: computes a bucket's weight from its number of correct answers.
            address: address of the random numbers.
        """
        buckets = dict(sorted(self.buckets().items()))
        rng = random.Random(derive_seed(*address))
        taken = dict.fromkeys(buckets, 0)
        weights = {bucket: weight(bucket) for bucket in buckets}
        for _ in range(min(count, sum(map(len, buckets.values())))):
            taken[_draw_bucket(buckets, weights, rng)] += 1
        excess = 0
        for bucket, problems in buckets.items():
            excess += max(0, taken[bucket] - len(problems))
            taken[bucket] = min(taken[bucket], len(problems))
        for _ in range(excess):
            available = [bucket for bucket, problems in buckets.items() if taken[bucket] < len(problems)]
            taken[_draw_bucket(available, weights, rng)] += 1
        return [problem for bucket, problems in buckets.items() for problem in rng.sample(problems, taken[bucket])]

    def end_epoch(self, problems: int, wanted: int) -> None:
        """Retire the solved problems; if fewer problems than a step needs would be left, un-retire all.

        Args:
            problems: number of training problems.
            wanted: problems of a step.
        """
        for problem in self.solved:
            self._forget(problem)
        self.retired = self.retired | self.solved
        self.solved = set()
        if problems - len(self.retired) < wanted:
            self.retired = set()

    def sizes(self) -> dict[str, float]:
        """Return the buffer's metrics; empty until something is stored."""
        if not (self.answers or self.solved or self.retired):
            return {}
        return {
            "replay/pool_problems": len(self.answers),
            "replay/pool_answers": sum(map(len, self.answers.values())),
            "replay/solved": len(self.solved),
            "replay/retired": len(self.retired),
        }

    def copy(self) -> ReplayBuffer:
        """Return an independent copy."""
        copied = {problem: list(answers) for problem, answers in self.answers.items()}
        return ReplayBuffer(copied, dict(self.successes), set(self.solved), set(self.retired), list(self.waiting))

    def to_rows(self) -> list[Row]:
        """Return the content as JSON rows."""
        return [
            *({"kept": encode_rollout(answer)} for answers in self.answers.values() for answer in answers),
            {"successes": self.successes, "solved": sorted(self.solved), "retired": sorted(self.retired)},
            *({"waiting": encode_rollout(demonstration)} for demonstration in self.waiting),
        ]

    @classmethod
    def from_rows(cls, rows: Iterable[Row], problems: Mapping[str, Problem]) -> ReplayBuffer:
        """Build the buffer from what `to_rows` returned."""
        pool = cls()
        for row in rows:
            if "kept" in row:
                answer = decode_rollout(row["kept"], problems)
                pool.answers.setdefault(answer.problem.id, []).append(answer)
            elif "successes" in row:
                pool.successes = dict(row["successes"])
                pool.solved, pool.retired = set(row["solved"]), set(row["retired"])
            elif "waiting" in row:
                pool.waiting.append(decode_rollout(row["waiting"], problems))
        return pool


def _draw_bucket(buckets: Iterable[int], weights: Mapping[int, float], rng: random.Random) -> int:
    """Draw a bucket by its weight; if no weight is above 0, all are equally likely."""
    choices = list(buckets)
    bucket_weights = [weights[bucket] for bucket in choices]
    return rng.choices(choices, bucket_weights if sum(bucket_weights) > 0 else None)[0]


def _convert_to_replay(rollout: Rollout) -> Rollout:
    """Convert an answer for replay: no token is on-policy; `behaviour` holds the log-probs of the policy it is from."""
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
        values=None,
        returns=None,
    )


def encode_rollout(rollout: Rollout) -> Row:
    """Encode a rollout as JSON without loss, with only the id of its problem."""
    row = {part.name: getattr(rollout, part.name) for part in fields(Rollout)}
    row |= {name: row[name].numbers.tolist() for name in COLUMNS if isinstance(row[name], Column)}
    support = rollout.support and {"counts": rollout.support.counts.tolist(), "ids": rollout.support.ids.tolist()}
    return {**row, "problem": rollout.problem.id, "grade": rollout.grade and asdict(rollout.grade), "support": support}


def decode_rollout(row: Row, problems: Mapping[str, Problem]) -> Rollout:
    """Decode what `encode_rollout` returned.

    Rows of earlier versions have `given`, the number of leading tokens that were not sampled, in place of a mask.

    Raises:
        DataError: its problem is not among `problems`.
    """
    if row["problem"] not in problems:
        raise DataError(
            f"The checkpoint holds an answer to the problem {row['problem']}, which is not a training problem. "
            "Resume the run with the data that it began with."
        )
    values: Row = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    values |= {name: tuple(map(bool, values.get(name, ()))) for name in MASKS}
    values["turns"] = tuple(map(tuple, values.get("turns", ())))
    if count := values.pop("given", 0):
        length = len(values["output"])
        values["sampled_mask"] = (False,) * count + (True,) * (length - count)
        if behaviour := values.get("behaviour", ()):
            values["behaviour"] = (*behaviour, *(math.nan,) * (length - len(behaviour)))
    grade = row["grade"] and Grade(**row["grade"])
    support = row.get("support") and Support(*(array("i", row["support"][name]) for name in ("counts", "ids")))
    return Rollout(**{**values, "problem": problems[row["problem"]], "grade": grade, "support": support})
