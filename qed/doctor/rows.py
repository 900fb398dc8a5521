"""Run the work of a step without a task: a policy and a learner on random rows of given lengths."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from qed.config import plugins
from qed.config.phases import Settings
from qed.data.splits import load_problems
from qed.doctor.trial import Lengths
from qed.errors import UsageError
from qed.loops.memory import reserve_training
from qed.models import lora
from qed.models.load import check_name, find_end_ids, is_new, pick_device, read_window
from qed.models.precision import read_precision
from qed.rollout.policy import Policy, load_policy
from qed.sampling.base import Sampler, build_sampling
from qed.training.learner import Learner
from qed.training.out_of_memory import MicrobatchBudget
from qed.types import Completion, Problem, Rollout

NEVER = -1  # an end token id that is never sampled, so that every answer has its full length


class Work:
    """The work of a step for any number of rows: random tokens of fixed lengths with a real model, sampler and learner.

    Raises:
        UsageError: the model's window is shorter than such a row.
    """

    def __init__(self, settings: Settings, lengths: Lengths) -> None:
        check_name(settings.model.name)
        self.settings, self.lengths = settings, lengths
        self.policy = _load_policy(settings)
        window = read_window(self.policy.model)
        if lengths.prompt + lengths.answer > window:
            raise UsageError(
                f"{lengths.prompt} tokens of prompt and {lengths.answer} of answer do not fit the window of "
                f"{settings.model.name}, which has {window}. Use smaller --lengths."
            )
        ends = find_end_ids(self.policy.model, self.policy.tokenizer, chat=False)
        self.choice = [token for token in range(min(len(self.policy.tokenizer), 1000)) if token not in ends]
        moves = settings.algorithm.reference_moves[0] > 0  # then the reference is a separate model
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
        """Return the number of answers per prompt."""
        return self.settings.sampling.group_size

    def update(self, rows: int, at_once: int) -> None:
        """Run one optimizer step over `rows` rows, with `at_once` rows per micro-batch."""
        budget = at_once * self.lengths.row
        self.learner.budget = MicrobatchBudget(budget, repeats=False)  # rows that do not fit must raise
        self.learner.update([self._build_rollout(number) for number in range(rows)], 0)

    def answer(self, rows: int, tokens: int = 0) -> list[list[Completion]]:
        """Sample `rows` answers in one batch, of the full length or of `tokens` tokens."""
        return self._generate(_split_rows(rows, self.group), [0] * -(-rows // self.group), rows, tokens)

    def answer_and_refill(self, rows: int) -> None:
        """Sample `rows` answers in one batch at peak memory: a quarter of the answers end one token early, so that new
        answers start while the others are longest."""
        early = max(1, rows // 4)
        prefix = 1 if self.lengths.answer > 1 else 0
        last = min(self.lengths.prompt, self.lengths.answer) - 1
        blocks = [(_split_rows(early, self.group), prefix), (_split_rows(rows - early, self.group), 0)]
        blocks.append((_split_rows(early, self.group), last))
        counts = [count for shares, _ in blocks for count in shares]
        self._generate(counts, [given for shares, given in blocks for _ in shares], rows, 0)

    def _generate(self, counts: Sequence[int], given: Sequence[int], rows: int, tokens: int) -> list[list[Completion]]:
        prompts = [self._draw_tokens(("prompt", number), self.lengths.prompt) for number in range(len(counts))]
        seeds = [[number * self.group + index for index in range(count)] for number, count in enumerate(counts)]
        # `NEVER` is not in the vocabulary, so `min_tokens` cannot mask it either.
        length = tokens or self.lengths.answer
        sampling = replace(build_sampling(self.settings.sampling), max_tokens=length, min_tokens=0)
        return self._build_sampler(rows).generate(prompts, seeds, sampling, given)

    def _build_sampler(self, rows: int) -> Sampler:
        make: Any = plugins.load_leaf("samplers", self.settings.sampling.sampler).make
        model = self.policy.model
        sampler: Sampler = make(model, self.policy.tokenizer, (NEVER,), rows, read_precision(self.settings.model))
        sampler.repeats = False  # type: ignore[attr-defined]
        reserve_training(sampler, self.learner)
        return sampler

    def _build_rollout(self, number: int) -> Rollout:
        prompt = number // self.group
        return Rollout(
            Problem(f"{prompt}", "", ""),
            self._draw_tokens(("prompt", prompt), self.lengths.prompt),
            self._draw_tokens(("answer", number), self.lengths.answer),
            (-1.0,) * self.lengths.answer,
            "",
            "length",
            index=number % self.group,
            advantage=1.0 if number % 2 else -1.0,
        )

    def _draw_tokens(self, address: tuple[str, int], length: int) -> tuple[int, ...]:
        """Draw random tokens, the same ones for the same address."""
        return tuple(random.Random(str(address)).choices(self.choice, k=length))


def _load_policy(settings: Settings) -> Policy:
    """Load the policy as in a run; only a new model needs the run's problems."""
    fresh = is_new(settings.model.name)
    problems = load_problems(settings.data, settings.evaluation, settings.run.seed).problems if fresh else []
    return load_policy(settings, problems, pick_device(settings.model.device), None)


def _split_rows(rows: int, group: int) -> list[int]:
    """Split rows into prompts of at most one group each."""
    return [min(group, rows - first) for first in range(0, rows, group)]
