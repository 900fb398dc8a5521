"""The reference sampler: `model.generate` over the learner's own model. Correct first; the fast engine is measured
against it.

Log-probs are those of the distribution that was sampled from, in float32, at the sampling temperature. Draws are made
by inverting the cumulative distribution at a number that belongs to the answer's seed and the token's position, so an
answer does not depend on which others share its batch, except where rounding decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from qed.errors import Diverged
from qed.guards.signals import check_signals
from qed.randomness import draw_uniforms
from qed.sampling.base import Sampling
from qed.sampling.draw import draw_tokens
from qed.types import Completion


class HFSampler:
    """Samples with `model.generate`.

    Args:
        model: shared with the learner, so loading weights copies nothing.
        tokenizer: decodes the tail of an answer to find stop strings.
        ends: the ids that end an answer, all of them.
        rows_per_batch: answers generated side by side.
        precision: of the computation.
    """

    handed_over: str | None = None  # why this sampler answers in place of the native one
    reserved: int = 0  # bytes on the model's device that its training takes beside the weights

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
        """In float32 alone: in half precision, or with TF32, a token's rounding depends on the shape of its batch."""
        exact = torch.get_float32_matmul_precision() == "highest"
        return exact and self.precision in (torch.float32, torch.float64)

    def load(self, weights: nn.Module, version: int) -> None:
        """Answer from these weights from now on; the learner's own model is read where it lies."""
        self.model = weights

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        given: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """For each prompt as many answers as it has seeds, rows of like length side by side."""
        rows = [(which, seed) for which, own in enumerate(seeds) for seed in own]
        room = [sampling.max_tokens - begun for begun in given or [0] * len(prompts)]
        order = sorted(range(len(rows)), key=lambda row: len(prompts[rows[row][0]]))
        found: list[Completion | None] = [None] * len(rows)
        with prepare_for_sampling(self.model, self.precision):
            # Rows that may still grow by different lengths are apart: `model.generate` has one bound for all of them.
            for length in sorted(set(room)):
                alike = [row for row in order if room[rows[row][0]] == length]
                for start in range(0, len(alike), self.rows_per_batch):
                    part = alike[start : start + self.rows_per_batch]
                    asked, own = [prompts[rows[r][0]] for r in part], [rows[r][1] for r in part]
                    sampled = self._batch(asked, own, replace(sampling, max_tokens=length))
                    for row, answer in zip(part, sampled, strict=True):
                        found[row] = answer
        answers = iter([answer for answer in found if answer is not None])
        return [[next(answers) for _ in own] for own in seeds]

    def _batch(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], sampling: Sampling) -> list[Completion]:
        device = self.model.device
        width = max(len(prompt) for prompt in prompts)
        # Padded on the left, so that all rows go on at the same column; the attention mask gives the positions.
        ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device)
        attention = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
        drawing = _AddressedSampling(torch.tensor(seeds), sampling, device)
        ending = _StopCriteria(self.tokenizer, self.ends, sampling.stop, width, len(prompts), device)
        sequences = self.model.generate(
            input_ids=ids,
            attention_mask=attention,
            generation_config=GenerationConfig(max_new_tokens=sampling.max_tokens, pad_token_id=0),
            logits_processor=LogitsProcessorList([drawing]),
            stopping_criteria=StoppingCriteriaList([ending]),
        )
        tokens = sequences[:, width:].tolist()
        drawn = torch.stack(drawing.logps, 1)
        if not bool(drawn.isfinite().all()):
            raise Diverged("The model's log-probs are not finite any more: its last update has broken it.")
        logps = drawn.tolist()
        lengths = ending.lengths.tolist()
        return [
            Completion(tuple(t[: n or None]), tuple(lp[: n or len(t)]), "stop" if n else "length")
            for t, lp, n in zip(tokens, logps, lengths, strict=True)
        ]


@contextmanager
def prepare_for_sampling(model: Any, precision: torch.dtype) -> Iterator[None]:
    """A model in evaluation mode, without the sampling habits of its own configuration (such as top-p)."""
    training, habits = model.training, model.generation_config
    model.eval()
    model.generation_config = GenerationConfig()
    try:
        with torch.autocast(model.device.type, dtype=precision, enabled=precision != torch.float32):
            yield
    finally:
        model.generation_config = habits
        model.train(training)


class _AddressedSampling(LogitsProcessor):  # type: ignore[misc]
    """Draws each row's next token by its own address, keeps its log-prob, and leaves generate no other choice."""

    def __init__(self, seeds: Tensor, sampling: Sampling, device: torch.device) -> None:
        self.sampling = sampling
        # Apple's devices have no float64, so there the draw itself is made on the CPU.
        place = torch.device("cpu") if device.type == "mps" else device
        self.draws = draw_uniforms(seeds, sampling.max_tokens).to(place) if sampling.temperature > 0 else None
        self.logps: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        check_signals("rollout")
        uniform = None if self.draws is None else self.draws[:, len(self.logps)]
        chosen, logps = draw_tokens(scores, uniform, self.sampling)
        self.logps.append(logps)
        return torch.full_like(scores, -torch.inf).scatter_(-1, chosen[:, None], 0.0)


class _StopCriteria(StoppingCriteria):  # type: ignore[misc]
    """Ends a row at its first end id or stop string and keeps its length, so that padding is never read as an
    answer."""

    def __init__(
        self, tokenizer: Any, ends: Sequence[int], stop: tuple[str, ...], width: int, rows: int, device: torch.device
    ) -> None:
        self.tokenizer = tokenizer
        self.ends = torch.tensor(ends, device=device)
        self.stop = stop
        self.width = width
        self.lengths = torch.zeros(rows, dtype=torch.int64, device=device)
        # A stop string spans at most as many tokens as it has bytes; one more may begin before it.
        self.tail = max((len(text.encode()) for text in stop), default=0) + 1

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        done = torch.isin(input_ids[:, -1], self.ends)
        if self.stop:
            going = (self.lengths == 0).nonzero().flatten()
            begin = max(self.width, input_ids.shape[1] - self.tail)
            texts = self.tokenizer.batch_decode(input_ids[going, begin:], skip_special_tokens=False)
            hit = [any(text in tail for text in self.stop) for tail in texts]
            done[going] |= torch.tensor(hit, device=done.device)
        self.lengths[done & (self.lengths == 0)] = input_ids.shape[1] - self.width
        return self.lengths > 0


make = HFSampler
