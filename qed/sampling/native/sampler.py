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
from qed.guards.signals import poll
from qed.models.layer_windows import fixed_rotation_tokens, is_known, layer_windows, text_config
from qed.sampling.base import Sampling
from qed.sampling.device_memory import weight_bytes
from qed.sampling.draw import drawn
from qed.sampling.hf import HFSampler, ready
from qed.sampling.native.cuda_graphs import graphed
from qed.sampling.native.decoder import decoder_of
from qed.sampling.native.kv_cache import column_bytes
from qed.sampling.native.prefill import chunk_prompts, prefill
from qed.sampling.native.sequences import GIVEN, Place, Rows, begun, packed
from qed.sampling.native.shared_prefix import Prompts
from qed.types import Completion

REFILL_SHARE = 4  # new rows are let in when one in so many places is free
# Rows that are done make room when they are one in so many, by device: where a step is a graph, fewer rows are another.
LEAVE_SHARE = {"cpu": 8, "mps": 8, "cuda": 2}
SHARED_FROM = 128  # tokens of a prompt that are not copied for each of its answers
MEMORY_SHARE = 0.5  # of the memory that weights and training leave on the device, what keys and values may take
STOP_EVERY = 8  # tokens between two looks for stop strings
LOOK_EVERY = {"cuda": 8}  # tokens between two looks for rows that are done, by device: a look waits for the device


def handover_reason(model: Any) -> str | None:
    """Why a model is sampled by the reference and not by the loop; None where the loop knows its attention."""
    kind, implementation = text_config(model.config).model_type, model.config._attn_implementation
    if implementation not in {"sdpa", "eager"}:
        return f"its attention is computed by {implementation}"
    if not is_known(model.config):
        return f"nothing is known of the attention of the family {kind}"
    if layer_windows(model.config) is None:
        return "some of its layers have neither full nor sliding attention"
    return None


def supports(model: Any) -> bool:
    """Whether the loop knows a model's attention: layers attend to everything before, or to a sliding window."""
    return handover_reason(model) is None


class NativeSampler(HFSampler):
    """The reference sampler with a loop of its own in place of `model.generate`."""

    without_graphs: str | None = None  # why a step cannot be a graph of the device, once that is known
    handed_over_long: str | None = None  # why answers of some lengths are left to the reference, once there were such

    def refuse(self, why: str) -> None:
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
        limit = fixed_rotation_tokens(self.model.config)
        if longest > limit:
            self.handed_over_long = (
                f"positions are rotated otherwise beyond {limit:g} tokens, and there may be {longest}"
            )
            return super().generate(prompts, seeds, sampling, given)
        order = sorted(range(len(prompts)), key=lambda which: len(prompts[which]))
        waiting = deque((which, number) for which in order for number in range(len(seeds[which])))
        found: dict[Place, Completion] = {}
        with ready(self.model, self.precision):
            loop = _Loop(self, prompts, seeds, sampling, given)
            while waiting or loop.rows is not None:
                poll("rollout")
                free = loop.most - loop.live
                if waiting and (loop.rows is None or free * REFILL_SHARE >= loop.most):
                    loop.admit([waiting.popleft() for _ in range(min(free, len(waiting)))])
                else:
                    loop.step()
                found.update(loop.harvest())
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
        self.look_every = LOOK_EVERY.get(self.device.type, 1)
        self.leave_share = LEAVE_SHARE.get(self.device.type, 2)
        self.ends = torch.tensor([*sampler.ends, *_stop_ids(sampler.tokenizer, sampling.stop)], device=self.device)
        # A stop string spans at most as many tokens as it has bytes; one more may begin before it.
        self.tail = max((len(text.encode()) for text in sampling.stop), default=0) + 1
        self.most = min(sampler.rows_per_batch, self._fitting())
        self.rows: Rows | None = None
        self.live = 0  # the answers that were not finished at the last look
        self.steps = 0
        decode = decoder_of(self.model, max(map(len, prompts), default=0) + sampling.max_tokens)
        self.decode = decode if sampler.without_graphs else graphed(decode, self.device, sampler.refuse)
        # Whether answers read their prompt's keys and values where they lie; a short prompt is copied for each.
        answered = [len(prompt) for prompt, own in zip(prompts, seeds, strict=True) if len(own) > 1]
        self.shares = self.decode.shares and sum(answered) >= SHARED_FROM * max(1, len(prompts))

    def _fitting(self) -> int:
        """The rows whose keys and values, if all grow to their longest, take half of the memory that weights and
        training leave; at least 1.

        All memory of the device counts, not what is free, so that the rows that share a batch are the same whenever a
        run is made.
        """
        cuda = self.device.type == "cuda"
        whole = torch.cuda.get_device_properties(self.device).total_memory if cuda else host.whole_memory()
        left = whole - weight_bytes(self.model, self.precision) - self.reserved
        columns = max(map(len, self.prompts), default=0) + self.sampling.max_tokens
        # Under autocast values are of its precision, and keys are kept as values are.
        dtype = self.model.dtype if self.precision == torch.float32 else self.precision
        return max(1, int(left * MEMORY_SHARE / (columns * column_bytes(self.model.config, dtype))))

    def admit(self, places: Sequence[Place]) -> None:
        """Let new answers in, with their first token, beside those that go on."""
        parts, scores = [], []
        if self.rows is not None:
            going = (~self.rows.finished).nonzero().flatten()
            parts.append((self.rows, going, going))
        for chunk in chunk_prompts(places, self.prompts):
            new, source, first = self._begin(chunk)
            parts.append((new, torch.arange(len(new), device=self.device), source))
            scores.append(first)
        self.rows = packed(self.model.config, parts)
        self.live = len(self.rows)
        self._write(torch.cat(scores), len(self.rows) - len(places))

    def _begin(self, places: Sequence[Place]) -> tuple[Rows, Tensor, Tensor]:
        """New answers, each prompt computed once: their rows, where the columns of each are, and the logits of its
        first token."""
        asked = list(dict.fromkeys(which for which, _ in places))
        cache, mask, logits = prefill(self.model, [self.prompts[which] for which in asked])
        number = {which: row for row, which in enumerate(asked)}
        owner = torch.tensor([number[which] for which, _ in places], device=self.device)
        lengths = [len(self.prompts[which]) for which, _ in places]
        seeds = [self.seeds[which][number] for which, number in places]
        room = [self.room[which] for which, _ in places]
        rows = begun(places, seeds, lengths, room, self.sampling, mask[owner], cache)
        if self.shares:
            rows.share(Prompts(cache, mask, owner))
            return rows, torch.arange(len(rows), device=self.device), logits[owner]
        return rows, owner, logits[owner]

    def step(self) -> None:
        """One more token for every row."""
        rows = self.rows
        assert rows is not None
        rows.claim_column()
        last = rows.tokens.gather(1, (rows.age - 1)[:, None]).squeeze(1)
        self._write(self.decode(rows, last), 0)

    def _write(self, scores: Tensor, first: int) -> None:
        """Draw the next token of the rows from `first` on, and see which of them are done."""
        rows = self.rows
        assert rows is not None
        age, finished, at = rows.age[first:], rows.finished[first:], rows.age[first:, None]
        # A finished row's last token is fed once more; what is drawn for it lands behind its end, where nobody reads.
        uniform = None if rows.draws is None else rows.draws[first:].gather(1, at.to(rows.draws.device)).squeeze(1)
        chosen, logps = drawn(scores, uniform, self.sampling)
        rows.tokens[first:].scatter_(1, at, chosen[:, None])
        rows.logps[first:].scatter_(1, at, logps[:, None])
        age += ~finished
        finished |= (chosen[:, None] == self.ends).any(1) | (age >= rows.room[first:])
        self.steps += 1
        if self.sampling.stop and self.steps % STOP_EVERY == 0:
            self._stop_rows()

    def _stop_rows(self) -> None:
        rows = self.rows
        assert rows is not None
        ages, finished = rows.age.tolist(), rows.finished.tolist()
        for row, age in enumerate(ages):
            if not finished[row] and self._stopped(row, age) is not None:
                rows.finished[row] = True

    def _stopped(self, row: int, age: int) -> int | None:
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

    def harvest(self) -> dict[Place, Completion]:
        """The answers that are done and not yet given; where they are many, the others close up."""
        rows = self.rows
        if rows is None or self.steps % self.look_every:
            return {}
        done = rows.finished.nonzero().flatten().tolist()
        self.live = len(rows) - len(done)
        new = [row for row in done if rows.places[row] != GIVEN]
        found = dict(zip([rows.places[row] for row in new], self._completions(new), strict=True))
        for row in new:
            rows.places[row] = GIVEN
        if self.live == 0:
            self.rows = None
        elif len(done) * self.leave_share >= len(rows):
            rows.close_up()
        return found

    def _completions(self, which: Sequence[int]) -> list[Completion]:
        rows = self.rows
        assert rows is not None
        ages, tokens, logps = rows.age[which].tolist(), rows.tokens[which].tolist(), rows.logps[which].tolist()
        ends = set(self.ends.tolist())
        found = []
        for row, age, own, known in zip(which, ages, tokens, logps, strict=True):
            length = self._stopped(row, age) if self.sampling.stop else None
            ended = length is not None or own[age - 1] in ends
            length = age if length is None else length
            if not all(map(math.isfinite, known[:length])):
                raise Diverged("The model's log-probs are not finite any more: its last update has broken it.")
            found.append(Completion(tuple(own[:length]), tuple(known[:length]), "stop" if ended else "length"))
        return found


def _stop_ids(tokenizer: Any, stop: Sequence[str]) -> list[int]:
    """Added tokens that hold a whole stop string, such as </answer>: they end an answer like an end id."""
    if not stop:
        return []
    return [number for text, number in tokenizer.get_added_vocab().items() if any(one in text for one in stop)]


def make(model: Any, tokenizer: Any, ends: Sequence[int], rows_per_batch: int, precision: torch.dtype) -> HFSampler:
    """This sampler, or the reference for a model whose attention it does not know."""
    reason = handover_reason(model)
    kind = NativeSampler if reason is None else HFSampler
    sampler = kind(model, tokenizer, ends, rows_per_batch, precision)
    sampler.handed_over = reason
    return sampler
