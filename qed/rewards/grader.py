"""Graders: built-in rewards run in this process, because their work is bounded; user-defined files run in workers.

Functions of the caller's Python program also run in this process, because no other process has them.
"""

from __future__ import annotations

import inspect
import threading
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from qed.config import plugins
from qed.config.callables import is_callable_name
from qed.config.reward_names import MODEL, parse_reward
from qed.errors import UsageError
from qed.grading.judge import POLL_SECONDS, Judge, build_failed_grade
from qed.grading.session import LIMITS, Limits, NotLoadedError
from qed.guards import faults
from qed.guards.signals import check_signals
from qed.guards.watchdog import beat
from qed.rewards.base import Reward, load_reward
from qed.rewards.callables import Call, CallableReward, EventLoop
from qed.types import UNGRADED, Grade, Group, Rollout


@dataclass(frozen=True)
class Pool:
    """The worker processes of a judge: their number, the limits per answer, and the log file for rewards' output."""

    workers: int = 0
    limits: Limits = LIMITS
    log: Path | None = None


POOL = Pool()


class Grader(Protocol):
    """Grades groups of answers, in order; never raises, whatever an answer contains."""

    @property
    def judge(self) -> str | None:
        """The name of the part that decides correctness; None if the reward does not."""
        ...

    @property
    def checks_format(self) -> bool:
        """Whether the grades say if the format is correct."""
        ...

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Descriptions of user-defined functions, for `qed.rewards.handed`."""
        ...

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Grade the answers of each group."""
        ...

    def close(self) -> None:
        """Stop the workers, and any answer that is being graded."""
        ...


@dataclass(frozen=True)
class WrappedGrader:
    """Base of graders that call another grader and share its properties."""

    grader: Grader

    @property
    def judge(self) -> str | None:
        """The name of what decides correctness; see `Grader`."""
        return self.grader.judge

    @property
    def checks_format(self) -> bool:
        """Whether the grades say if the format is correct."""
        return self.grader.checks_format

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Descriptions of user-defined functions."""
        return self.grader.functions

    def close(self) -> None:
        """Close the grader."""
        self.grader.close()


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

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags that the reward looks for, in the order of a prompt's."""
        return self.reward.tags

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Empty, because built-in rewards read the problem themselves."""
        return []

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        rollouts = [rollout for group in groups for rollout in group]
        self._precompute(rollouts)
        grades = iter(self._grade_concurrently(rollouts) if self.reward.concurrency > 1 else map(self._grade, rollouts))
        return [[next(grades) for _ in group] for group in groups]

    def _precompute(self, rollouts: Sequence[Rollout]) -> None:
        """Let rewards that score in batches do so; if that fails, answers are scored one by one and report why."""
        for part in self.reward.parts:
            if part.precompute is not None:
                with suppress(Exception):
                    part.precompute(rollouts)

    def _grade_concurrently(self, rollouts: Sequence[Rollout]) -> list[Grade]:
        """Grade in threads, for a reward that waits for a server."""
        threads = ThreadPoolExecutor(self.reward.concurrency)
        try:
            futures = [threads.submit(self._grade_rollout, rollout) for rollout in rollouts]
            while wait(futures, POLL_SECONDS).not_done:
                check_signals("grade", progress=False)
            return [future.result() for future in futures]
        except BaseException:  # an interrupt must not wait for a server
            threads.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise
        finally:
            threads.shutdown(wait=False)

    def _grade(self, rollout: Rollout) -> Grade:
        check_signals("grade")
        return self._grade_rollout(rollout)

    def _grade_rollout(self, rollout: Rollout) -> Grade:
        try:
            grade = self.reward.grade([rollout])[0]
            return replace(grade, reward=faults.pass_through("reward", grade.reward))
        except Exception as error:  # noqa: BLE001 -- an answer that breaks a reward must not end the run
            where = f"problem {rollout.problem.id}, answer {rollout.index}"
            tier = "timeout" if isinstance(error, TimeoutError) else "error"
            return build_failed_grade(tier, f"{where}: {type(error).__name__}: {error}")
        finally:
            beat()

    def close(self) -> None:
        """Cancel what the reward waits for; there are no workers."""
        self.reward.close()


@dataclass(frozen=True)
class CallableGrader(InProcessGrader):
    """Grades in this process with functions of the caller, awaiting the coroutines of all answers of a step together.

    `pool` has the wall-clock limit of a coroutine (other functions cannot be stopped), and the file for the first
    traceback of each step. Threads that grade at the same time take turns.
    """

    pool: Pool
    loop: EventLoop = field(default_factory=EventLoop)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        with self.turn:
            return self._grade_groups(groups)

    def _grade_groups(self, groups: Sequence[Group]) -> list[list[Grade]]:
        functions = [part.function for part in self.reward.parts if isinstance(part.function, CallableReward)]
        calls = self._call([(function, groups) for function in functions])
        # A group function that fails is called again with each answer alone.
        failed = [call for call in calls if isinstance(call.result, BaseException) and len(call.rollouts) > 1]
        alone = self._call([(call.reward, [[rollout] for rollout in call.rollouts]) for call in failed])
        _warn_if_graded(failed, alone)
        calls += alone
        for function in functions:
            function.store([call for call in calls if call.reward is function])
        self._log_first_error(calls)
        return super().__call__(groups)

    def _call(self, work: Sequence[tuple[CallableReward, Sequence[Group]]]) -> list[Call]:
        """Call the functions, and await all coroutines together."""
        calls = [call for function, groups in work for call in function.call(groups)]
        pending = [call for call in calls if inspect.isawaitable(call.result)]
        results = self.loop.await_all([call.result for call in pending], self.pool.limits.wall)
        for call, result in zip(pending, results, strict=True):
            call.result = result
        return calls

    def _log_first_error(self, calls: Sequence[Call]) -> None:
        error = next((call.result for call in calls if isinstance(call.result, BaseException)), None)
        if error is not None and self.pool.log is not None:
            with self.pool.log.open("a", encoding="utf-8") as file:
                file.write("".join(traceback.format_exception(error)))

    def close(self) -> None:
        """Cancel what the reward waits for, and end the event loop."""
        super().close()
        self.loop.close()


def _warn_if_graded(failed: Sequence[Call], alone: Sequence[Call]) -> None:
    """Warn if a function failed on a group, but graded some of its answers alone."""
    graded = {(call.reward, id(call.rollouts[0])) for call in alone if not isinstance(call.result, BaseException)}
    for call in failed:
        if any((call.reward, id(rollout)) in graded for rollout in call.rollouts):
            warnings.warn(
                f"A reward failed on a group of {len(call.rollouts)} answers, so each was graded alone, which changes "
                f"the values of a reward that compares answers: {type(call.result).__name__}: {call.result}",
                stacklevel=1,
            )
            return


@dataclass(frozen=True)
class JudgingGrader:
    """Combines a reward that does not decide correctness with the verdict of another."""

    reward: Grader
    verdict: Grader

    @property
    def judge(self) -> str | None:
        """The name of what decides correctness."""
        return self.verdict.judge

    @property
    def checks_format(self) -> bool:
        """Whether either of them checks the format."""
        return self.reward.checks_format or self.verdict.checks_format

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The functions of the reward."""
        return self.reward.functions

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        grades = zip(self.reward(groups), self.verdict(groups), strict=True)
        keep = self.reward.checks_format
        return [[join(*pair, keep_format=keep) for pair in zip(*group, strict=True)] for group in grades]

    def close(self) -> None:
        """Close both graders."""
        self.reward.close()
        self.verdict.close()


def join(grade: Grade, verdict: Grade, keep_format: bool) -> Grade:
    """Return the grade of one reward with the verdict of another on the same answer.

    Args:
        grade: from a reward that does not decide correctness; if it failed, the answer has no reward.
        verdict: from the reward that decides correctness.
        keep_format: keep `format_ok` of `grade`, because that reward checks the format itself.
    """
    failed = grade.tier in UNGRADED
    return replace(
        grade,
        correct=verdict.correct,
        extracted=verdict.extracted,
        tier=grade.tier if failed else verdict.tier,
        reason=grade.reason if failed else verdict.reason,
        has_reward=grade.has_reward and not failed,
        format_ok=grade.format_ok if keep_format and not failed else verdict.format_ok,
    )


def list_tags(grader: Grader | None) -> tuple[str, ...]:
    """List the tags that a built-in reward looks for, in the order of a prompt's; empty for other rewards."""
    return tuple(getattr(grader, "tags", ()))


def make_grader(
    names: Sequence[str],
    options: Sequence[str] = (),
    max_tokens: int = 0,
    conversational: bool = False,
    pool: Pool = POOL,
) -> Grader:
    """Build a grader from the entries of a reward.

    Args:
        names, options, max_tokens, conversational: see `qed.rewards.base.load_reward`.
        pool: the worker processes for user-defined rewards.

    Raises:
        UsageError: the reward cannot be loaded.
    """
    sources = [parse_reward(name).source for name in names]
    files = [source for source in sources if plugins.is_users_own(source)]
    if files and MODEL in sources:
        raise UsageError(
            f"data.reward names a reward model and the file {files[0]}, which would run in separate processes that "
            "would each load the model. Serve the model, and use the reward http instead."
        )
    if any(map(is_callable_name, sources)):
        if files:
            raise UsageError(
                f"data.reward names a function of this program and the file {files[0]}, which would run in separate "
                "processes. Import the file's function, and pass it instead of the file."
            )
        return CallableGrader(load_reward(names, options, max_tokens, conversational), pool)
    if files:
        arguments = [names, options, max_tokens, conversational]
        judge = Judge("qed.rewards.base:serve_reward", arguments, pool.workers, pool.limits, pool.log)
        try:
            judge.start()
        except NotLoadedError as error:
            raise UsageError(str(error)) from error
        return judge
    return InProcessGrader(load_reward(names, options, max_tokens, conversational))
