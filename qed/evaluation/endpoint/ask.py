"""Ask an endpoint for the answers to many problems concurrently, yielding each problem as soon as it is answered."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from qed.errors import ModelError
from qed.evaluation.endpoint.finished import iterate_finished
from qed.evaluation.endpoint.model import EndpointModel, EndpointSettings
from qed.evaluation.endpoint.prompts import EndpointPrompt, EndpointTemplate
from qed.evaluation.endpoint.replies import EndpointAnswer
from qed.grading.judge import build_failed_grade
from qed.sampling.base import Sampling
from qed.types import Group, Problem, Rollout

# Placeholder for a token whose id the endpoint does not return, so that an answer has the right length.
UNKNOWN_TOKEN = -1
HOPELESS = 8  # stop after this many failures in a row, or as many as there are concurrent requests if that is more


@dataclass
class EndpointRollout(Rollout):
    """An answer from an endpoint; its tokens are `UNKNOWN_TOKEN`, as many as the endpoint counts."""

    answer: EndpointAnswer = field(default_factory=EndpointAnswer)

    def describe(self) -> dict[str, Any]:
        """Return the columns of its row that differ from those of an answer with known tokens."""
        answer = self.answer
        ended = {} if answer.end == "answered" else {"stop_reason": answer.end}
        apart = {"reasoning": answer.reasoning} if answer.reasoning else {}
        known: dict[str, Any] = {"n_tokens": answer.length, "tokens": [], "logps": []}
        return {**known, **ended, "finish_reason": answer.finish, "usage": dict(answer.usage), **apart}


@dataclass(frozen=True)
class EndpointPolicy:
    """A model behind an endpoint, with its prompt template."""

    settings: EndpointSettings
    template: EndpointTemplate


def ask_endpoint(
    policy: EndpointPolicy,
    units: Mapping[int, Sequence[tuple[Problem, int]]],
    sampling: Sampling,
    address: tuple[int | str, ...],
    version: int,
) -> Generator[tuple[int, list[Group]]]:
    """Yield the groups of each unit once it is completely answered, in any order.

    Refused and failed answers get a grade that says so. Seeds are derived as in `qed.rollout.stages.sample`, so an
    endpoint that respects seeds draws the same answers again.

    Args:
        policy: the endpoint to ask, with `concurrency` threads.
        units: problems, each with its number of answers.
        sampling: temperature, maximum answer length and stop strings.
        address: address of the random numbers.
        version: version of the policy.

    Raises:
        UsageError, ModelError: no request can succeed, or the endpoint has stopped answering.
    """
    model = EndpointModel(policy.settings, policy.template, sampling)
    threads = ThreadPoolExecutor(policy.settings.concurrency, "endpoint")
    counted = _Failures(policy.settings)
    try:
        places: dict[Future[EndpointAnswer], tuple[int, int, int]] = {}
        prompts = {number: [policy.template.write(problem) for problem, _ in unit] for number, unit in units.items()}
        for number, unit in units.items():
            for position, (problem, count) in enumerate(unit):
                for index in range(count):
                    asked = threads.submit(model.ask, prompts[number][position], (*address, problem.id, index))
                    places[asked] = number, position, index
        left = {number: sum(count for _, count in unit) for number, unit in units.items()}
        answers: dict[tuple[int, int, int], EndpointAnswer] = {}
        for finished, future in enumerate(iterate_finished(places, "endpoint"), 1):
            place = places[future]
            number = place[0]
            answers[place] = answer = future.result()
            counted.add(answer, last=finished == len(places))
            left[number] -= 1
            if not left[number]:
                yield number, _build_groups(number, units[number], prompts[number], answers, version)
    finally:
        model.close()
        threads.shutdown(wait=False, cancel_futures=True)


class _Failures:
    """Counts consecutive failures: an evaluation should stop if the endpoint is gone."""

    def __init__(self, settings: EndpointSettings) -> None:
        self.settings = settings
        self.most = max(HOPELESS, settings.concurrency)
        self.in_a_row, self.any_answered = 0, False

    def add(self, answer: EndpointAnswer, last: bool) -> None:
        """Count an answer.

        Raises:
            ModelError: too many have failed in a row, or all requests were refused or failed.
        """
        self.any_answered |= answer.end == "answered"
        if answer.end == "answered" or (answer.end == "refused" and self.any_answered):
            self.in_a_row = 0
            return
        self.in_a_row += 1
        if self.in_a_row >= self.most or (last and not self.any_answered):
            raise ModelError(
                f"{self.settings.place} has answered none of the last {self.in_a_row} requests: {answer.reason}."
            )


def _build_groups(
    number: int,
    unit: Sequence[tuple[Problem, int]],
    prompts: Sequence[EndpointPrompt],
    answers: Mapping[tuple[int, int, int], EndpointAnswer],
    version: int,
) -> list[Group]:
    return [
        [
            _build_rollout(problem, prompts[position], answers[number, position, index], index, version)
            for index in range(count)
        ]
        for position, (problem, count) in enumerate(unit)
    ]


def _build_rollout(
    problem: Problem, prompt: EndpointPrompt, answer: EndpointAnswer, index: int, version: int
) -> EndpointRollout:
    failed = None if answer.end == "answered" else build_failed_grade("error", f"{answer.end}: {answer.reason}")
    return EndpointRollout(
        problem,
        (),
        (UNKNOWN_TOKEN,) * (answer.length or 0),
        (),
        answer.text,
        answer.stop_reason,
        version=version,
        index=index,
        prompt_text=prompt.shown,
        grade=failed,
        answer=answer,
    )
