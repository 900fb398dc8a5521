"""Grading in worker processes, so that a reward that hangs, crashes or uses too much memory does not stop the run.

The tier of a grade is `timeout` if a time limit was reached, and `error` if the reward raised or died. Both give a
reward of 0, are counted by tier, and never raise in the caller.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qed import host
from qed.grading.fork_server import ForkServer
from qed.grading.session import LIMITS, FailedError, Limits, NotLoadedError, Session, TimedOutError
from qed.guards.signals import check_signals
from qed.guards.watchdog import beat
from qed.types import Grade, Group, Problem, Rollout

MAX_WORKERS = 8
POLL_SECONDS = 0.2  # between checks for a signal while answers are graded
# The fields of a rollout that a reward can read; without log-probs and what later stages write.
ROLLOUT_FIELDS = ("text", "stop_reason", "source", "version", "index", "prompt_text")


class Judge:
    """A pool of worker processes that grade and can be killed.

    It can be used from any thread; a forked copy of the caller starts with a new pool.

    Args:
        target, arguments: see `ForkServer`; the target's description says whether it is `batched`, which part is the
            `judge` and whether it `checks_format` (see `Reward`), and `serve` wraps its function.
        workers: number of processes; 0 means one per core that this process may use, at most eight.
        limits: for each answer.
        log: the file for the output of rewards, which may contain a model's answers with terminal escape codes.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[Any] = (),
        workers: int = 0,
        limits: Limits = LIMITS,
        log: Path | None = None,
    ) -> None:
        cores = host.count_usable_cores() // host.count_local_ranks()
        self.workers = workers or max(1, min(MAX_WORKERS, cores))
        self._server = ForkServer(target, arguments, limits, log=log)
        self._reset()

    def _reset(self) -> None:
        self._owner = os.getpid()
        self._about: Any = None
        self._idle: deque[Session] = deque()
        self._slots = threading.BoundedSemaphore(self.workers)

    def start(self) -> Any:
        """Load the target and return its description.

        Raises:
            NotLoadedError: the target cannot be loaded.
        """
        if self._about is None:
            session = self._take_session()
            self._about = session.about
            self._idle.append(session)
        return self._about

    @property
    def judge(self) -> str | None:
        """The name of what decides correctness; None if nothing does."""
        name: str | None = self.start().get("judge")
        return name

    @property
    def checks_format(self) -> bool:
        """Whether the grades say if an answer follows the required format."""
        return bool(self.start().get("checks_format"))

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The target's description of its functions; empty if it gives none."""
        return list(self.start().get("functions", ()))

    def grade(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Grade groups of answers, in order."""
        if os.getpid() != self._owner:
            self._reset()
        batched = self.start()["batched"]
        units = groups if batched else [[rollout] for group in groups for rollout in group]
        threads = ThreadPoolExecutor(self.workers)
        try:
            futures = [threads.submit(self._grade_unit, unit) for unit in units]
            while wait(futures, POLL_SECONDS).not_done:
                check_signals("grade", progress=False)
            grades = iter([grade for future in futures for grade in future.result()])
        except BaseException:  # an interrupt must not wait for answers that may never arrive
            threads.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise
        threads.shutdown()
        return [[next(grades) for _ in group] for group in groups]

    __call__ = grade

    def _grade_unit(self, rollouts: Group) -> list[Grade]:
        """Grade answers in one request; if that fails, grade each one separately."""
        with self._slots:
            beat()
            try:
                return self._grade_in_worker(rollouts)
            except TimedOutError as error:
                grade = build_failed_grade("timeout", str(error))
            except (FailedError, NotLoadedError) as error:
                grade = build_failed_grade("error", str(error))
        if len(rollouts) == 1:
            return [grade]
        alone = [each for rollout in rollouts for each in self._grade_unit([rollout])]
        if any(each.is_decided for each in alone):
            warnings.warn(
                f"A reward failed on a group of {len(rollouts)} answers, so each was graded alone, which changes the "
                f"values of a reward that compares answers: {grade.reason}",
                stacklevel=1,
            )
        return alone

    def _grade_in_worker(self, rollouts: Group) -> list[Grade]:
        question = [_encode_rollout(rollout) for rollout in rollouts]
        session = self._take_session()
        try:
            grades = session.ask(question, scale=len(rollouts))
        finally:
            if session.alive:
                self._idle.append(session)
        try:
            found = [Grade(**grade) for grade in grades]
        except TypeError as error:
            raise FailedError(f"the reward returned something other than a grade: {error}") from error
        if len(found) != len(rollouts):
            raise FailedError(f"the reward returned {len(found)} grades for {len(rollouts)} answers")
        return found

    def _take_session(self) -> Session:
        """Take an idle worker, or start a new one; workers that died since their last answer are dropped."""
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return self._server.open_session()
            if session.idle:
                return session
            session.close()

    def close(self) -> None:
        """End all workers."""
        while self._idle:
            self._idle.pop().close()
        self._server.close()


def build_failed_grade(tier: str, reason: str) -> Grade:
    """Build the grade of an answer that could not be graded."""
    return Grade(0.0, False, False, None, tier=tier, reason=reason)


def serve(grade: Callable[[Sequence[Rollout]], list[Grade]]) -> Callable[[Any], Any]:
    """Wrap a function of rollouts as one from JSON to JSON, for the workers."""

    def answer(question: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rollouts = [_decode_rollout(packed) for packed in question]
        grades = grade(rollouts)
        if len(grades) != len(rollouts):
            raise ValueError(f"{len(grades)} grades for {len(rollouts)} answers")
        return [asdict(grade) for grade in grades]

    return answer


def _encode_rollout(rollout: Rollout) -> dict[str, Any]:
    problem = rollout.problem
    return {
        "problem": {
            "id": problem.id,
            "question": problem.question,
            "answer": problem.answer,
            "solution": problem.solution,
            "meta": _encode_meta(problem.meta),
        },
        **{name: getattr(rollout, name) for name in ROLLOUT_FIELDS},
        "prompt": list(rollout.prompt),
        "output": list(rollout.output),
        "loss_mask": list(rollout.loss_mask),
    }


def _encode_meta(value: Any) -> Any:
    """Convert a problem's metadata to JSON types; None if it is nested too deeply."""
    try:
        return _encode_value(value)
    except RecursionError:
        return None


def _encode_value(value: Any) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, list | tuple):
        return [_encode_value(inner) for inner in value]
    return {str(key): _encode_value(inner) for key, inner in value.items()} if hasattr(value, "items") else str(value)


def _decode_rollout(packed: dict[str, Any]) -> Rollout:
    problem = Problem(**packed.pop("problem"))
    return Rollout(problem, tuple(packed.pop("prompt")), tuple(packed.pop("output")), (), **packed)
