"""Computes the prompts of new sequences: each prompt once, and common beginnings once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from qed.sampling.native.answers import Answer
from qed.sampling.native.kept import NOTHING, KeptPrefixes, Reused
from qed.sampling.native.prefill import (
    can_pack,
    chunk_prompts,
    compute_beginning,
    count_common,
    prefill,
    prefill_behind,
)
from qed.sampling.native.sequences import SequenceId, Sequences, new_sequences
from qed.sampling.native.shared_prefix import SharedPrefix


def can_share_beginning(model: Any, columns: int, kept: KeptPrefixes | None) -> bool:
    """Return whether sequences of at most `columns` tokens can share the keys and values of a common beginning.

    Device kernels can share only whole prompts.
    """
    return kept is None and model.device.type == "cpu" and can_pack(model, columns)


class Prefiller:
    """Computes prompts for a decoding batch.

    Args:
        model: model that computes them.
        shares_prompts: whether sequences of a prompt share its keys and values; otherwise each gets a copy.
        beginning: number of tokens that all prompts begin with, and whose keys and values are shared; 0 for none.
        kept: cached prefixes from earlier turns.
    """

    def __init__(self, model: Any, shares_prompts: bool, beginning: int, kept: KeptPrefixes | None) -> None:
        self.model, self.shares_prompts, self.beginning, self.kept = model, shares_prompts, beginning, kept
        self._shared: SharedPrefix | None = None  # the beginning, once it has been computed

    def compute(
        self, answers: Mapping[SequenceId, Answer], padding: float
    ) -> Iterator[tuple[Sequences, Tensor, Tensor]]:
        """Compute the prompts of new answers, each prompt once.

        Args:
            answers: answers by id; those of one prompt are consecutive and share the first number of their id.
            padding: see `chunk_prompts`.

        Yields:
            Some sequences, the cache row of each, and the logits of their first tokens.
        """
        prompts = {index: answer.prompt for (index, _), answer in answers.items()}
        reused, common = self._find_reused(prompts)
        missing = {index: len(prompt) - max(reused[index].length, common) for index, prompt in prompts.items()}
        for chunk in chunk_prompts(list(answers), missing, padding):
            yield self._compute_chunk({each: answers[each] for each in chunk}, reused, common)

    def _find_reused(self, prompts: Mapping[int, Sequence[int]]) -> tuple[dict[int, Reused], int]:
        """Return each prompt's cached part, and the length of a common beginning to compute once along with the
        prompts."""
        if self.beginning:
            return dict.fromkeys(prompts, NOTHING), self.beginning
        known = {index: self.kept.find(prompt) if self.kept else NOTHING for index, prompt in prompts.items()}
        fresh = [prompts[index] for index, part in known.items() if part is NOTHING]
        common = count_common(fresh)
        if not common or (len(fresh) == len(known) and can_pack(self.model, max(map(len, fresh)))):
            return known, common
        beginning = compute_beginning(self.model, fresh[0][:common])
        return {index: beginning if part is NOTHING else part for index, part in known.items()}, 0

    def _compute_chunk(
        self, answers: Mapping[SequenceId, Answer], reused: Mapping[int, Reused], common: int
    ) -> tuple[Sequences, Tensor, Tensor]:
        prompts = {index: answer.prompt for (index, _), answer in answers.items()}
        if self.beginning:
            cache, mask, logits = self._compute_behind([*prompts.values()])
        else:
            cache, mask, logits = prefill(self.model, [*prompts.values()], [reused[index] for index in prompts], common)
        row_of = {index: row for row, index in enumerate(prompts)}
        owner = torch.tensor([row_of[index] for index, _ in answers], device=self.model.device)
        hottest = max((answer.sampling for answer in answers.values()), key=lambda sampling: sampling.temperature)
        sequences = new_sequences(
            list(answers),
            [answer.seed for answer in answers.values()],
            [len(answer.prompt) for answer in answers.values()],
            [answer.most for answer in answers.values()],
            hottest,
            mask[owner],
            cache,
        )
        if self.shares_prompts:
            sequences.share_prefix(SharedPrefix(cache, mask, owner))
            return sequences, torch.arange(len(sequences), device=self.model.device), logits[owner]
        if self._shared is not None:
            sequences.shared_prefix = SharedPrefix(self._shared.cache, self._shared.mask, torch.zeros_like(owner))
        return sequences, owner, logits[owner]

    def _compute_behind(self, prompts: Sequence[Sequence[int]]) -> tuple[Any, Tensor, Tensor]:
        """Compute prompts with a cache that excludes their beginning; the first computed beginning serves all."""
        beginning, cache, mask, logits = prefill_behind(self.model, prompts, self.beginning)
        if self._shared is None:
            own = mask.new_ones(1, self.beginning), mask.new_zeros(1, dtype=torch.int64)
            self._shared = SharedPrefix(beginning, *own)
        return cache, mask, logits
