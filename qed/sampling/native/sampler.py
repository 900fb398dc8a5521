"""The native sampler: a decoding loop with continuous batching that reads the weights of the learner's model directly.

Every prompt is computed once for all of its completions. A finished sequence makes room for a waiting one. Stop strings
are searched only every few tokens, because tokens after one are simply cut off.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from qed.guards.out_of_memory import call_if_it_fits
from qed.guards.signals import check_signals
from qed.models.layer_windows import compute_layer_windows, count_fixed_rotation_tokens, is_known_family
from qed.sampling.base import PromptBatch, Sampling
from qed.sampling.hf import HFSampler, prepare_for_sampling
from qed.sampling.native.answers import Answer
from qed.sampling.native.batch import DecodingBatch, require_finite
from qed.sampling.native.kept import KeptPrefixes
from qed.sampling.native.prefill import count_common
from qed.sampling.native.sequences import SequenceId
from qed.types import Completion

REFILL_SHARE = 4  # waiting sequences are scheduled when at least 1 in 4 slots is free
SHARED_FROM = 128  # mean prompt length above which sequences share prompts; shorter ones are copied

Result = TypeVar("Result")


def explain_handover(model: Any) -> str | None:
    """Return why the native sampler does not support a model; None if it does."""
    kind, implementation = model.config.get_text_config(decoder=True).model_type, model.config._attn_implementation
    if implementation not in {"sdpa", "eager"}:
        return f"its attention is computed by {implementation}"
    if not is_known_family(model.config):
        return f"the attention of the family {kind} is not known"
    if compute_layer_windows(model.config) is None:
        return "some of its layers have neither full nor sliding attention"
    return None


class NativeSampler(HFSampler):
    """Samples with its own decoding loop in place of `model.generate`; takes the arguments of `HFSampler`."""

    without_graphs: str | None = None  # why steps cannot be CUDA graphs, once that is known
    handed_over_long: str | None = None  # why long sequences were left to the hf sampler, once there were some

    kept: KeptPrefixes | None = None  # cache of answers that may be continued

    @contextmanager
    def keep_prefixes(self) -> Iterator[None]:
        """Keep the keys and values of finished answers, so that calls in this context can continue them."""
        self.kept = KeptPrefixes()
        try:
            yield
        finally:
            self.kept = None

    def disable_graphs(self, reason: str) -> None:
        """Use no CUDA graphs from now on."""
        self.without_graphs = reason

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix_lengths: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """Generate one completion for each seed of each prompt, in order of the prompts' lengths; see `Sampler`."""
        return self.generate_batches([PromptBatch(prompts, seeds, sampling, prefix_lengths)])[0]

    @torch.no_grad()
    def generate_batches(self, batches: Sequence[PromptBatch]) -> list[list[list[Completion]]]:
        """Generate the completions of several batches at once; a prompt in several batches is computed once."""
        longest = max(batch.longest for batch in batches)
        limit = count_fixed_rotation_tokens(self.model.config)
        if longest > limit:
            self.handed_over_long = (
                f"RoPE changes its frequencies beyond {limit:g} tokens, and sequences may have {longest}"
            )
            return [super(NativeSampler, self).generate(*batch) for batch in batches]
        with prepare_for_sampling(self.model, self.precision):
            return run_to_end(self.iterate(batches))

    @torch.no_grad()
    def iterate(self, batches: Sequence[PromptBatch]) -> Generator[None, None, list[list[list[Completion]]]]:
        """Do the same as `generate_batches`, pausing after every step; the caller must prepare the model.

        Weights must not change meanwhile, and answers beyond the length at which RoPE changes are not supported.
        """
        call = _Call(self, batches)
        while call.missing:
            if not self.repeats:
                call.advance()
            elif not call_if_it_fits(call.advance):
                if self.kept is not None:
                    self.kept.retain([])
                self.take_fewer_rows()
            yield
        return [[[call.completions[each] for each in own] for own in batch] for batch in call.places]

    def start_batch(self, columns: int, share_prefixes: bool = False, beginning: int = 0) -> DecodingBatch:
        """Start a batch of sequences that have at most `columns` tokens; see `DecodingBatch`."""
        refuse = None if self.without_graphs else self.disable_graphs
        return DecodingBatch(self, columns, share_prefixes, beginning, refuse, self.kept)

    @torch.no_grad()
    def stream(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, on_tokens: Callable[[list[int]], None]
    ) -> Completion:
        """Generate one completion and stream it as it grows; see `HFSampler.stream`."""
        if len(prompt) + sampling.max_tokens > count_fixed_rotation_tokens(self.model.config):
            return super().stream(prompt, seed, sampling, on_tokens)
        finished: dict[SequenceId, Completion] = {}
        with prepare_for_sampling(self.model, self.precision):
            batch = self.start_batch(len(prompt) + sampling.max_tokens)
            batch.schedule({(0, 0): Answer(prompt, seed, sampling)})
            while not finished:
                check_signals("rollout")
                on_tokens(batch.read_tokens(0))
                finished = batch.pop_finished()
                if not finished:
                    batch.step()
        require_finite(finished[0, 0])
        return finished[0, 0]


class _Call:
    """The state of a call of `generate`: the completions so far, and the batch that produces the others."""

    def __init__(self, sampler: NativeSampler, batches: Sequence[PromptBatch]) -> None:
        self.sampler = sampler
        self.answers: dict[SequenceId, Answer] = {}
        self._indices: dict[tuple[int, ...], int] = {}  # indices of prompts
        self._counts: Counter[int] = Counter()  # number of answers to each prompt
        self.places = [self._add_answers(batch) for batch in batches]  # the ids of each prompt's answers
        prompts = {index: answer.prompt for (index, _), answer in self.answers.items()}
        self.ids = sorted(self.answers, key=lambda each: (len(prompts[each[0]]), each))
        self.columns = max(batch.longest for batch in batches)
        # Whether sequences share the keys and values of their prompt; short prompts are copied for each.
        repeated = {index for index, number in self.answers if number}
        self.shares = sum(len(prompts[index]) for index in repeated) >= SHARED_FROM * max(1, len(prompts))
        self.beginning = 0 if self.shares else count_common([*prompts.values()])
        self.completions: dict[SequenceId, Completion] = {}
        self.waiting: deque[SequenceId] = deque()
        self.batch: DecodingBatch | None = None
        if sampler.kept is not None:
            sampler.kept.retain(list(prompts.values()))

    def _add_answers(self, batch: PromptBatch) -> list[list[SequenceId]]:
        """Add the answers of a batch and return their ids; equal prompts have the same first number.

        Raises:
            ValueError: the given tokens of an answer leave no tokens to sample.
        """
        found = []
        lengths = batch.prefix_lengths or [0] * len(batch.prompts)
        for prompt, seeds, given in zip(batch.prompts, batch.seeds, lengths, strict=True):
            if seeds and given >= batch.sampling.max_tokens:
                raise ValueError(f"max_tokens is {batch.sampling.max_tokens}, but {given} tokens are already given")
            index = self._indices.setdefault(tuple(prompt), len(self._indices))
            own = [(index, self._counts[index] + number) for number in range(len(seeds))]
            self._counts[index] += len(seeds)
            self.answers |= {
                each: Answer(prompt, seed, batch.sampling, given) for each, seed in zip(own, seeds, strict=True)
            }
            found.append(own)
        return found

    @property
    def missing(self) -> bool:
        """Return whether answers are missing."""
        return len(self.completions) < len(self.ids)

    def advance(self) -> None:
        """Schedule waiting sequences or decode a step; after a failed call, start a batch with the missing ones."""
        # Only this frame refers to the batch while it computes: if that fails, its memory is freed with the frame.
        batch, self.batch = self.batch, None
        if batch is None:
            self.waiting = deque(each for each in self.ids if each not in self.completions)
            self.sampler.admitted = min(self.sampler.rows_per_batch, len(self.waiting))
            batch = self.sampler.start_batch(self.columns, self.shares, self.beginning)
        most = min(self.sampler.rows_per_batch, batch.count_fitting(self.columns))
        self.sampler.admitted = min(self.sampler.admitted, most)
        check_signals("rollout")
        free = most - batch.unfinished
        if self.waiting and (batch.running is None or free * REFILL_SHARE >= most):
            chosen = [self.waiting.popleft() for _ in range(min(free, len(self.waiting)))]
            batch.schedule({each: self.answers[each] for each in chosen})
        else:
            batch.step()
        for each, completion in batch.pop_finished().items():
            require_finite(completion)
            self.completions[each] = completion
        self.batch = batch


def run_to_end(steps: Generator[None, None, Result]) -> Result:
    """Run a generator to its end, and return what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: Result = end.value
            return result


def make(model: Any, tokenizer: Any, ends: Sequence[int], rows_per_batch: int, precision: torch.dtype) -> HFSampler:
    """Build this sampler, or the hf sampler for a model that it does not support."""
    reason = explain_handover(model)
    kind = NativeSampler if reason is None else HFSampler
    sampler = kind(model, tokenizer, ends, rows_per_batch, precision)
    sampler.handed_over = reason
    return sampler
