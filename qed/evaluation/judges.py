"""Judges: a chat model behind an OpenAI-compatible endpoint, or a model that qed loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from qed.config.phases import Settings
from qed.data.prompts.base import PromptTemplate
from qed.data.splits import load_prompt
from qed.errors import UsageError
from qed.evaluation.endpoint.finished import iterate_finished
from qed.models.load import pick_device
from qed.net.chat import ChatModel, remove_thought
from qed.net.endpoint import RequestError
from qed.rollout.policy import load_policy
from qed.rollout.stages import sample
from qed.sampling.base import Sampling
from qed.types import Problem, Request, Rollout

Ask = Callable[[Sequence[str]], Iterator[tuple[int, str | None, str]]]
"""Asks a judge; yields (index of the request, reply or None, reason of the None), in any order."""


def ask_endpoint(model: ChatModel, concurrency: int) -> Ask:
    """Return a function that asks a chat model behind an endpoint, several requests at a time."""

    def ask(requests: Sequence[str]) -> Iterator[tuple[int, str | None, str]]:
        threads = ThreadPoolExecutor(concurrency)
        try:
            numbers = {
                threads.submit(model.ask, [{"role": "user", "content": request}]): number
                for number, request in enumerate(requests)
            }
            for future in iterate_finished(numbers, "judge"):
                try:
                    yield numbers[future], future.result(), ""
                except RequestError as error:
                    yield numbers[future], None, str(error)
        finally:
            model.endpoint.close()
            threads.shutdown(wait=False, cancel_futures=True)

    return ask


def ask_local(settings: Settings) -> Ask:
    """Return a function that asks a model that qed loads, with greedy decoding."""

    def ask(requests: Sequence[str]) -> Iterator[tuple[int, str | None, str]]:
        problems = [Problem(str(number), request, "") for number, request in enumerate(requests)]
        policy = load_policy(settings, problems, pick_device(settings.model.device), None)
        template = PromptTemplate(load_prompt(settings.data), policy.tokenizer, policy.template.ends)
        longest = settings.sampling.max_tokens
        limit = policy.max_prompt_tokens(longest)
        if limit <= 0:
            raise UsageError(
                f"The judge's window has {limit + longest:,} tokens, and a reply of --max-tokens {longest:,} leaves "
                "none for the request. Use a smaller --max-tokens, or a judge with a longer window."
            )
        lengths = template.lengths(problems)
        fitting = [
            number for number in sorted(range(len(problems)), key=lengths.__getitem__) if lengths[number] <= limit
        ]
        for number in range(len(problems)):
            if lengths[number] > limit:
                window = f"besides a reply of --max-tokens {longest:,}, the judge's window has {limit:,}"
                yield number, None, f"the request has {lengths[number]:,} tokens, and {window}"
        batch = settings.sampling.rows_per_batch
        for start in range(0, len(fitting), batch):
            numbers = fitting[start : start + batch]
            sampling = Sampling(0.0, longest, template.stop)
            chosen = [Request(problems[number], 1) for number in numbers]
            groups = sample(chosen, policy.sampler, template, sampling, (settings.run.seed, "judge"))
            for number, group in zip(numbers, groups, strict=True):
                yield number, *_read_reply(group[0], sampling.max_tokens)

    return ask


def _read_reply(rollout: Rollout, max_tokens: int) -> tuple[str | None, str]:
    """Return a reply without its reasoning, or None and the reason."""
    if rollout.stop_reason == "length":
        return None, f"the reply was cut off at {max_tokens} tokens, so its end is not known"
    try:
        return remove_thought(rollout.text), ""
    except RequestError as error:
        return None, str(error)
