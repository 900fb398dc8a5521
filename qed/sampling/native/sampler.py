"""The fast sampler: a decoding loop of our own over the learner's model, read where it lies.

Every prompt is computed once for all of its answers, an answer that is done leaves its place to the next, and stop
strings are looked for every few tokens, because what was drawn behind one is simply cut off.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from qed import host
from qed.errors import Diverged
from qed.guards.signals import check_signals
from qed.models.layer_windows import compute_layer_windows, count_fixed_rotation_tokens, is_known_family
from qed.sampling.base import Sampling
from qed.sampling.device_memory import count_weight_bytes
from qed.sampling.draw import draw_tokens
from qed.sampling.hf import HFSampler, prepare_for_sampling
from qed.sampling.native.cuda_graphs import with_cuda_graphs
from qed.sampling.native.decoder import choose_decoder
from qed.sampling.native.kv_cache import count_token_bytes
from qed.sampling.native.prefill import chunk_prompts, prefill
from qed.sampling.native.sequences import RETURNED, Place, Sequences, new_sequences, pack_sequences
from qed.sampling.native.shared_prefix import SharedPrefix
from qed.types import Completion

REFILL_SHARE = 4  # new rows are let in when one in so many places is free
# Rows that are done make room when they are one in so many, by device: where a step is a graph, fewer rows are another.
COMPACT_SHARE = {"cpu": 8, "mps": 8, "cuda": 2}
SHARED_FROM = 128  # tokens of a prompt that are not copied for each of its answers
MEMORY_SHARE = 0.5  # of the memory that weights and training leave on the device, what keys and values may take
STOP_EVERY = 8  # tokens between two looks for stop strings
CHECK_EVERY = {"cuda": 8}  # tokens between two looks for rows that are done, by device: a look waits for the device


def explain_handover(model: Any) -> str | None:
    """Why a model is sampled by the reference and not by the loop; None where the loop knows its attention."""
    kind, implementation = model.config.get_text_config(decoder=True).model_type, model.config._attn_implementation
    if implementation not in {"sdpa", "eager"}:
        return f"its attention is computed by {implementation}"
    if not is_known_family(model.config):
        return f"nothing is known of the attention of the family {kind}"
    if compute_layer_windows(model.config) is None:
        return "some of its layers have neither full nor sliding attention"
    return None


class NativeSampler(HFSampler):
    """The reference sampler with a loop of its own in place of `model.generate`."""

    without_graphs: str | None = None  # why a step cannot be a graph of the device, once that is known
    handed_over_long: str | None = None  # why answers of some lengths are left to the reference, once there were such

    def disable_graphs(self, why: str) -> None:
        """Make no graph from now on."""
        self.without_graphs = why

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        given: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """For each prompt as many answers as it has seeds, prompts of like length side by side."""
        longest = max(map(len, prompts), default=0) + sampling.max_tokens
        limit = count_fixed_rotation_tokens(self.model.config)
        if longest > limit:
            self.handed_over_long = (
                f"positions are rotated otherwise beyond {limit:g} tokens, and there may be {longest}"
            )
            return super().generate(prompts, seeds, sampling, given)
        order = sorted(range(len(prompts)), key=lambda which: len(prompts[which]))
        waiting = deque((which, number) for which in order for number in range(len(seeds[which])))
        found: dict[Place, Completion] = {}
        with prepare_for_sampling(self.model, self.precision):
            loop = _Loop(self, prompts, seeds, sampling, given)
            while waiting or loop.rows is not None:
                check_signals("rollout")
                free = loop.most - loop.live
                if waiting and (loop.rows is None or free * REFILL_SHARE >= loop.most):
                    loop.schedule([waiting.popleft() for _ in range(min(free, len(waiting)))])
                else:
                    loop.step()
                found.update(loop.pop_finished())
        return [[found[which, number] for number in range(len(own))] for which, own in enumerate(seeds)]


class _Loop:
    """The state of one call: the rows being written, and the columns of keys and values behind them."""

    def __init__(
        self,
        sampler: NativeSampler,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        given: Sequence[int],
    ) -> None:
        self.model, self.tokenizer = sampler.model, sampler.tokenizer
        self.precision, self.reserved = sampler.precision, sampler.reserved
        self.room = [sampling.max_tokens - begun for begun in given or [0] * len(prompts)]
        self.prompts, self.seeds, self.sampling = prompts, seeds, sampling
        self.device = sampler.model.device
        self.check_every = CHECK_EVERY.get(self.device.type, 1)
        self.compact_share = COMPACT_SHARE.get(self.device.type, 2)
        self.ends = torch.tensor([*sampler.ends, *_find_stop_ids(sampler.tokenizer, sampling.stop)], device=self.device)
        # A stop string spans at most as many tokens as it has bytes; one more may begin before it.
        self.tail = max((len(text.encode()) for text in sampling.stop), default=0) + 1
        self.most = min(sampler.rows_per_batch, self._max_rows())
        self.rows: Sequences | None = None
        self.live = 0  # the answers that were not finished at the last look
        self.steps = 0
        decode = choose_decoder(self.model, max(map(len, prompts), default=0) + sampling.max_tokens)
        self.decode = (
            decode if sampler.without_graphs else with_cuda_graphs(decode, self.device, sampler.disable_graphs)
        )
        # Whether answers read their prompt's keys and values where they lie; a short prompt is copied for each.
        answered = [len(prompt) for prompt, own in zip(prompts, seeds, strict=True) if len(own) > 1]
        self.shares = self.decode.shares and sum(answered) >= SHARED_FROM * max(1, len(prompts))

    def _max_rows(self) -> int:
        """The rows whose keys and values, if all grow to their longest, take half of the memory that weights and
        training leave; at least 1.

        All memory of the device counts, not what is free, so that the rows that share a batch are the same whenever a
        run is made.
        """
        cuda = self.device.type == "cuda"
        whole = torch.cuda.get_device_properties(self.device).total_memory if cuda else host.total_memory()
        left = whole - count_weight_bytes(self.model, self.precision) - self.reserved
        columns = max(map(len, self.prompts), default=0) + self.sampling.max_tokens
        # Under autocast values are of its precision, and keys are kept as values are.
        dtype = self.model.dtype if self.precision == torch.float32 else self.precision
        return max(1, int(left * MEMORY_SHARE / (columns * count_token_bytes(self.model.config, dtype))))

    def schedule(self, places: Sequence[Place]) -> None:
        """Let new answers in, with their first token, beside those that go on."""
        parts, scores = [], []
        if self.rows is not None:
            going = (~self.rows.finished).nonzero().flatten()
            parts.append((self.rows, going, going))
        for chunk in chunk_prompts(places, self.prompts):
            new, source, first = self._prefill(chunk)
            parts.append((new, torch.arange(len(new), device=self.device), source))
            scores.append(first)
        self.rows = pack_sequences(self.model.config, parts)
        self.live = len(self.rows)
        self._append_tokens(torch.cat(scores), len(self.rows) - len(places))

    def _prefill(self, places: Sequence[Place]) -> tuple[Sequences, Tensor, Tensor]:
        """New answers, each prompt computed once: their rows, where the columns of each are, and the logits of its
        first token."""
        asked = list(dict.fromkeys(which for which, _ in places))
        cache, mask, logits = prefill(self.model, [self.prompts[which] for which in asked])
        number = {which: row for row, which in enumerate(asked)}
        owner = torch.tensor([number[which] for which, _ in places], device=self.device)
        lengths = [len(self.prompts[which]) for which, _ in places]
        seeds = [self.seeds[which][number] for which, number in places]
        room = [self.room[which] for which, _ in places]
        rows = new_sequences(places, seeds, lengths, room, self.sampling, mask[owner], cache)
        if self.shares:
            rows.share(SharedPrefix(cache, mask, owner))
            return rows, torch.arange(len(rows), device=self.device), logits[owner]
        return rows, owner, logits[owner]

    def step(self) -> None:
        """One more token for every row."""
        rows = self.rows
        assert rows is not None
        rows.append_slot()
        last = rows.tokens.gather(1, (rows.age - 1)[:, None]).squeeze(1)
        self._append_tokens(self.decode(rows, last), 0)

    def _append_tokens(self, scores: Tensor, first: int) -> None:
        """Draw the next token of the rows from `first` on, and see which of them are done."""
        rows = self.rows
        assert rows is not None
        age, finished, at = rows.age[first:], rows.finished[first:], rows.age[first:, None]
        # A finished row's last token is fed once more; what is drawn for it lands behind its end, where nobody reads.
        uniform = None if rows.draws is None else rows.draws[first:].gather(1, at.to(rows.draws.device)).squeeze(1)
        chosen, logps = draw_tokens(scores, uniform, self.sampling)
        rows.tokens[first:].scatter_(1, at, chosen[:, None])
        rows.logps[first:].scatter_(1, at, logps[:, None])
        age += ~finished
        finished |= (chosen[:, None] == self.ends).any(1) | (age >= rows.room[first:])
        self.steps += 1
        if self.sampling.stop and self.steps % STOP_EVERY == 0:
            self._check_stop_strings()

    def _check_stop_strings(self) -> None:
        rows = self.rows
        assert rows is not None
        ages, finished = rows.age.tolist(), rows.finished.tolist()
        for row, age in enumerate(ages):
            if not finished[row] and self._find_stop(row, age) is not None:
                rows.finished[row] = True

    def _find_stop(self, row: int, age: int) -> int | None:
        """How many tokens of a row reach the end of its first stop string; None where there is none."""
        rows = self.rows
        assert rows is not None
        begin = max(0, rows.checked[row] - self.tail)
        tokens = rows.tokens[row, :age].tolist()
        text = self.tokenizer.decode(tokens[begin:], skip_special_tokens=False)
        if any(stop in text for stop in self.sampling.stop):
            for length in range(rows.checked[row] + 1, age + 1):
                seen = self.tokenizer.decode(tokens[max(0, length - self.tail) : length], skip_special_tokens=False)
                if any(stop in seen for stop in self.sampling.stop):
                    return length
        rows.checked[row] = age
        return None

    def pop_finished(self) -> dict[Place, Completion]:
        """The answers that are done and not yet given; where they are many, the others close up."""
        rows = self.rows
        if rows is None or self.steps % self.check_every:
            return {}
        done = rows.finished.nonzero().flatten().tolist()
        self.live = len(rows) - len(done)
        new = [row for row in done if rows.places[row] != RETURNED]
        found = dict(zip([rows.places[row] for row in new], self._build_completions(new), strict=True))
        for row in new:
            rows.places[row] = RETURNED
        if self.live == 0:
            self.rows = None
        elif len(done) * self.compact_share >= len(rows):
            rows.compact()
        return found

    def _build_completions(self, which: Sequence[int]) -> list[Completion]:
        rows = self.rows
        assert rows is not None
        ages, tokens, logps = rows.age[which].tolist(), rows.tokens[which].tolist(), rows.logps[which].tolist()
        ends = set(self.ends.tolist())
        found = []
        for row, age, own, known in zip(which, ages, tokens, logps, strict=True):
            length = self._find_stop(row, age) if self.sampling.stop else None
            ended = length is not None or own[age - 1] in ends
            length = age if length is None else length
            if not all(map(math.isfinite, known[:length])):
                raise Diverged("The model's log-probs are not finite any more: its last update has broken it.")
            found.append(Completion(tuple(own[:length]), tuple(known[:length]), "stop" if ended else "length"))
        return found


def _find_stop_ids(tokenizer: Any, stop: Sequence[str]) -> list[int]:
    """Added tokens that hold a whole stop string, such as </answer>: they end an answer like an end id."""
    if not stop:
        return []
    return [number for text, number in tokenizer.get_added_vocab().items() if any(one in text for one in stop)]


def make(model: Any, tokenizer: Any, ends: Sequence[int], rows_per_batch: int, precision: torch.dtype) -> HFSampler:
    """This sampler, or the reference for a model whose attention it does not know."""
    reason = explain_handover(model)
    kind = NativeSampler if reason is None else HFSampler
    sampler = kind(model, tokenizer, ends, rows_per_batch, precision)
    sampler.handed_over = reason
    return sampler
