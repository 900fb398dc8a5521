"""The native sampler: a decoding loop with continuous batching that reads the weights of the learner's model directly.

Every prompt is computed once for all of its completions. A finished sequence makes room for a waiting one. Stop strings
are searched every few tokens, because tokens after one are simply cut off.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from qed import host
from qed.errors import Diverged
from qed.guards.signals import check_signals
from qed.models.layer_windows import compute_layer_windows, count_fixed_rotation_tokens, is_known_family
from qed.sampling.base import Sampling
from qed.sampling.device_memory import count_weight_bytes
from qed.sampling.draw import draw_tokens, shape_logits
from qed.sampling.hf import HFSampler, completes_stop, find_stop_ids, prepare_for_sampling
from qed.sampling.native.cuda_graphs import with_cuda_graphs
from qed.sampling.native.decoder import choose_decoder
from qed.sampling.native.kv_cache import count_token_bytes
from qed.sampling.native.prefill import chunk_prompts, prefill
from qed.sampling.native.sequences import RETURNED, SequenceId, Sequences, new_sequences, pack_sequences
from qed.sampling.native.shared_prefix import SharedPrefix
from qed.sampling.recorder import SupportRecorder
from qed.types import Completion

REFILL_SHARE = 4  # waiting sequences are scheduled when at least 1 in 4 slots is free
# Finished rows are removed when at least 1 in so many rows has finished, by device. On CUDA this is done less often,
# because a graph must be captured again for the smaller number of rows.
COMPACT_SHARE = {"cpu": 8, "mps": 8, "cuda": 2}
SHARED_FROM = 128  # mean tokens of prompts from which on sequences share them; shorter prompts are copied
MEMORY_SHARE = 0.5  # of the memory that weights and training leave on the device, for the KV cache
STOP_EVERY = 8  # steps between two searches for stop strings
CHECK_EVERY = {"cuda": 8}  # steps between two checks for finished rows, by device: a check waits for the device


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
        longest = max(map(len, prompts), default=0) + sampling.max_tokens
        limit = count_fixed_rotation_tokens(self.model.config)
        if longest > limit:
            self.handed_over_long = (
                f"RoPE changes its frequencies beyond {limit:g} tokens, and sequences may have {longest}"
            )
            return super().generate(prompts, seeds, sampling, prefix_lengths)
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        ids = [(index, number) for index in order for number in range(len(seeds[index]))]
        completions: dict[SequenceId, Completion] = {}

        def sample_missing() -> None:
            waiting = deque(each for each in ids if each not in completions)
            self.admitted = min(self.rows_per_batch, len(waiting))
            engine = _Engine(self, prompts, seeds, sampling, prefix_lengths)
            self.admitted = min(self.admitted, engine.max_sequences)
            while waiting or engine.running is not None:
                check_signals("rollout")
                free = engine.max_sequences - engine.unfinished
                if waiting and (engine.running is None or free * REFILL_SHARE >= engine.max_sequences):
                    engine.schedule([waiting.popleft() for _ in range(min(free, len(waiting)))])
                else:
                    engine.step()
                completions.update(engine.pop_finished())

        with prepare_for_sampling(self.model, self.precision):
            self._repeat_with_fewer_rows(sample_missing)
        return [
            [completions[index, number] for number in range(len(prompt_seeds))]
            for index, prompt_seeds in enumerate(seeds)
        ]

    @torch.no_grad()
    def stream(
        self, prompt: Sequence[int], seed: int, sampling: Sampling, on_tokens: Callable[[list[int]], None]
    ) -> Completion:
        """Generate one completion, and show it while it grows; see `HFSampler.stream`."""
        if len(prompt) + sampling.max_tokens > count_fixed_rotation_tokens(self.model.config):
            return super().stream(prompt, seed, sampling, on_tokens)
        finished: dict[SequenceId, Completion] = {}
        with prepare_for_sampling(self.model, self.precision):
            engine = _Engine(self, [prompt], [[seed]], sampling, ())
            engine.schedule([(0, 0)])
            while not finished:
                check_signals("rollout")
                on_tokens(engine.read_tokens(0))
                finished = engine.pop_finished()
                if not finished:
                    engine.step()
        return finished[0, 0]


class _Engine:
    """The state of one call of `generate`: the running sequences and their KV cache."""

    def __init__(
        self,
        sampler: NativeSampler,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix_lengths: Sequence[int],
    ) -> None:
        self.model, self.tokenizer = sampler.model, sampler.tokenizer
        self.precision, self.reserved = sampler.precision, sampler.reserved
        self.max_output_lens = [sampling.max_tokens - length for length in prefix_lengths or [0] * len(prompts)]
        self.prompts, self.seeds, self.sampling = prompts, seeds, sampling
        self.device = sampler.model.device
        self.check_every = CHECK_EVERY.get(self.device.type, 1)
        self.compact_share = COMPACT_SHARE.get(self.device.type, 2)
        self.ends = torch.tensor([*sampler.ends, *find_stop_ids(sampler.tokenizer, sampling.stop)], device=self.device)
        # A stop string spans at most as many tokens as it has bytes, plus one that begins before it.
        self.tail = max((len(text.encode()) for text in sampling.stop), default=0) + 1
        self.max_sequences = min(sampler.rows_per_batch, self._compute_max_sequences())
        self.running: Sequences | None = None
        self.recorder = SupportRecorder()
        self.unfinished = 0  # sequences that had not finished at the last check
        self.steps = 0
        decode = choose_decoder(self.model, max(map(len, prompts), default=0) + sampling.max_tokens)
        self.decode = (
            decode if sampler.without_graphs else with_cuda_graphs(decode, self.device, sampler.disable_graphs)
        )
        # Whether sequences share the keys and values of their prompt; short prompts are copied for each.
        lengths = [len(prompt) for prompt, own_seeds in zip(prompts, seeds, strict=True) if len(own_seeds) > 1]
        self.shares_prefix = self.decode.shares_prefix and sum(lengths) >= SHARED_FROM * max(1, len(prompts))

    def _compute_max_sequences(self) -> int:
        """Compute how many sequences of maximum length fit into `MEMORY_SHARE` of the memory; at least 1.

        The memory is the device's total without weights and training, not what is free now, so that a run has the same
        batches whenever it is made.
        """
        cuda = self.device.type == "cuda"
        total = torch.cuda.get_device_properties(self.device).total_memory if cuda else host.total_memory()
        available = total - count_weight_bytes(self.model, self.precision) - self.reserved
        columns = max(map(len, self.prompts), default=0) + self.sampling.max_tokens
        # Under autocast values have its dtype, and keys are stored in the dtype of values.
        dtype = self.model.dtype if self.precision == torch.float32 else self.precision
        return max(1, int(available * MEMORY_SHARE / (columns * count_token_bytes(self.model.config, dtype))))

    def schedule(self, ids: Sequence[SequenceId]) -> None:
        """Prefill new sequences, sample their first tokens, and pack them with the unfinished ones."""
        parts, scores = [], []
        if self.running is not None:
            unfinished = (~self.running.finished).nonzero().flatten()
            parts.append((self.running, unfinished, unfinished))
        for chunk in chunk_prompts(ids, self.prompts):
            sequences, cache_rows, first_scores = self._prefill(chunk)
            parts.append((sequences, torch.arange(len(sequences), device=self.device), cache_rows))
            scores.append(first_scores)
        self.running = pack_sequences(self.model.config, parts)
        if self.sampling.record:
            self.recorder.start(ids)
        self.unfinished = len(self.running)
        self._append_tokens(torch.cat(scores), len(self.running) - len(ids))

    def _prefill(self, ids: Sequence[SequenceId]) -> tuple[Sequences, Tensor, Tensor]:
        """Compute the prompts of new sequences, each prompt once.

        Returns:
            the sequences, the cache row of each, and the logits of their first tokens.
        """
        indices = list(dict.fromkeys(index for index, _ in ids))
        cache, mask, logits = prefill(self.model, [self.prompts[index] for index in indices])
        row_of = {index: row for row, index in enumerate(indices)}
        owner = torch.tensor([row_of[index] for index, _ in ids], device=self.device)
        prompt_lens = [len(self.prompts[index]) for index, _ in ids]
        seeds = [self.seeds[index][number] for index, number in ids]
        max_output_lens = [self.max_output_lens[index] for index, _ in ids]
        sequences = new_sequences(ids, seeds, prompt_lens, max_output_lens, self.sampling, mask[owner], cache)
        if self.shares_prefix:
            sequences.share_prefix(SharedPrefix(cache, mask, owner))
            return sequences, torch.arange(len(sequences), device=self.device), logits[owner]
        return sequences, owner, logits[owner]

    def step(self) -> None:
        """Decode one token of every row."""
        sequences = self.running
        assert sequences is not None
        sequences.append_slot()
        last = sequences.tokens.gather(1, (sequences.output_lens - 1)[:, None]).squeeze(1)
        self._append_tokens(self.decode(sequences, last), 0)

    def read_tokens(self, row: int) -> list[int]:
        """Return the tokens of a row so far."""
        sequences = self.running
        assert sequences is not None
        tokens: list[int] = sequences.tokens[row, : int(sequences.output_lens[row])].tolist()
        return tokens

    def _append_tokens(self, scores: Tensor, first: int) -> None:
        """Sample the next token of the rows from `first` on, and mark those that finish."""
        rows = self.running
        assert rows is not None
        lengths, finished, position = rows.output_lens[first:], rows.finished[first:], rows.output_lens[first:, None]
        # A finished row is decoded until it is removed; its further tokens are written behind its end and never read.
        uniform = None
        if rows.uniforms is not None:
            uniform = rows.uniforms[first:].gather(1, position.to(rows.uniforms.device)).squeeze(1)
        logits = shape_logits(scores, self.sampling, self.ends, self._find_early(rows, first))
        chosen, logps = draw_tokens(logits, uniform)
        if self.sampling.record:
            self.recorder.append(rows.ids[first:], logits)
        rows.tokens[first:].scatter_(1, position, chosen[:, None])
        rows.logps[first:].scatter_(1, position, logps[:, None])
        lengths += ~finished
        finished |= (chosen[:, None] == self.ends).any(1) | (lengths >= rows.max_output_lens[first:])
        self.steps += 1
        if self.sampling.stop and self.steps % STOP_EVERY == 0:
            self._check_stop_strings()

    def _find_early(self, rows: Sequences, first: int) -> Tensor | None:
        """Return which rows from `first` on may not end yet, [R, 1] bool; None if `min_tokens` is 0."""
        if not self.sampling.min_tokens:
            return None
        return (rows.output_lens[first:] < self._compute_min_output_lens(rows.max_output_lens[first:]))[:, None]

    def _compute_min_output_lens(self, max_output_lens: Tensor) -> Tensor:
        """Return how many tokens must be sampled before the end: `min_tokens` without those that are given."""
        return max_output_lens - self.sampling.max_tokens + self.sampling.min_tokens

    def _check_stop_strings(self) -> None:
        sequences = self.running
        assert sequences is not None
        lengths, finished = sequences.output_lens.tolist(), sequences.finished.tolist()
        for row, length in enumerate(lengths):
            if not finished[row] and self._find_stop(row, length) is not None:
                sequences.finished[row] = True

    def _find_stop(self, row: int, output_len: int) -> int | None:
        """Return how many tokens of a row reach the end of its first stop string; None if there is none."""
        sequences = self.running
        assert sequences is not None
        if self.sampling.min_tokens:
            least = int(self._compute_min_output_lens(sequences.max_output_lens[row]))
            sequences.checked[row] = max(sequences.checked[row], min(least, output_len))
        begin = max(0, sequences.checked[row] - self.tail)
        tokens = sequences.tokens[row, :output_len].tolist()
        text = self.tokenizer.decode(tokens[begin:], skip_special_tokens=False)
        if any(stop in text for stop in self.sampling.stop):
            for length in range(sequences.checked[row] + 1, output_len + 1):
                window = tokens[max(0, length - self.tail) : length]
                tail = self.tokenizer.decode(window, skip_special_tokens=False)
                found = any(stop in tail for stop in self.sampling.stop)
                # The first tokens may hold a stop string, which does not count.
                early = self.sampling.min_tokens > 0
                if found and (not early or completes_stop(self.tokenizer, window, self.sampling.stop)):
                    return length
        sequences.checked[row] = output_len
        return None

    def pop_finished(self) -> dict[SequenceId, Completion]:
        """Return the completions that have finished since the last check; remove their rows if they are many."""
        sequences = self.running
        if sequences is None or self.steps % self.check_every:
            return {}
        finished = sequences.finished.nonzero().flatten().tolist()
        self.unfinished = len(sequences) - len(finished)
        new = [row for row in finished if sequences.ids[row] != RETURNED]
        completions = dict(zip([sequences.ids[row] for row in new], self._build_completions(new), strict=True))
        for row in new:
            sequences.ids[row] = RETURNED
        if self.unfinished == 0:
            self.running = None
        elif len(finished) * self.compact_share >= len(sequences):
            sequences.compact()
        return completions

    def _build_completions(self, rows: Sequence[int]) -> list[Completion]:
        sequences = self.running
        assert sequences is not None
        lengths = sequences.output_lens[rows].tolist()
        tokens, logps = sequences.tokens[rows].tolist(), sequences.logps[rows].tolist()
        ends = set(self.ends.tolist())
        completions = []
        for row, output_len, row_tokens, row_logps in zip(rows, lengths, tokens, logps, strict=True):
            stop = self._find_stop(row, output_len) if self.sampling.stop else None
            ended = stop is not None or row_tokens[output_len - 1] in ends
            length = output_len if stop is None else stop
            if not all(map(math.isfinite, row_logps[:length])):
                raise Diverged("The model's log-probs are not finite any more: its last update has broken it.")
            row_tokens, row_logps = row_tokens[:length], row_logps[:length]
            support = self.recorder.finish(sequences.ids[row], length)
            completions.append(Completion(tuple(row_tokens), tuple(row_logps), "stop" if ended else "length", support))
        return completions


def make(model: Any, tokenizer: Any, ends: Sequence[int], rows_per_batch: int, precision: torch.dtype) -> HFSampler:
    """Build this sampler, or the hf sampler for a model that it does not support."""
    reason = explain_handover(model)
    kind = NativeSampler if reason is None else HFSampler
    sampler = kind(model, tokenizer, ends, rows_per_batch, precision)
    sampler.handed_over = reason
    return sampler
