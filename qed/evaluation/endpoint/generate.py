"""Answer the prompts of a file with a model behind an endpoint; see `qed.evaluation.generate`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import cast

from qed.console.live import Console
from qed.evaluation.endpoint.ask import EndpointPolicy, EndpointRollout, ask_endpoint
from qed.evaluation.generate import Output, Question
from qed.sampling.base import Sampling
from qed.types import Problem


def generate_at_endpoint(
    policy: EndpointPolicy,
    questions: Sequence[Question],
    output: Output,
    sampling: Sampling,
    samples: int,
    seed: int,
    console: Console,
) -> Counter[str]:
    """Answer the questions that have no answers yet, writing each answer as soon as it arrives.

    Args:
        policy: the endpoint that answers.
        questions: questions of the file.
        output: receives the answers.
        sampling: sampling parameters.
        samples: answers per question.
        seed: seed of the random numbers.
        console: shows the progress.

    Returns:
        counts of unanswered requests, by reason; the same command retries them.
    """
    missing = [(question, n) for question in questions for n in range(samples) if not output.has(question, n)]
    total = len(questions) * samples
    finished = total - len(missing)
    if finished:
        console.say(f"{finished} of {total} answers are already there.")
    units = {
        number: [(Problem(f"{question.number}/{n}", question.text, "", meta={"rendered": question.rendered}), 1)]
        for number, (question, n) in enumerate(missing)
    }
    left_out: Counter[str] = Counter()
    console.phase("", finished, "answer")
    with closing(ask_endpoint(policy, units, sampling, (seed, "generate"), 0)) as answered:
        for number, ((rollout,),) in answered:
            question, n = missing[number]
            finished += 1
            answer = cast(EndpointRollout, rollout).answer
            if answer.end == "answered":
                output.add([question.build_row(n, answer.text, answer.stop_reason, answer.length)])
            else:
                left_out[f"{answer.end} by the endpoint ({answer.reason})"] += 1
            console.step(finished, total, {"length/mean": len(rollout.output)} if rollout.output else {})
    console.end_phase()
    return left_out
