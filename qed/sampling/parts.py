"""Splits the answers to batches of prompts into parts for several servers or ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from qed.sampling.base import PromptBatch
from qed.types import Completion


class Place(NamedTuple):
    """The place of an answer: the indices of its batch, its prompt and its seed."""

    batch: int
    prompt: int
    seed: int


def list_places(batches: Sequence[PromptBatch]) -> list[Place]:
    """Return the places of all answers, in order."""
    return [
        Place(number, index, seed)
        for number, batch in enumerate(batches)
        for index, own in enumerate(batch.seeds)
        for seed in range(len(own))
    ]


def split_places(places: Sequence[Place], count: int) -> list[list[Place]]:
    """Split places into `count` parts of about equal size; some may be empty.

    Each part has consecutive prompts of every batch, because batches often have the same prompts.
    """
    ordered = sorted(places, key=lambda place: (place.prompt, place.batch, place.seed))
    edges = [number * len(ordered) // count for number in range(count + 1)]
    return [sorted(ordered[start:end]) for start, end in pairwise(edges)]


def take_part(batches: Sequence[PromptBatch], part: Iterable[Place]) -> list[PromptBatch]:
    """Return batches that request only the answers at the given, sorted places."""
    taken: dict[int, dict[int, list[int]]] = {}
    for place in part:
        seeds = batches[place.batch].seeds[place.prompt]
        taken.setdefault(place.batch, {}).setdefault(place.prompt, []).append(seeds[place.seed])
    return [_take_prompts(batches[number], own) for number, own in taken.items()]


def _take_prompts(batch: PromptBatch, seeds: Mapping[int, list[int]]) -> PromptBatch:
    lengths = [batch.prefix_lengths[index] for index in seeds] if batch.prefix_lengths else []
    return PromptBatch([batch.prompts[index] for index in seeds], list(seeds.values()), batch.sampling, lengths)


def join_parts(
    batches: Sequence[PromptBatch], parts: Iterable[Sequence[Place]], completions: Iterable[Sequence[Completion]]
) -> list[list[list[Completion]]]:
    """Return the completions of parts as a list for each prompt of each batch."""
    found: dict[Place, Completion] = {}
    for part, own in zip(parts, completions, strict=True):
        found |= zip(part, own, strict=True)
    return [
        [[found[Place(number, index, seed)] for seed in range(len(own))] for index, own in enumerate(batch.seeds)]
        for number, batch in enumerate(batches)
    ]
