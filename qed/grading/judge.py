"""Grade answers in worker processes, so that a reward may hang, crash or eat memory without taking the run with it.

A verdict that met a limit of time has the tier `timeout`, one whose reward raised or died `error`; both pay nothing,
are counted by their tiers, and are never an exception of the caller.
"""

from __future__ import annotations

import os
import threading
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

MOST_WORKERS = 8
POLL_SECONDS = 0.2  # between two looks for a signal while answers are graded
# What a reward may ask of a rollout; log-probs and what later stages write are none of its business.
ROLLOUT_FIELDS = ("prompt", "output", "text", "stop_reason", "source", "version", "index", "prompt_text")


class Judge:
    """A pool of killable processes that grade.

    It may be used from any thread; a fork of the caller begins with a pool of its own.

    Args:
        target, arguments: see `Zygote`; the target's description says whether it is `batched`, which part is the
            `judge` and whether it `checks_format` (see `Reward`), and its function is made by `serving`.
        workers: processes at once; 0 takes one for each core that this process may use, and at most eight.
        limits: for each answer.
        log: the file that takes what rewards print; a model's answers in it would command a terminal.
    """

    def __init__(
        self,
        target: str,
        arguments: Sequence[Any] = (),
        workers: int = 0,
        limits: Limits = LIMITS,
        log: Path | None = None,
    ) -> None:
        self.workers = workers or min(MOST_WORKERS, host.count_usable_cores())
        self._zygote = ForkServer(target, arguments, limits, log=log)
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._about: Any = None
        self._idle: deque[Session] = deque()
        self._places = threading.BoundedSemaphore(self.workers)

    def start(self) -> Any:
        """Load the target; what it says of itself.

        Raises:
            NotLoadedError: it cannot be loaded.
        """
        if self._about is None:
            session = self._session()
            self._about = session.about
            self._idle.append(session)
        return self._about

    @property
    def judge(self) -> str | None:
        """What decides correctness; None where nothing does."""
        name: str | None = self.start().get("judge")
        return name

    @property
    def checks_format(self) -> bool:
        """Whether its grades say if the format holds."""
        return bool(self.start().get("checks_format"))

    def grade(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """The grades of some groups of answers, in their order."""
        if os.getpid() != self._owner:
            self._begin()
        batched = self.start()["batched"]
        units = groups if batched else [[rollout] for group in groups for rollout in group]
        threads = ThreadPoolExecutor(self.workers)
        try:
            asked = [threads.submit(self._unit, unit) for unit in units]
            while wait(asked, POLL_SECONDS).not_done:
                check_signals("grade", progress=False)
            graded = iter([grade for one in asked for grade in one.result()])
        except BaseException:  # an interrupt must not wait for answers that may never come
            threads.shutdown(wait=False, cancel_futures=True)
            self.close()
            raise
        threads.shutdown()
        return [[next(graded) for _ in group] for group in groups]

    __call__ = grade

    def _unit(self, rollouts: Group) -> list[Grade]:
        """The grades of answers that are judged together; when that fails, each is judged alone."""
        with self._places:
            beat()
            try:
                return self._asked(rollouts)
            except TimedOutError as error:
                grade = build_failed_grade("timeout", str(error))
            except (FailedError, NotLoadedError) as error:
                grade = build_failed_grade("error", str(error))
        return [grade] if len(rollouts) == 1 else [grade for one in rollouts for grade in self._unit([one])]

    def _asked(self, rollouts: Group) -> list[Grade]:
        question = [_encode_rollout(rollout) for rollout in rollouts]
        session = self._session()
        try:
            told = session.ask(question, scale=len(rollouts))
        finally:
            if session.alive:
                self._idle.append(session)
        try:
            return [Grade(**grade) for grade in told]
        except TypeError as error:
            raise FailedError(f"what it said is no grade: {error}") from error

    def _session(self) -> Session:
        """A worker that waits; one that died since its last answer costs the next answer nothing."""
        while True:
            try:
                session = self._idle.pop()
            except IndexError:
                return self._zygote.open_session()
            if session.idle:
                return session
            session.close()

    def close(self) -> None:
        """End all workers."""
        while self._idle:
            self._idle.pop().close()
        self._zygote.close()


def build_failed_grade(tier: str, reason: str) -> Grade:
    """The grade of an answer that could not be graded."""
    return Grade(0.0, False, False, None, tier=tier, reason=reason)


def serve(grade: Callable[[Sequence[Rollout]], list[Grade]]) -> Callable[[Any], Any]:
    """The worker's side: a function of rollouts as one from JSON to JSON."""

    def answer(question: list[dict[str, Any]]) -> list[dict[str, Any]]:
        rollouts = [_decode_rollout(packed) for packed in question]
        grades = grade(rollouts)
        if len(grades) != len(rollouts):
            raise ValueError(f"{len(grades)} grades for {len(rollouts)} answers")
        return [asdict(one) for one in grades]

    return answer


def _encode_rollout(rollout: Rollout) -> dict[str, Any]:
    problem = rollout.problem
    return {
        "problem": {
            "id": problem.id,
            "question": problem.question,
            "answer": problem.answer,
            "solution": problem.solution,
            "meta": _encode_value(problem.meta),
        },
        **{name: getattr(rollout, name) for name in ROLLOUT_FIELDS},
    }


def _encode_value(value: Any) -> Any:
    """What a problem carries along, as JSON can say it; of data too deep for that, nothing."""
    try:
        return _decode_value(value)
    except RecursionError:
        return None


def _decode_value(value: Any) -> Any:
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, list | tuple):
        return [_decode_value(inner) for inner in value]
    return {str(key): _decode_value(inner) for key, inner in value.items()} if hasattr(value, "items") else str(value)


def _decode_rollout(packed: dict[str, Any]) -> Rollout:
    problem = Problem(**packed.pop("problem"))
    return Rollout(problem, tuple(packed.pop("prompt")), tuple(packed.pop("output")), (), **packed)
