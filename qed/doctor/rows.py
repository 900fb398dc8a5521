"""A step's work without a task: a policy, a learner, and rows of the lengths that are asked about."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from qed.config import plugins
from qed.config.phases import Settings
from qed.data.splits import load_problems
from qed.errors import UsageError
from qed.loops.memory import reserve_training
from qed.models import lora
from qed.models.load import check_name, find_end_ids, is_new, pick_device, read_precision, read_window
from qed.rollout.policy import Policy, load_policy
from qed.sampling.base import Sampler, Sampling
from qed.training.learner import Learner
from qed.types import Completion, Problem, Rollout

NEVER = -1  # an id that no model draws, so that every answer has its full length


@dataclass(frozen=True)
class Lengths:
    """How many tokens a prompt and its answer have."""

    prompt: int
    answer: int

    @property
    def row(self) -> int:
        """The tokens of one row as the learner counts them: the last one is a label alone."""
        return self.prompt + self.answer - 1


class Work:
    """What a step does, for any number of rows: random tokens of fixed lengths, a real model, sampler and learner.

    Raises:
        UsageError: the model's window is shorter than such a row.
    """

    def __init__(self, settings: Settings, lengths: Lengths) -> None:
        check_name(settings.model.name)
        self.settings, self.lengths = settings, lengths
        self.policy = _load_policy(settings)
        room = read_window(self.policy.model)
        if lengths.prompt + lengths.answer > room:
            raise UsageError(
                f"{lengths.prompt} tokens of prompt and {lengths.answer} of answer do not fit the window of "
                f"{settings.model.name}, which holds {room}. Ask with smaller --lengths."
            )
        ends = find_end_ids(self.policy.model, self.policy.tokenizer, chat=False)
        self.choice = [token for token in range(min(len(self.policy.tokenizer), 1000)) if token not in ends]
        moves = settings.algorithm.reference_moves[0] > 0  # then the reference is a model of its own
        adapted = settings.algorithm.reference and not moves and lora.has_adapters(self.policy.model)
        self.learner = Learner(
            self.policy.model,
            settings.algorithm,
            settings.learner,
            temperature=settings.sampling.temperature,
            length=lengths.answer,
            precision=read_precision(settings.model),
            reference=lora.AdapterDisabled(self.policy.model) if adapted else None,
        )

    @property
    def group(self) -> int:
        """The answers to one prompt."""
        return self.settings.sampling.group_size

    def update(self, rows: int, at_once: int) -> None:
        """One optimizer step over some rows, of which `at_once` are computed together."""
        budget = at_once * self.lengths.row
        self.learner.settings = replace(self.learner.settings, tokens_per_microbatch=budget)
        self.learner.update([self._rollout(number) for number in range(rows)], 0)

    def answer(self, rows: int, tokens: int = 0) -> list[list[Completion]]:
        """Sample so many answers side by side, of the full length or of fewer tokens."""
        return self._generate(_deal_rows(rows, self.group), [0] * -(-rows // self.group), rows, tokens)

    def answer_and_refill(self, rows: int) -> None:
        """Sample so many answers side by side, with the costliest moment of it: some are done a token before the
        others, so that their places are filled while the others are longest."""
        some = max(1, rows // 4)
        begun = 1 if self.lengths.answer > 1 else 0
        last = min(self.lengths.prompt, self.lengths.answer) - 1
        blocks = [(_deal_rows(some, self.group), begun), (_deal_rows(rows - some, self.group), 0)]
        blocks.append((_deal_rows(some, self.group), last))
        counts = [count for shares, _ in blocks for count in shares]
        self._generate(counts, [given for shares, given in blocks for _ in shares], rows, 0)

    def _generate(self, counts: Sequence[int], given: Sequence[int], rows: int, tokens: int) -> list[list[Completion]]:
        prompts = [self._tokens(("prompt", number), self.lengths.prompt) for number in range(len(counts))]
        seeds = [[number * self.group + own for own in range(count)] for number, count in enumerate(counts)]
        sampling = Sampling(self.settings.sampling.temperature, tokens or self.lengths.answer)
        return self._sampler(rows).generate(prompts, seeds, sampling, given)

    def _sampler(self, rows: int) -> Sampler:
        make: Any = plugins.load_leaf("samplers", self.settings.sampling.sampler).make
        model = self.policy.model
        sampler: Sampler = make(model, self.policy.tokenizer, (NEVER,), rows, read_precision(self.settings.model))
        reserve_training(sampler, self.learner)
        return sampler

    def _rollout(self, number: int) -> Rollout:
        prompt = number // self.group
        return Rollout(
            Problem(f"{prompt}", "", ""),
            self._tokens(("prompt", prompt), self.lengths.prompt),
            self._tokens(("answer", number), self.lengths.answer),
            (-1.0,) * self.lengths.answer,
            "",
            "length",
            index=number % self.group,
            advantage=1.0 if number % 2 else -1.0,
        )

    def _tokens(self, address: tuple[str, int], length: int) -> tuple[int, ...]:
        """Random tokens, the same ones for the same address."""
        return tuple(random.Random(str(address)).choices(self.choice, k=length))


def _load_policy(settings: Settings) -> Policy:
    """The policy as a run makes it; only a model from nothing is made of the run's own problems."""
    fresh = is_new(settings.model.name)
    problems = load_problems(settings.data, settings.evaluation, settings.run.seed).problems if fresh else []
    return load_policy(settings, problems, pick_device(settings.model.device), None)


def _deal_rows(rows: int, group: int) -> list[int]:
    """Rows dealt to prompts, at most a group each."""
    return [min(group, rows - first) for first in range(0, rows, group)]
