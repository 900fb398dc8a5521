"""The answers of the API that an engine samples, all in one continuous batch."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch

from qed.errors import QedError, is_out_of_memory
from qed.guards.out_of_memory import free_failed
from qed.models.layer_windows import count_fixed_rotation_tokens
from qed.sampling.hf import HFSampler
from qed.sampling.native.answers import Answer, Top
from qed.sampling.native.batch import DecodingBatch, require_finite
from qed.sampling.native.sampler import NativeSampler
from qed.sampling.native.sequences import SequenceId
from qed.serving.engine_jobs import Counts, Fail, GivenUp, Send
from qed.serving.engine_model import EngineModel
from qed.serving.messages import AnswerAborted, Generation, Progress
from qed.training.scoring import list_most_likely
from qed.types import Completion

GROW_SHARE = 4  # waiting answers join at once if they would be at least 1 in 4 of the rows,
JOIN_SHARE = 10  # else so rarely that joining takes at most 1/10 of the time: it copies the KV cache of all rows
PREFILL_TOKENS = 32_768  # the most tokens of prompts that join together; more would delay the running answers
PADDING = 1.5  # padded tokens per actual token in a chunk of these prompts
STREAM_SECONDS = 0.05  # between two messages of a streamed answer


@dataclass
class _Running:
    """A running answer: its id in the batch, its request, and the number of its tokens that have been sent."""

    id: SequenceId
    generation: Generation
    sent: int = 0


class Answers:
    """The answers of the API, each with its own parameters, in one continuous batch.

    Waiting answers join in order, as many as rows and memory allow.

    Args:
        model: the model of the engine.
        counts: the counts of the engine, which are kept up to date.
        send: sends a reply to a call.
        fail: sends the reason for a call's failure.
        on_hf_step: called between two steps of the hf sampler, which samples a batch to its end.
    """

    def __init__(
        self, model: EngineModel, counts: Counts, send: Send, fail: Fail, on_hf_step: Callable[[], None]
    ) -> None:
        self.model, self.counts, self.send, self.fail = model, counts, send, fail
        self.on_hf_step = on_hf_step
        self.sampler = model.build_sampler()
        self.limit = count_fixed_rotation_tokens(model.model.config)
        self.rows = model.source.rows_per_batch  # reduced after an out-of-memory error
        self.waiting: deque[tuple[int, Generation]] = deque()
        self.running: dict[int, _Running] = {}
        self.batch: DecodingBatch | None = None
        self.joined, self.join_seconds = 0.0, 0.0  # when answers last joined, and how long that took
        self.told = 0.0  # when streamed tokens were last sent

    def add(self, call: int, generation: Generation) -> None:
        """Queue an answer.

        Raises:
            UsageError: it can never be sampled.
        """
        sampling = generation.sampling
        self.model.require_valid(sampling, [generation.seed], generation.ends or ())
        self.model.require_fitting(generation.prompt, sampling.max_tokens)
        self.waiting.append((call, generation))

    def abort(self, call: int) -> bool:
        """Abort a waiting or running answer; return whether there was one."""
        before = len(self.waiting)
        self.waiting = deque(pair for pair in self.waiting if pair[0] != call)
        running = self.running.pop(call, None)
        if running is not None and self.batch is not None:
            self.batch.abort([running.id])
        found = running is not None or len(self.waiting) < before
        self.counts.aborted += found
        return found

    def abort_running(self, reason: str) -> None:
        """Abort all running answers."""
        for call in list(self.running):
            self.abort(call)
            self.fail(call, AnswerAborted(reason))
        self.release()

    def release(self) -> None:
        """Free the batch, which holds memory and copies of weights; call it only while nothing runs."""
        self.batch = None

    @torch.no_grad()
    def advance(self, admit: bool) -> None:
        """Let answers join, or decode a step; send new tokens. A failure ends the running answers, not the engine."""
        try:
            chosen = self._choose() if admit else []
            if chosen and self._needs_hf(chosen[0][1]):
                self._sample_with_hf(chosen)
                return
            if chosen:
                self._join(chosen)
            elif self.batch is not None and self.running:
                self.batch.step()
                self.counts.steps += 1
            self._send_news()
        except Exception as error:
            if self.is_fatal(error):
                raise
            self._give_up(error)

    def is_fatal(self, error: Exception) -> bool:
        """Return whether the device has failed and cannot compute any more."""
        return self.model.device.type == "cuda" and isinstance(error, RuntimeError) and not is_out_of_memory(error)

    def _give_up(self, error: Exception) -> None:
        """After an out-of-memory error, queue answers again unless tokens were already sent; fail the others."""
        retry = is_out_of_memory(error) and len(self.running) > 1
        if retry:
            self.rows = max(1, len(self.running) // 2)
        for call, running in reversed(self.running.items()):
            if retry and not running.sent:
                self.waiting.appendleft((call, running.generation))
            else:
                self.fail(call, error)
        self.running.clear()
        self.release()
        error.__traceback__ = None  # its frames hold the failed step's tensors
        free_failed()

    def _needs_hf(self, generation: Generation) -> bool:
        """Return whether only the hf sampler can sample an answer."""
        native = isinstance(self.sampler, NativeSampler)
        return not native or len(generation.prompt) + generation.sampling.max_tokens > self.limit

    def _choose(self) -> list[tuple[int, Generation]]:
        """Take the answers that join now from the waiting ones, in order."""
        if not self.waiting or not self._may_join():
            return []
        first = self.waiting[0][1]
        if self._needs_hf(first):
            return [] if self.running else self._take_alike(first)
        longest = max((_count_columns(running.generation) for running in self.running.values()), default=0)
        batch = self._start_batch()
        chosen: list[tuple[int, Generation]] = []
        prompts = 0
        while self.waiting:
            generation = self.waiting[0][1]
            longest, prompts = max(longest, _count_columns(generation)), prompts + len(generation.prompt)
            fitting = min(self.rows, batch.count_fitting(longest))
            full = len(self.running) + len(chosen) >= fitting or (chosen and prompts > PREFILL_TOKENS)
            if self._needs_hf(generation) or full:
                break
            chosen.append(self.waiting.popleft())
        return chosen

    def _may_join(self) -> bool:
        many = len(self.waiting) * GROW_SHARE >= len(self.waiting) + len(self.running)
        return many or time.monotonic() - self.joined >= JOIN_SHARE * self.join_seconds

    def _take_alike(self, first: Generation) -> list[tuple[int, Generation]]:
        """Take the waiting answers that the hf sampler can sample together with the first one."""
        alike = [
            pair
            for pair in self.waiting
            if self._needs_hf(pair[1]) and (pair[1].sampling, pair[1].ends) == (first.sampling, first.ends)
        ][: self.rows]
        calls = {call for call, _ in alike}
        self.waiting = deque(pair for pair in self.waiting if pair[0] not in calls)
        return alike

    def _start_batch(self) -> DecodingBatch:
        if self.batch is None:
            assert isinstance(self.sampler, NativeSampler)
            self.batch = self.sampler.start_batch(int(min(self.model.window, self.limit)))
        return self.batch

    def _join(self, chosen: list[tuple[int, Generation]]) -> None:
        """Compute the prompts of answers, identical ones once, and their first tokens."""
        begun = time.monotonic()
        numbers: dict[tuple[int, ...], int] = {}
        answers: dict[SequenceId, Answer] = {}
        for call, generation in chosen:
            each = (numbers.setdefault(tuple(generation.prompt), call), call)
            self.running[call] = _Running(each, generation)
            answers[each] = Answer(
                generation.prompt,
                generation.seed,
                generation.sampling,
                ends=generation.ends,
                top=generation.top_logps,
            )
        # Short prompts first, with identical ones adjacent, so that chunks of them have little padding.
        ordered = sorted(answers.items(), key=lambda pair: (len(pair[1].prompt), pair[0]))
        self._start_batch().schedule(dict(ordered), PADDING)
        self.counts.steps += 1
        self.counts.prompt_tokens += sum(len(generation.prompt) for _, generation in chosen)
        self.joined = time.monotonic()
        self.join_seconds = self.joined - begun

    def _send_news(self) -> None:
        """Send finished answers, and at intervals the new tokens of streamed ones."""
        assert self.batch is not None or not self.running
        if self.batch is None:
            return
        for each, completion in self.batch.pop_finished().items():
            top = self.batch.tops.pop(each, [])
            running = self.running.pop(each[1])
            try:
                require_finite(completion)
            except QedError as error:
                self.fail(each[1], error)
                continue
            self._send_rest(each[1], completion, top, running.sent)
        now = time.monotonic()
        if now - self.told >= STREAM_SECONDS:
            self.told = now
            self._send_streamed(self.batch)

    def _send_rest(self, call: int, completion: Completion, top: list[Top], sent: int) -> None:
        tokens, logps = completion.tokens, completion.logps
        self.counts.finished += 1
        self.counts.generated_tokens += len(tokens)
        rest = tuple(tokens[sent:]), tuple(logps[sent:]), top[sent : len(tokens)]
        self.send(call, Progress(*rest, completion.stop_reason, self.model.version))

    def _send_streamed(self, batch: DecodingBatch) -> None:
        streamed = {running.id: running.sent for running in self.running.values() if running.generation.stream}
        for each, (tokens, logps) in batch.read_new(streamed).items():
            if not all(map(math.isfinite, logps)):
                continue  # its failure is sent when it ends
            running = self.running[each[1]]
            first, running.sent = running.sent, running.sent + len(tokens)
            top = batch.tops.get(each, [])[first : running.sent]
            self.send(each[1], Progress(tokens, logps, top, version=self.model.version))

    def _sample_with_hf(self, chosen: list[tuple[int, Generation]]) -> None:
        """Sample answers with equal parameters by `model.generate`, to their end."""
        first = chosen[0][1]
        ends = self.model.ends if first.ends is None else first.ends
        self.running = {call: _Running((call, call), generation) for call, generation in chosen}
        sampler = HFSampler(self.model.model, self.model.tokenizer, ends, self.rows, self.model.precision)
        sampler.on_step = self._watch_hf
        prompts, seeds = [each.prompt for _, each in chosen], [[each.seed] for _, each in chosen]
        for (call, generation), (completion,) in zip(
            chosen, sampler.generate(prompts, seeds, first.sampling), strict=True
        ):
            if self.running.pop(call, None) is not None:
                self.counts.prompt_tokens += len(generation.prompt)
                self._send_rest(call, completion, self._list_top(generation, completion), 0)

    def _watch_hf(self) -> None:
        self.counts.steps += 1
        self.on_hf_step()
        if not self.running:
            raise GivenUp("All answers were aborted.")

    def _list_top(self, generation: Generation, completion: Completion) -> list[Top]:
        if not generation.top_logps:
            return []
        temperature = generation.sampling.temperature or 1.0
        rows = generation.prompt, completion.tokens, temperature, generation.top_logps
        return list_most_likely(self.model.model, *rows, self.model.precision)


def _count_columns(generation: Generation) -> int:
    return len(generation.prompt) + generation.sampling.max_tokens
