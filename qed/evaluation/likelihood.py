"""Log-likelihoods of the choices of multiple-choice questions, as lm-eval 0.4.13 computes them.

A choice is scored by the log-prob of its tokens after the context. Context and choice are tokenized together and split
after the number of tokens that the context alone has; trailing spaces of the context are moved to the choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qed.errors import DataError, ModelError
from qed.evaluation.choice_formats import DELIMITER, ChoiceItem, list_labels
from qed.models.families import read_logit_transform, split_head
from qed.models.fast_float32 import compute_batches_in
from qed.types import Grade, Problem, Rollout

TOKENS_PER_PASS = 16_384  # per forward pass, including padding
POSITIONS = 256  # positions whose logits are in memory at once
TIER = "likelihood"


@dataclass(frozen=True)
class Continuation:
    """A context and a choice as token ids; `cut` counts the tokens dropped at the context's start."""

    context: tuple[int, ...]
    choice: tuple[int, ...]
    cut: int = 0


@dataclass(frozen=True)
class ChoiceScore:
    """The log-probs of the tokens of a choice, and whether every one is the most likely token at its position."""

    logps: tuple[float, ...]
    greedy: bool

    @property
    def total(self) -> float:
        """The log-likelihood of the choice."""
        return float(sum(self.logps))


@dataclass
class ChoiceRollout(Rollout):
    """A question answered by its most likely choice; `choices` holds the columns about all choices."""

    choices: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return the additional columns of its row."""
        return dict(self.choices)


def encode_pair(tokenizer: Any, context: str, choice: str, window: int) -> Continuation:
    """Encode a context and the choice that continues it.

    Args:
        tokenizer: adds its usual special tokens.
        context: a non-empty text.
        choice: the choice with the space before it.
        window: the model's context window in tokens; a longer text is truncated at its start.

    Raises:
        DataError: no token of the choice is left, because it merges with the context or the window is too small.
    """
    spaces = len(context) - len(context.rstrip())
    if spaces:
        context, choice = context[:-spaces], context[-spaces:] + choice
    before, whole = tokenizer.encode(context), tokenizer.encode(context + choice)
    own = tuple(whole[len(before) :])
    if not own or len(own) > window:
        raise DataError(f"The choice {choice.strip()[:80]!r} has {len(own)} tokens of its own; it needs 1 to {window}.")
    kept = tuple(before)[max(0, len(before) + len(own) - window - 1) :]
    return Continuation(kept, own, len(before) - len(kept))


class ChoiceScorer:
    """Scores the choices of questions with a loaded model, computing in `precision`."""

    def __init__(self, model: nn.Module, tokenizer: Any, window: int, precision: torch.dtype, rows: int) -> None:
        self.model, self.tokenizer, self.window = model, tokenizer, window
        self.precision, self.rows = precision, rows

    def answer(self, items: Sequence[ChoiceItem], step: int) -> list[ChoiceRollout]:
        """Answer each question by its most likely choice."""
        encoded = [
            [encode_pair(self.tokenizer, item.context, DELIMITER + choice, self.window) for choice in item.choices]
            for item in items
        ]
        scores = iter(self._score([each for own in encoded for each in own]))
        return [
            build_rollout(item, own, [next(scores) for _ in own], step)
            for item, own in zip(items, encoded, strict=True)
        ]

    @torch.no_grad()
    def _score(self, texts: Sequence[Continuation]) -> list[ChoiceScore]:
        """Score each text; texts that differ only in their last token share one computation."""
        inputs = [(*each.context, *each.choice)[:-1] for each in texts]
        distinct = sorted(dict.fromkeys(inputs), key=len, reverse=True)
        sharing: dict[tuple[int, ...], list[int]] = {each: [] for each in distinct}
        for number, each in enumerate(inputs):
            sharing[each].append(number)
        scores: dict[int, ChoiceScore] = {}
        for batch in self._split(distinct):
            keep = [max(len(texts[number].choice) for number in sharing[each]) for each in batch]
            for each, logits in zip(batch, self._compute_logits(batch, keep), strict=True):
                for number in sharing[each]:
                    choice = texts[number].choice
                    scores[number] = _read_score(logits[-len(choice) :], choice)
        return [scores[number] for number in range(len(texts))]

    def _split(self, inputs: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
        """Yield batches of inputs, the longest first, with a bounded number of rows and of tokens."""
        batch: list[tuple[int, ...]] = []
        for each in inputs:
            width = len(batch[0]) if batch else len(each)
            if batch and (len(batch) >= self.rows or width * (len(batch) + 1) > TOKENS_PER_PASS):
                yield batch
                batch = []
            batch.append(each)
        if batch:
            yield batch

    def _compute_logits(self, batch: Sequence[tuple[int, ...]], keep: Sequence[int]) -> Iterator[Tensor]:
        """Yield the log-softmax of the last `keep` positions of each row, [keep, V], in float32 or more.

        Rows are padded on the right, which a causal model does not attend to, so no attention mask is needed.
        """
        device = next(self.model.parameters()).device
        padded = torch.zeros(len(batch), len(batch[0]), dtype=torch.long)
        for row, each in enumerate(batch):
            padded[row, : len(each)] = torch.tensor(each)
        mask = torch.arange(len(batch[0]))[None] < torch.tensor([len(each) for each in batch])[:, None]
        attention = None if bool(mask.all()) else mask.long().to(device)
        with compute_batches_in(device.type, self.precision):
            try:
                body, head = split_head(self.model)
            except ModelError:
                yield from self._compute_from_model(batch, keep)
                return
            hidden = body(input_ids=padded.to(device), attention_mask=attention, use_cache=False).last_hidden_state
            transform = read_logit_transform(self.model)
            for row, (each, count) in enumerate(zip(batch, keep, strict=True)):
                states = hidden[row, len(each) - count : len(each)]
                logits = torch.cat([_widen(head(part)) for part in states.split(POSITIONS)])
                yield transform.apply(logits).log_softmax(-1)

    def _compute_from_model(self, batch: Sequence[tuple[int, ...]], keep: Sequence[int]) -> Iterator[Tensor]:
        """Yield the same from the model's own logits, row by row."""
        device = next(self.model.parameters()).device
        for each, count in zip(batch, keep, strict=True):
            inputs = torch.tensor([each], device=device)
            logits = self.model(input_ids=inputs, use_cache=False, logits_to_keep=count).logits[0, -count:]
            yield _widen(logits).log_softmax(-1)


def _widen(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _read_score(logps: Tensor, choice: Sequence[int]) -> ChoiceScore:
    tokens = torch.tensor(choice, device=logps.device)
    own = logps.gather(1, tokens[:, None])[:, 0]
    return ChoiceScore(tuple(own.tolist()), bool((logps.argmax(-1) == tokens).all()))


def build_rollout(
    item: ChoiceItem, texts: Sequence[Continuation], scores: Sequence[ChoiceScore], step: int
) -> ChoiceRollout:
    """Build the answer to a question from the scores of its choices; ties go to the first choice.

    Raises:
        ModelError: a score is not a number.
    """
    totals = np.array([score.total for score in scores])
    if np.isnan(totals).any():
        raise ModelError(
            f"The log-likelihood of a choice of problem {item.problem.id} is NaN: the weights are damaged, or the "
            "model needs another --precision."
        )
    chosen = int(np.argmax(totals))
    by_chars = int(np.argmax(totals / [max(1, len(choice)) for choice in item.choices]))
    by_bytes = int(np.argmax(totals / [max(1, len(choice.encode())) for choice in item.choices]))
    correct, label = chosen == item.gold, list_labels(item.problem)[chosen]
    reason = "the most likely choice" if correct else "another choice is more likely"
    grade = Grade(float(correct), correct, True, label, {"correct": float(correct)}, TIER, reason)
    columns = {
        "choices": list(item.choices),
        "gold_choice": item.gold,
        "choice_logps": [round(float(total), 6) for total in totals],
        "choice_greedy": [score.greedy for score in scores],
        "choice_tokens": [len(each.choice) for each in texts],
        "correct_norm": by_chars == item.gold,
        "correct_bytes": by_bytes == item.gold,
        "cut_tokens": max(each.cut for each in texts),
    }
    own = texts[chosen]
    rollout = ChoiceRollout(
        item.problem, own.context, own.choice, scores[chosen].logps, item.choices[chosen], "stop", version=step
    )
    return replace(rollout, prompt_text=item.context, grade=grade, choices=columns)


@dataclass(frozen=True)
class ChoicePolicy:
    """A model that answers each question by its most likely choice: the scorer, and the items by problem."""

    scorer: ChoiceScorer
    items: Mapping[str, ChoiceItem]
    about: str = ""

    def answer(self, problems: Sequence[Problem], step: int) -> list[list[Rollout]]:
        """Answer each problem once."""
        answered = self.scorer.answer([self.items[problem.id] for problem in problems], step)
        return [[rollout] for rollout in answered]
