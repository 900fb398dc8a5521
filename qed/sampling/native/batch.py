"""The decoding batch: sequences decoded together, each with its own sampling parameters.

A step is one forward pass for all rows. Shaping the logits, drawing tokens and checking for ends is then done by groups
of rows with equal parameters; a call of `generate` is one group. Rows can be added and removed at any time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from qed.errors import Diverged
from qed.sampling.device_memory import count_weight_bytes
from qed.sampling.draw import draw_tokens, shape_logits
from qed.sampling.hf import HFSampler
from qed.sampling.native.answers import Answer, Ends, Group, Top, find_stop, group_rows
from qed.sampling.native.cuda_graphs import with_cuda_graphs
from qed.sampling.native.decoders import choose_decoder
from qed.sampling.native.kept import KeptPrefixes
from qed.sampling.native.kv_cache import count_token_bytes
from qed.sampling.native.prefiller import Prefiller, can_share_beginning
from qed.sampling.native.projection import count_device_memory
from qed.sampling.native.sequences import (
    RETURNED,
    SequenceId,
    Sequences,
    append_tokens,
    pack_sequences,
)
from qed.sampling.recorder import SupportRecorder
from qed.types import Completion

# Finished rows are removed when at least 1 in this many rows has finished, by device. Less often on CUDA, because a
# graph must be captured again for the smaller number of rows.
COMPACT_SHARE = {"cpu": 16, "mps": 8, "cuda": 2}
MEMORY_SHARE = 0.5  # share of the device memory left by weights and training that the KV cache may use
KEPT_SHARE = 0.5  # share of that for answers that may have another turn
STOP_EVERY = 8  # steps between searches for stop strings
CHECK_EVERY = {"cuda": 8}  # steps between checks for finished rows, by device: a check waits for the device


class DecodingBatch:
    """Sequences that are decoded together, with their KV cache.

    Args:
        sampler: provides model, tokenizer, end tokens and precision.
        columns: length of the longest possible sequence, in tokens.
        share_prefixes: whether sequences of a prompt share its keys and values, if the decoder supports it.
        beginning: number of tokens that all prompts begin with, and whose keys and values all sequences share if the
            decoder supports it; 0 for none.
        refuse_graphs: called with the reason if steps cannot be CUDA graphs; None uses none.
        kept: cache of finished answers for their next turn; None keeps none.
    """

    def __init__(
        self,
        sampler: HFSampler,
        columns: int,
        share_prefixes: bool = False,
        beginning: int = 0,
        refuse_graphs: Callable[[str], None] | None = None,
        kept: KeptPrefixes | None = None,
    ) -> None:
        self.model, self.tokenizer = sampler.model, sampler.tokenizer
        self.device = sampler.model.device
        self.check_every = CHECK_EVERY.get(self.device.type, 1)
        self.compact_share = COMPACT_SHARE.get(self.device.type, 2)
        self.running: Sequences | None = None
        self.answers: dict[SequenceId, Answer] = {}  # answers that have not been returned
        self.tops: dict[SequenceId, list[Top]] = {}
        self.recorder = SupportRecorder()
        self.unfinished = 0  # sequences that had not finished at the last check
        self.steps = 0
        decode = choose_decoder(self.model, columns)
        self.decode = with_cuda_graphs(decode, self.device, refuse_graphs) if refuse_graphs else decode
        shares = self.decode.shares_prefix
        beginning = beginning if shares and not share_prefixes and can_share_beginning(self.model, columns, kept) else 0
        self.prefiller = Prefiller(self.model, share_prefixes and shares, beginning, kept)
        weights = count_weight_bytes(self.model, sampler.precision) + decode.copied_bytes
        self.available = count_device_memory(self.device) - weights - sampler.reserved
        # Under autocast, values have its dtype, and keys are stored in the dtype of values.
        dtype = self.model.dtype if sampler.precision == torch.float32 else sampler.precision
        self.token_bytes = count_token_bytes(self.model.config, dtype)
        self.kept = kept
        if kept is not None:
            kept.most = int(self.available * MEMORY_SHARE * KEPT_SHARE / self.token_bytes)
        self.ends = Ends(self.tokenizer, sampler.ends)
        self._groups: list[Group] = []  # of all rows

    def count_fitting(self, columns: int) -> int:
        """Compute how many sequences of `columns` tokens fit besides the kept prefixes; at least 1."""
        beginning = self.prefiller.beginning
        kept = self.kept.tokens if self.kept is not None else beginning
        return max(1, int((self.available * MEMORY_SHARE / self.token_bytes - kept) / (columns - beginning)))

    def schedule(self, answers: Mapping[SequenceId, Answer], padding: float = math.inf) -> None:
        """Prefill new sequences, sample their first tokens, and pack them with the unfinished ones.

        Args:
            answers: answers by id; those of one prompt are consecutive and share the first number of their id.
            padding: see `Prefiller.compute`.
        """
        self.answers |= answers
        ids = list(answers)
        parts, scores = [], []
        if self.running is not None:
            unfinished = (~self.running.finished).nonzero().flatten()
            parts.append((self.running, unfinished, unfinished))
        for sequences, cache_rows, first_scores in self.prefiller.compute(answers, padding):
            parts.append((sequences, torch.arange(len(sequences), device=self.device), cache_rows))
            scores.append(first_scores)
        self.running = pack_sequences(self.model.config, parts)
        self.recorder.start(id for id, answer in answers.items() if answer.sampling.record)
        self.unfinished = len(self.running)
        first = len(self.running) - len(ids)
        self._append_tokens(torch.cat(scores), first, self._group_rows(first))
        self._groups = self._group_rows(0)

    def _group_rows(self, first: int) -> list[Group]:
        assert self.running is not None
        return group_rows(self.running.ids[first:], self.answers, self.ends, self.device)

    def step(self) -> None:
        """Decode one token of every row."""
        sequences = self.running
        assert sequences is not None
        sequences.append_slot()
        last = sequences.tokens.gather(1, (sequences.output_lens - 1)[:, None]).squeeze(1)
        self._append_tokens(self.decode(sequences, last), 0, self._groups)

    def read_tokens(self, row: int) -> list[int]:
        """Return the tokens of a row so far."""
        sequences = self.running
        assert sequences is not None
        tokens: list[int] = sequences.tokens[row, : int(sequences.output_lens[row])].tolist()
        return tokens

    def read_new(self, sent: Mapping[SequenceId, int]) -> dict[SequenceId, tuple[list[int], list[float]]]:
        """Return tokens and log-probs of running answers after the first `sent`; finish answers with a stop string."""
        sequences = self.running
        if sequences is None or not sent:
            return {}
        lengths, finished = sequences.output_lens.tolist(), sequences.finished.tolist()
        rows = [row for row, each in enumerate(sequences.ids) if each in sent and not finished[row]]
        found = {}
        for row in rows:
            each, length = sequences.ids[row], lengths[row]
            if find_stop(self.tokenizer, sequences, row, length, self.answers[each]) is not None:
                sequences.finished[row] = True
            elif length > sent[each]:
                part = slice(sent[each], length)
                found[each] = sequences.tokens[row, part].tolist(), sequences.logps[row, part].tolist()
        return found

    def _append_tokens(self, scores: Tensor, first: int, groups: Sequence[Group]) -> None:
        """Sample the next token of the rows from `first` on, and mark rows that finish."""
        rows = self.running
        assert rows is not None
        lengths, finished = rows.output_lens[first:], rows.finished[first:]
        # A finished row is decoded until it is removed; its further tokens are written after its end and never read.
        uniform = None
        if rows.uniforms is not None:
            uniform = rows.uniforms[first:].gather(1, lengths[:, None].to(rows.uniforms.device)).squeeze(1)
        if len(groups) == 1:
            chosen, logps, ended = self._sample(groups[0], scores, lengths, uniform)
        else:
            chosen, logps, ended = lengths.new_zeros(len(lengths)), rows.logps.new_zeros(len(lengths)), finished.clone()
            for group in groups:
                part = self._sample(group, scores[group.rows], lengths[group.rows], uniform)
                for whole, values in zip((chosen, logps, ended), part, strict=True):
                    whole[group.rows] = values.to(whole.dtype)
        append_tokens(rows, first, chosen, logps, ended)
        self.steps += 1
        if self.steps % STOP_EVERY == 0 and any(group.sampling.stop for group in groups):
            self._check_stop_strings()

    def _sample(
        self, group: Group, scores: Tensor, lengths: Tensor, uniform: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the next tokens of a group's rows, their log-probs, and which of them are end tokens.

        Args:
            group: group of rows.
            scores: [rows, V], the model's logits.
            lengths: [rows], current lengths of the answers.
            uniform: random numbers of all rows; None if all are greedy.
        """
        early = None if group.least is None or not len(group.ends) else (lengths < group.least)[:, None]
        logits = shape_logits(scores, group.sampling, group.ends, early)
        drawn = None if uniform is None or group.sampling.temperature == 0 else uniform
        if drawn is not None and isinstance(group.rows, Tensor):
            drawn = drawn[group.rows.to(drawn.device)]
        chosen, logps = draw_tokens(logits, drawn)
        if group.sampling.record:
            self.recorder.append(group.ids, logits)
        if group.top:
            self._record_top(group, logits)
        return chosen, logps, (chosen[:, None] == group.ends).any(1)

    def _record_top(self, group: Group, logits: Tensor) -> None:
        dtype = torch.promote_types(logits.dtype, torch.float32)
        values, tokens = logits.log_softmax(-1, dtype).topk(min(group.top, logits.shape[-1]))
        for each, own_tokens, own_values in zip(group.ids, tokens.tolist(), values.tolist(), strict=True):
            if each in self.answers:
                pairs = zip(own_tokens, own_values, strict=True)
                self.tops.setdefault(each, []).append([pair for pair in pairs if pair[1] > -math.inf])

    def _check_stop_strings(self) -> None:
        sequences = self.running
        assert sequences is not None
        lengths, finished = sequences.output_lens.tolist(), sequences.finished.tolist()
        for row, length in enumerate(lengths):
            if finished[row]:
                continue
            answer = self.answers[sequences.ids[row]]
            if find_stop(self.tokenizer, sequences, row, length, answer) is not None:
                sequences.finished[row] = True

    def abort(self, ids: Sequence[SequenceId]) -> None:
        """Abort sequences; their rows are freed at the next check, or immediately if no others are left."""
        sequences, given_up = self.running, set(ids) & self.answers.keys()
        if sequences is None or not given_up:
            return
        for row, each in enumerate(sequences.ids):
            if each in given_up:
                sequences.finished[row] = True
                self._forget(row)
                self.tops.pop(each, None)
        if not self.answers:
            self.running, self.unfinished = None, 0

    def _forget(self, row: int) -> None:
        """Drop all state of an answer except its row."""
        assert self.running is not None
        each = self.running.ids[row]
        self.running.ids[row] = RETURNED
        self.recorder.supports.pop(each, None)
        self.answers.pop(each)

    def pop_finished(self) -> dict[SequenceId, Completion]:
        """Return the completions that finished since the last check; remove finished rows if there are many.

        The most likely tokens of an answer stay in `tops` until the caller takes them.
        """
        sequences = self.running
        if sequences is None or self.steps % self.check_every:
            return {}
        finished = sequences.finished.nonzero().flatten().tolist()
        self.unfinished = len(sequences) - len(finished)
        new = [row for row in finished if sequences.ids[row] != RETURNED]
        completions = {}
        if new:
            completions = dict(zip([sequences.ids[row] for row in new], self._build_completions(new), strict=True))
        for row in new:
            self._forget(row)
        if self.unfinished == 0:
            self.running = None
        elif len(finished) * self.compact_share >= len(sequences):
            sequences.compact()
            self._groups = self._group_rows(0)
        return completions

    def _build_completions(self, rows: Sequence[int]) -> list[Completion]:
        sequences = self.running
        assert sequences is not None
        lengths = sequences.output_lens[rows].tolist()
        tokens, logps = sequences.tokens[rows].tolist(), sequences.logps[rows].tolist()
        completions = []
        for row, output_len, row_tokens, row_logps in zip(rows, lengths, tokens, logps, strict=True):
            answer = self.answers[sequences.ids[row]]
            stop = find_stop(self.tokenizer, sequences, row, output_len, answer)
            ended = stop is not None or row_tokens[output_len - 1] in self.ends.read(answer)
            length = output_len if stop is None else stop
            row_tokens, row_logps = row_tokens[:length], row_logps[:length]
            if ended and self.kept is not None:
                self.kept.add(sequences, row, answer.prompt, row_tokens)
            support = self.recorder.finish(sequences.ids[row], length)
            completions.append(Completion(tuple(row_tokens), tuple(row_logps), "stop" if ended else "length", support))
        return completions


def require_finite(completion: Completion) -> None:
    """Require finite log-probs.

    Raises:
        Diverged: a log-prob is not finite.
    """
    if not all(map(math.isfinite, completion.logps)):
        raise Diverged("The model's log-probs are not finite any more: its last update has broken it.")
