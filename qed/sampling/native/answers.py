"""The answers of a decoding batch: their parameters, their groups of equal parameters, and how they end."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from qed.sampling.base import Sampling
from qed.sampling.hf import completes_stop, find_stop_ids
from qed.sampling.native.sequences import RETURNED, SequenceId, Sequences

Top = list[tuple[int, float]]  # the most likely tokens of a position with their log-probs


@dataclass(frozen=True, eq=False)
class Answer:
    """An answer to sample.

    The last `given` tokens of the prompt are already part of the answer. `ends` replaces the sampler's end tokens. The
    `top` most likely tokens are recorded at each position.
    """

    prompt: Sequence[int]
    seed: int
    sampling: Sampling
    given: int = 0
    ends: tuple[int, ...] | None = None
    top: int = 0

    @property
    def most(self) -> int:
        """Return the largest number of tokens to sample."""
        return self.sampling.max_tokens - self.given

    @property
    def least(self) -> int:
        """Return how many tokens must be sampled before an end: `min_tokens` minus the given tokens."""
        return self.sampling.min_tokens - self.given

    @property
    def group(self) -> Hashable:
        """Return the parameters that answers of a group share; lengths are counted per row."""
        return replace(self.sampling, max_tokens=0, min_tokens=0), self.ends, self.top


@dataclass(frozen=True)
class Group:
    """Rows with equal sampling parameters."""

    rows: Tensor | slice
    ids: list[SequenceId]
    sampling: Sampling
    ends: Tensor  # [E] int64
    least: Tensor | None  # [rows] int64: tokens before an end; None if all answers may end immediately
    top: int


class Ends:
    """The tokens that end an answer: its end tokens, and added tokens that contain one of its stop strings.

    Args:
        tokenizer: lists the added tokens.
        ends: end tokens of answers that do not set their own.
    """

    def __init__(self, tokenizer: Any, ends: Sequence[int]) -> None:
        self.tokenizer, self.ends = tokenizer, tuple(ends)
        self.known: dict[Hashable, tuple[int, ...]] = {}

    def read(self, answer: Answer) -> tuple[int, ...]:
        """Return the tokens that end an answer."""
        key = answer.ends, answer.sampling.stop
        if key not in self.known:
            own = self.ends if answer.ends is None else answer.ends
            self.known[key] = (*own, *find_stop_ids(self.tokenizer, answer.sampling.stop))
        return self.known[key]


def group_rows(
    ids: Sequence[SequenceId], answers: Mapping[SequenceId, Answer], ends: Ends, device: torch.device
) -> list[Group]:
    """Group rows by their sampling parameters; rows whose answers have been returned belong to no group.

    A single group takes all rows as views; returned rows are computed along with it until they are removed.
    """
    members: dict[Hashable, list[int]] = {}
    known: dict[Hashable, list[int]] = {}  # by the identity of the parameters object, which the answers of a call share
    for row, each in enumerate(ids):
        if each != RETURNED:
            answer = answers[each]
            key = id(answer.sampling), answer.ends, answer.top
            if key not in known:
                known[key] = members.setdefault(answer.group, [])
            known[key].append(row)
    groups = []
    for rows in members.values():
        chosen = range(len(ids)) if len(members) == 1 else rows
        leader = answers[ids[rows[0]]]
        least = [0 if ids[row] == RETURNED else answers[ids[row]].least for row in chosen]
        groups.append(
            Group(
                slice(None) if len(members) == 1 else torch.tensor(rows, device=device),
                [ids[row] for row in chosen],
                leader.sampling,
                torch.tensor(ends.read(leader), dtype=torch.int64, device=device),
                torch.tensor(least, device=device) if any(count > 0 for count in least) else None,
                leader.top,
            )
        )
    return groups


def find_stop(tokenizer: Any, sequences: Sequences, row: int, output_len: int, answer: Answer) -> int | None:
    """Return the number of tokens up to the end of a row's first stop string; None if there is none."""
    stop, early = answer.sampling.stop, answer.sampling.min_tokens > 0
    if not stop:
        return None
    if early:
        sequences.checked[row] = max(sequences.checked[row], min(answer.least, output_len))
    # A stop string spans at most as many tokens as it has bytes, plus one that begins before it.
    tail = max(len(text.encode()) for text in stop) + 1
    begin = max(0, sequences.checked[row] - tail)
    tokens = sequences.tokens[row, begin:output_len].tolist()
    text = tokenizer.decode(tokens, skip_special_tokens=False)
    if any(string in text for string in stop):
        for length in range(sequences.checked[row] + 1, output_len + 1):
            window = tokens[max(0, length - tail - begin) : length - begin]
            decoded = tokenizer.decode(window, skip_special_tokens=False)
            found = any(string in decoded for string in stop)
            # A stop string within the first `min_tokens` tokens does not count.
            if found and (not early or completes_stop(tokenizer, window, stop)):
                return length
    sequences.checked[row] = output_len
    return None
