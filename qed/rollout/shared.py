"""A sampler and a grader that several ranks share: each does its part of the work, and then has the results of all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from typing import Any

from torch import nn

from qed.rewards.grader import Grader
from qed.sampling.base import Sampler, Sampling, is_remote, keep_prefixes
from qed.sampling.prefixes import PrefixTable
from qed.training.parallel import Parallel
from qed.types import Completion, Grade, Group


class SharedSampler:
    """Samples on all ranks, each its part of the answers; all ranks call it with the same prompts and seeds.

    A rank gets consecutive answers, so that it computes few prompts that another one computes too, and goes on with the
    answers that it has begun. An answer's random
    numbers have an address of their own, so it is the same on whichever rank it is sampled, up to rounding. Other
    attributes are those of the sampler.

    Args:
        sampler: of this rank.
        model: whose weights the sampler reads; if it is sharded, its weights are gathered for each call, unless the
            sampler is remote.
        parallel: the ranks.
    """

    def __init__(self, sampler: Sampler, model: nn.Module, parallel: Parallel) -> None:
        # `homes`: the rank of each answer that may go on.
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

        def sample(part: Sequence[tuple[int, int]]) -> list[Completion]:
            own: dict[int, list[int]] = {}  # the seeds of this rank's answers, by prompt
            for index, number in part:
                own.setdefault(index, []).append(seeds[index][number])
            lengths = [[prefix_lengths[index] for index in own]] if prefix_lengths else []
            sampled = self.sampler.generate([prompts[index] for index in own], list(own.values()), sampling, *lengths)
            return [completion for completions in sampled for completion in completions]

        parts = self._assign(prompts, seeds)
        # Servers have weights of their own.
        with nullcontext() if is_remote(self.sampler) else self.parallel.gather_weights(self.model):
            sampled = self.parallel.exchange(lambda: sample(parts[self.parallel.rank]))
        found = {}
        for rank, (part, completions) in enumerate(zip(parts, sampled, strict=True)):
            for (index, number), completion in zip(part, completions, strict=True):
                found[index, number] = completion
                if self.homes is not None and not self.homes.has(whole := (*prompts[index], *completion.tokens)):
                    self.homes.add(whole, rank)
        return [[found[index, number] for number in range(len(own))] for index, own in enumerate(seeds)]

    def _assign(self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]) -> list[list[tuple[int, int]]]:
        """Return the answers of each rank: those that it has begun, and else consecutive ones."""
        answers = [(index, number) for index, own in enumerate(seeds) for number in range(len(own))]
        world = self.parallel.world
        if self.homes is None or not self.homes.order:
            edges = [rank * len(answers) // world for rank in range(world + 1)]
            return [answers[start:end] for start, end in pairwise(edges)]
        parts: list[list[tuple[int, int]]] = [[] for _ in range(world)]
        for answer in answers:
            place, _ = self.homes.locate(prompts[answer[0]])
            parts[self.homes.values[place]].append(answer)
        return parts

    @contextmanager
    def keep_prefixes(self) -> Iterator[None]:
        """Let each rank keep what it computes of its answers, and continue them; see `qed.sampling.base`."""
        self.__dict__["homes"] = PrefixTable[int]()
        try:
            with keep_prefixes(self.sampler):
                yield
        finally:
            self.__dict__["homes"] = None

    def share_work(self, compute: Callable[[Sequence[Any]], list[Any]], items: Sequence[Any]) -> list[Any]:
        """Compute a list from items, each rank its part; see `qed.sampling.base.share_work`."""
        shared: list[Any] = self.parallel.map_split(compute, items)
        return shared

    def load(self, weights: nn.Module, version: int) -> None:
        """Sample with these weights from now on; see `Sampler`."""
        self.sampler.load(weights, version)


class SharedGrader:
    """Grades on all ranks, each its part of the groups; all ranks call it with the same groups.

    Args:
        grader: of this rank.
        parallel: the ranks.
    """

    def __init__(self, grader: Grader, parallel: Parallel) -> None:
        self.grader = grader
        self.parallel = parallel

    @property
    def judge(self) -> str | None:
        """What decides correctness; see `Grader`."""
        return self.grader.judge

    @property
    def checks_format(self) -> bool:
        """Whether the grades say if the format holds."""
        return self.grader.checks_format

    @property
    def functions(self) -> list[dict[str, Any]]:
        """Descriptions of a user's functions."""
        return self.grader.functions

    def __call__(self, groups: Sequence[Group]) -> list[list[Grade]]:
        """Grade the answers of each group."""
        return self.parallel.map_split(self.grader, groups)

    def close(self) -> None:
        """Stop the workers of this rank."""
        self.grader.close()


def share_sampler(sampler: Sampler, model: nn.Module, parallel: Parallel) -> Sampler:
    """Return a sampler that all ranks share; of a single process its own."""
    return sampler if parallel.world == 1 else SharedSampler(sampler, model, parallel)


def share_grader(grader: Grader, parallel: Parallel) -> Grader:
    """Return a grader that all ranks share; of a single process its own."""
    return grader if parallel.world == 1 else SharedGrader(grader, parallel)
