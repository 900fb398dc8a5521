"""The reference sampler: transformers' `model.generate` on the learner's own model.

It is designed for correctness, and the native sampler is tested against it. Log-probs are those of the distribution
sampled from, in float32 or float64, at the sampling temperature. For random numbers see `draw.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from qed.errors import Diverged, QedError
from qed.guards.out_of_memory import call_if_it_fits
from qed.guards.signals import check_signals
from qed.models.precision import compute_in
from qed.randomness import draw_uniforms
from qed.sampling.base import PromptBatch, Sampling
from qed.sampling.draw import draw_tokens, shape_logits
from qed.sampling.recorder import SupportRecorder
from qed.types import Completion


class HFSampler:
    """Samples with `model.generate`.

    Args:
        model: shared with the learner, so loading weights copies nothing.
        tokenizer: decodes the end of a sequence to find stop strings.
        ends: all token ids that end a sequence.
        rows_per_batch: maximum number of sequences in a batch.
        precision: precision of the computation.
    """

    handed_over: str | None = None  # why this sampler is used instead of the native one
    reserved: int = 0  # bytes on the model's device that training needs besides the weights
    admitted: int = 0  # number of sequences in the current batch
    repeats: bool = True  # whether to retry with fewer sequences when memory runs out
    on_step: Callable[[], None] | None = None  # called after every step of `model.generate`; may raise to stop it
    on_fewer_rows: Callable[[int], None] | None = None  # called with a smaller `rows_per_batch`, after memory ran out

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        ends: Sequence[int],
        rows_per_batch: int = 128,
        precision: torch.dtype = torch.float32,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.ends = tuple(ends)
        self.rows_per_batch = rows_per_batch
        self.precision = precision

    @property
    def exact_logps(self) -> bool:
        """Return whether it computes in float32 or float64.

        In half precision or TF32, rounding depends on the batch's shape.
        """
        exact = torch.get_float32_matmul_precision() == "highest"
        return self.precision == torch.float64 or (exact and self.precision == torch.float32)

    def load(self, weights: nn.Module, version: int) -> None:
        """Use these weights for sampling from now on: the learner's model itself, without a copy."""
        self.model = weights

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix_lengths: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """Generate one completion for each seed of each prompt, in batches of similar length; see `Sampler`."""
        requests = list(PromptBatch(prompts, seeds, sampling, prefix_lengths).list_prompts())
        rows = [(request, seed) for request in requests for seed in request.seeds]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row][0].prompt))
        completions: list[Completion | None] = [None] * len(rows)

        def sample_missing() -> None:
            # `model.generate` has one maximum length per batch, so rows with different limits go to different batches.
            for most in sorted({request.sampling.max_tokens for request in requests}):
                missing = [
                    row for row in order if rows[row][0].sampling.max_tokens == most and completions[row] is None
                ]
                for start in range(0, len(missing), self.rows_per_batch):
                    batch = missing[start : start + self.rows_per_batch]
                    self.admitted = len(batch)
                    batch_prompts, batch_seeds = [rows[r][0].prompt for r in batch], [rows[r][1] for r in batch]
                    sampled = self._generate_batch(batch_prompts, batch_seeds, rows[batch[0]][0].sampling)
                    for row, completion in zip(batch, sampled, strict=True):
                        completions[row] = completion

        with prepare_for_sampling(self.model, self.precision):
            self._repeat_with_fewer_rows(sample_missing)
        in_order = iter([completion for completion in completions if completion is not None])
        return [[next(in_order) for _ in prompt_seeds] for prompt_seeds in seeds]

    def _repeat_with_fewer_rows(self, sample_missing: Callable[[], None]) -> None:
        """Sample the missing completions, halving the number of sequences at a time whenever memory runs out.

        Raises:
            QedError: a single sequence does not fit.
        """
        if not self.repeats:
            return sample_missing()
        while not call_if_it_fits(sample_missing):
            self.take_fewer_rows()

    def take_fewer_rows(self) -> None:
        """Sample half as many sequences at a time from now on, because memory has run out.

        Raises:
            QedError: a single sequence does not fit.
        """
        if self.admitted <= 1:
            raise QedError(
                "The KV cache of a single answer does not fit the device's memory. Shorter answers "
                "(sampling.max_tokens), model.precision=bfloat16 or model.dtype=bfloat16, or "
                "learner.offload_for_sampling=true need less."
            )
        self.rows_per_batch = self.admitted // 2
        if self.on_fewer_rows is not None:
            self.on_fewer_rows(self.rows_per_batch)

    @torch.no_grad()
    def stream(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, on_tokens: Callable[[list[int]], None]
    ) -> Completion:
        """Generate the completion that `generate` returns for one prompt and seed, and stream it as it grows.

        Args:
            prompt: token ids.
            seed: seed of the random numbers.
            sampling: temperature, maximum length and stop strings.
            on_tokens: called after every token with all tokens so far; it may raise to stop sampling. Tokens
                after a stop string may be among them.
        """
        with prepare_for_sampling(self.model, self.precision):
            (completion,) = self._generate_batch([prompt], [seed], sampling, on_tokens)
        return completion

    def _generate_batch(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        sampling: Sampling,
        on_tokens: Callable[[list[int]], None] | None = None,
    ) -> list[Completion]:
        device = self.model.device
        width = max(len(prompt) for prompt in prompts)
        # Pad on the left so that all rows continue at the same column; the attention mask gives the positions.
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
        attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        stop_ids = find_stop_ids(self.tokenizer, sampling.stop) if sampling.min_tokens else []
        ends = torch.tensor([*self.ends, *stop_ids], device=device)
        token_sampling = _SeededSampling(torch.tensor(seeds), sampling, ends, device)
        stopping = _StopCriteria(self.tokenizer, ends, sampling, width, len(prompts), device)
        watches = [_Watch(on_tokens, self.on_step, width)] if on_tokens or self.on_step else []
        sequences = self.model.generate(
            input_ids=ids,
            attention_mask=attention,
            generation_config=GenerationConfig(max_new_tokens=sampling.max_tokens, pad_token_id=0),
            logits_processor=LogitsProcessorList([token_sampling]),
            stopping_criteria=StoppingCriteriaList([stopping, *watches]),
        )
        tokens = sequences[:, width:].tolist()
        token_logps = torch.stack(token_sampling.logps, 1)
        if not bool(token_logps.isfinite().all()):
            raise Diverged("The model's log-probs are not finite any more: its last update has broken it.")
        logps = token_logps.tolist()
        lengths = stopping.lengths.tolist()
        return [
            Completion(
                tuple(t[: n or None]),
                tuple(lp[: n or len(t)]),
                "stop" if n else "length",
                token_sampling.recorder.finish(row, n or len(t)),
            )
            for row, (t, lp, n) in enumerate(zip(tokens, logps, lengths, strict=True))
        ]


def find_stop_ids(tokenizer: Any, stop: Sequence[str]) -> list[int]:
    """Return the added tokens that contain a complete stop string, such as </answer>; they end a sequence."""
    if not stop:
        return []
    return [number for text, number in tokenizer.get_added_vocab().items() if any(string in text for string in stop)]


def completes_stop(tokenizer: Any, tokens: Sequence[int], stop: Sequence[str]) -> bool:
    """Return whether the last token completes a stop string that the preceding tokens do not contain."""
    text, before = (tokenizer.decode(part, skip_special_tokens=False) for part in (tokens, tokens[:-1]))
    return any(text.count(string) > before.count(string) for string in stop)


@contextmanager
def prepare_for_sampling(model: Any, precision: torch.dtype) -> Iterator[None]:
    """Set a model to evaluation mode and a precision, without its own generation defaults such as top-p."""
    training, generation_config = model.training, model.generation_config
    model.eval()
    model.generation_config = GenerationConfig()
    try:
        with compute_in(model.device.type, precision):
            yield
    finally:
        model.generation_config = generation_config
        model.train(training)


class _SeededSampling(LogitsProcessor):  # type: ignore[misc]
    """Samples each row's next token by its seed, records the log-prob, and masks all other tokens for `generate`."""

    def __init__(self, seeds: Tensor, sampling: Sampling, ends: Tensor, device: torch.device) -> None:
        self.sampling, self.ends = sampling, ends
        # MPS has no float64, so there the tokens are sampled on the CPU.
        place = torch.device("cpu") if device.type == "mps" else device
        self.uniforms = draw_uniforms(seeds, sampling.max_tokens).to(place) if sampling.temperature > 0 else None
        self.logps: list[Tensor] = []
        self.recorder = SupportRecorder()
        if sampling.record:
            self.recorder.start(range(len(seeds)))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        check_signals("rollout")
        position = len(self.logps)
        uniform = None if self.uniforms is None else self.uniforms[:, position]
        early = scores.new_ones(len(scores), 1, dtype=torch.bool) if position < self.sampling.min_tokens else None
        logits = shape_logits(scores, self.sampling, self.ends, early)
        chosen, logps = draw_tokens(logits, uniform)
        self.logps.append(logps)
        if self.sampling.record:
            self.recorder.append(range(len(logits)), logits)
        return torch.full_like(scores, -torch.inf).scatter_(-1, chosen[:, None], 0.0)


class _StopCriteria(StoppingCriteria):  # type: ignore[misc]
    """Ends a row at its first end id or stop string, and records its length without padding."""

    def __init__(
        self, tokenizer: Any, ends: Tensor, sampling: Sampling, width: int, rows: int, device: torch.device
    ) -> None:
        self.tokenizer = tokenizer
        self.ends = ends
        self.stop, self.min_tokens = sampling.stop, sampling.min_tokens
        self.width = width
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        # A stop string spans at most as many tokens as it has bytes, plus one that begins before it.
        self.tail = max((len(text.encode()) for text in self.stop), default=0) + 1

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        done = torch.isin(input_ids[:, -1], self.ends)
        length = input_ids.shape[1] - self.width
        if self.stop and length > self.min_tokens:
            running = (self.lengths == 0).nonzero().flatten()
            rows = input_ids[running, max(self.width, input_ids.shape[1] - self.tail) :]
            texts = self.tokenizer.batch_decode(rows, skip_special_tokens=False)
            hit = [any(text in tail for text in self.stop) for tail in texts]
            if self.min_tokens:
                # A stop string within the first `min_tokens` tokens does not count.
                new = [completes_stop(self.tokenizer, row, self.stop) for row in rows.tolist()]
                hit = [one and other for one, other in zip(hit, new, strict=True)]
            done[running] |= torch.tensor(hit, device=done.device)
        self.lengths[done & (self.lengths == 0)] = length
        return self.lengths > 0


class _Watch(StoppingCriteria):  # type: ignore[misc]
    """Calls the callbacks after every step, with the first row's tokens; never stops generation."""

    def __init__(
        self, on_tokens: Callable[[list[int]], None] | None, on_step: Callable[[], None] | None, width: int
    ) -> None:
        self.on_tokens, self.on_step, self.width = on_tokens, on_step, width

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        if self.on_step is not None:
            self.on_step()
        if self.on_tokens is not None:
            self.on_tokens(input_ids[0, self.width :].tolist())
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)


make = HFSampler
