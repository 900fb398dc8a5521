"""Who grades: this process for the shelf's own rewards, whose work is bounded, and a judge's workers for everybody
else's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from qed.config import plugins
from qed.config.reward_names import parse_reward
from qed.errors import UsageError
from qed.grading.judge import Judge, build_failed_grade
from qed.grading.session import LIMITS, Limits, NotLoadedError
from qed.guards import faults
from qed.guards.signals import check_signals
from qed.rewards.base import Reward, load_reward
from qed.types import UNGRADED, Grade, Group, Rollout


@dataclass(frozen=True)
class Pool:
    """The processes of a judge: how many, what each answer may cost, and the file that takes what rewards print."""

    workers: int = 0
    limits: Limits = LIMITS
    log: Path | None = None


POOL = Pool()


class Grader(Protocol):
    """Grades groups of answers, in their order; raises nothing whatever an answer says."""

    @property
    def judge(self) -> str | None:
        """The name of what decides correctness; None where the reward judges no answer."""
        ...

    @property
    def checks_format(self) -> bool:
        """Whether the grades say if the format holds."""
        ...

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """The grades of each group's answers."""
        ...

    def close(self) -> None:
        """End what runs for it, and any answer that is being graded."""
        ...


@dataclass(frozen=True)
class InProcessGrader:
    """Grades in this process."""

    reward: Reward

    @property
    def judge(self) -> str | None:
        """The part of the reward that decides correctness."""
        return self.reward.judge

    @property
    def checks_format(self) -> bool:
        """Whether some part of the reward checks the format."""
        return self.reward.checks_format

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        return [[self._graded(rollout) for rollout in group] for group in groups]

    def _graded(self, rollout: Rollout) -> Grade:
        check_signals("grade")
        try:
            grade = self.reward.grade([rollout])[0]
            return replace(grade, reward=faults.pass_through("reward", grade.reward))
        except Exception as error:  # noqa: BLE001 -- an answer that a reward cannot take must not end a run
            return build_failed_grade("error", f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Nothing runs."""


@dataclass(frozen=True)
class JudgingGrader:
    """Grades by a reward that judges no answer, and takes the verdict of another."""

    reward: Grader
    verdict: Grader

    @property
    def judge(self) -> str | None:
        """What decides correctness."""
        return self.verdict.judge

    @property
    def checks_format(self) -> bool:
        """Whether either of them checks the format."""
        return self.reward.checks_format or self.verdict.checks_format

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        columns = zip(self.reward(groups), self.verdict(groups), strict=True)
        keep = self.reward.checks_format
        return [[join(*both, keep_format=keep) for both in zip(*grades, strict=True)] for grades in columns]

    def close(self) -> None:
        """End both."""
        self.reward.close()
        self.verdict.close()


def join(grade: Grade, verdict: Grade, keep_format: bool) -> Grade:
    """A reward's grade with the verdict of another on the same answer.

    Args:
        grade: of a reward that judges no answer; one that failed stays as it is.
        verdict: of what decides whether the answer is right.
        keep_format: the reward says itself whether the format holds.
    """
    if grade.tier in UNGRADED:
        return grade
    return replace(
        grade,
        correct=verdict.correct,
        extracted=verdict.extracted,
        tier=verdict.tier,
        reason=verdict.reason,
        format_ok=grade.format_ok if keep_format else verdict.format_ok,
    )


def make_grader(
    names: Sequence[str],
    options: Sequence[str] = (),
    max_tokens: int = 0,
    conversational: bool = False,
    pool: Pool = POOL,
) -> Grader:
    """What grades groups of answers with a reward.

    Args:
        names, options, max_tokens, conversational: of the reward, see `qed.rewards.base.load`.
        pool: the processes for rewards from outside of qed.

    Raises:
        UsageError: the reward cannot be loaded.
    """
    if any(plugins.is_users_own(parse_reward(name).source) for name in names):
        judge = Judge(
            "qed.rewards.base:serve_reward", [names, options, max_tokens, conversational], pool.workers, pool.limits, pool.log
        )
        try:
            judge.start()
        except NotLoadedError as error:
            raise UsageError(str(error)) from error
        return judge
    return InProcessGrader(load_reward(names, options, max_tokens, conversational))
