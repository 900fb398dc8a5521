"""A sampler and a grader shared by several ranks: each does part of the work and receives all results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import nn

from qed.rewards.grader import Grader, WrappedGrader
from qed.sampling.base import PromptBatch, Sampler, Sampling, generate_batches, is_remote, keep_prefixes
from qed.sampling.parts import Place, join_parts, list_places, split_places, take_part
from qed.sampling.prefixes import PrefixTable
from qed.training.parallel import Parallel
from qed.types import Completion, Grade, Group


class SharedSampler:
    """Splits sampling across all ranks, which must all call it with the same prompts and seeds.

    A rank gets the answers to consecutive prompts, so that few prompts are computed on several ranks, and continues the
    answers that it has begun. An answer's random numbers have their own address, so it is the same on every rank, up to
    rounding. Other attributes are those of the sampler.

    Args:
        sampler: sampler of this rank.
        model: model whose weights the sampler reads; if sharded, its weights are gathered for each call unless the
            sampler is remote.
        parallel: the ranks.
    """

    def __init__(self, sampler: Sampler, model: nn.Module, parallel: Parallel) -> None:
        # `homes`: the rank of each answer that may be continued.
        self.__dict__.update(sampler=sampler, model=model, parallel=parallel, homes=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.sampler, name, value)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix_lengths: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """Generate one completion for each seed of each prompt; see `Sampler`."""
        return self.generate_batches([PromptBatch(prompts, seeds, sampling, prefix_lengths)])[0]

    def generate_batches(self, batches: Sequence[PromptBatch]) -> list[list[list[Completion]]]:
        """Generate the completions of several batches, gathering weights once for all."""
        parts = self._assign(batches)

        def sample() -> list[Completion]:
            own = take_part(batches, parts[self.parallel.rank])
            return [one for rows in generate_batches(self.sampler, own) for row in rows for one in row]

        # Servers have their own weights.
        with nullcontext() if is_remote(self.sampler) else self.parallel.gather_weights(self.model):
            sampled = self.parallel.exchange(sample)
        if self.homes is not None:
            for rank, (part, completions) in enumerate(zip(parts, sampled, strict=True)):
                for place, completion in zip(part, completions, strict=True):
                    whole = (*batches[place.batch].prompts[place.prompt], *completion.tokens)
                    if not self.homes.has(whole):
                        self.homes.add(whole, rank)
        return join_parts(batches, parts, sampled)

    def _assign(self, batches: Sequence[PromptBatch]) -> list[list[Place]]:
        """Return the answers of each rank: those that it has begun, otherwise those to consecutive prompts."""
        places, world = list_places(batches), self.parallel.world
        if self.homes is None or not self.homes.order:
            return split_places(places, world)
        parts: list[list[Place]] = [[] for _ in range(world)]
        for place in places:
            home, _ = self.homes.locate(batches[place.batch].prompts[place.prompt])
            parts[self.homes.values[home]].append(place)
        return parts

    @contextmanager
    def keep_prefixes(self) -> Iterator[None]:
        """Let each rank cache its computations for its answers, and continue them; see `qed.sampling.base`."""
        self.__dict__["homes"] = PrefixTable[int]()
        try:
            with keep_prefixes(self.sampler):
                yield
        finally:
            self.__dict__["homes"] = None

    def share_work(self, compute: Callable[[Sequence[Any]], list[Any]], items: Sequence[Any]) -> list[Any]:
        """Compute a list from items, split across the ranks; see `qed.sampling.base.share_work`."""
        shared: list[Any] = self.parallel.map_split(compute, items)
        return shared

    def load(self, weights: nn.Module, version: int) -> None:
        """Use these weights for sampling from now on; see `Sampler`."""
        self.sampler.load(weights, version)


@dataclass(frozen=True)
class SharedGrader(WrappedGrader):
    """Splits grading across all ranks, which must all call it with the same groups."""

    parallel: Parallel

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Grade the answers of each group."""
        return self.parallel.map_split(self.grader, groups)


def share_sampler(sampler: Sampler, model: nn.Module, parallel: Parallel) -> Sampler:
    """Return a sampler shared by all ranks; with a single process, the sampler itself."""
    return sampler if parallel.world == 1 else SharedSampler(sampler, model, parallel)


def share_grader(grader: Grader, parallel: Parallel) -> Grader:
    """Return a grader shared by all ranks; with a single process, the grader itself."""
    return grader if parallel.world == 1 else SharedGrader(grader, parallel)
