"""A reward model in this process: `model:FOLDER`, such as one of qed reward-model, or another with one label.

A model trained by qed reward-model reads the original tokens of prompt and answer if it shares the policy's tokenizer,
and its scores are calibrated: (score - mean) / deviation over its training pairs. Any other model reads question and
answer in its own chat template, and its raw score is the reward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from qed.config.settings import ModelSettings
from qed.errors import ModelError, UsageError
from qed.models.families import split_head
from qed.models.load import pick_device, prepare_model, read_window
from qed.models.scalar_head import Calibration, load_scalar_model, read_calibration
from qed.types import Grade, Rollout

JUDGES = False


@dataclass(frozen=True)
class ModelReward:
    """Reward = the calibrated score of a reward model at the last token. It does not decide correctness."""

    folder: str = ""
    """The model's folder or hub name; model:FOLDER also sets it."""

    tokens_per_batch: int = 16384
    """Tokens per forward pass, including padding."""

    @property
    def judges(self) -> bool:
        """False, because a high score does not mean that an answer is correct."""
        return False

    @property
    def concurrency(self) -> int:
        """1, because answers are scored in batches."""
        return 1

    def prepare(self) -> None:
        """Load the model.

        Raises:
            UsageError: no model is named, or it cannot be loaded.
        """
        if not self.folder:
            raise UsageError("The reward model needs a folder: --reward model:FOLDER, such as model:runs/rm/final/hf.")
        if self.tokens_per_batch < 1:
            raise UsageError("model.tokens_per_batch must be at least 1.")
        _ = self._loaded

    def close(self) -> None:
        """Drop the scores of the last step."""
        self._scores.clear()

    def score_all(self, rollouts: Sequence[Rollout]) -> None:
        """Score the answers of a step in batches; grading them then uses these scores."""
        self._scores.clear()
        ids = [self._encode(rollout) for rollout in rollouts]
        for rows in _cut(ids, self.tokens_per_batch):
            scores = self._score([ids[row] for row in rows])
            self._scores.update({id(rollouts[row]): score for row, score in zip(rows, scores, strict=True)})

    def __call__(self, rollout: Rollout) -> Grade:
        """Score an answer.

        Raises:
            ValueError: the score is not finite.
        """
        score = self._scores.pop(id(rollout), None)
        if score is None:
            (score,) = self._score([self._encode(rollout)])
        if not math.isfinite(score):
            raise ValueError(f"the reward model's score is {score}")
        scale = self._calibration or Calibration()
        value = (score - scale.mean) / (scale.deviation or 1.0)
        return Grade(value, False, True, None, {"score": score}, tier="model", reason=f"score {score:g}")

    @cached_property
    def _scores(self) -> dict[int, float]:
        return {}

    @cached_property
    def _loaded(self) -> tuple[Any, Any]:
        """The model on its device in evaluation mode, and its tokenizer."""
        settings = ModelSettings(name=self.folder)
        try:
            model, tokenizer = load_scalar_model(settings)
        except ModelError as error:
            raise UsageError(f"The reward model:{self.folder} cannot be used. {error}") from error
        return prepare_model(model, settings, pick_device("auto")).requires_grad_(False), tokenizer

    @cached_property
    def _calibration(self) -> Calibration | None:
        return read_calibration(self._loaded[0])

    def _encode(self, rollout: Rollout) -> list[int]:
        """Return the tokens of a prompt and an answer for the model, truncated on the left to its context window."""
        model, tokenizer = self._loaded
        if self._calibration is not None and _shares_tokenizer(tokenizer, rollout):
            ids = [*rollout.prompt, *rollout.output]
        else:
            turns = [("user", rollout.problem.question), ("assistant", rollout.text)]
            if tokenizer.chat_template:
                messages = [{"role": role, "content": content} for role, content in turns]
                text = tokenizer.apply_chat_template(messages, tokenize=False)
                ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            else:
                ids = tokenizer("\n\n".join(content for _, content in turns))["input_ids"]
        return list(ids[-read_window(model) :])

    @torch.no_grad()
    def _score(self, rows: Sequence[Sequence[int]]) -> list[float]:
        """Compute the score at the last token of each row."""
        model, _ = self._loaded
        body, head = split_head(model)
        width = max(map(len, rows))
        device = head.weight.device
        ids = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=device)
        last = torch.tensor([len(row) - 1 for row in rows], device=device)
        attention = (torch.arange(width, device=device) <= last[:, None]).long()
        hidden: Tensor = body(input_ids=ids, attention_mask=attention, use_cache=False).last_hidden_state
        scores: list[float] = head(hidden[torch.arange(len(rows), device=device), last]).squeeze(-1).tolist()
        return scores


def _shares_tokenizer(tokenizer: Any, rollout: Rollout) -> bool:
    """Return whether a tokenizer decodes a prompt's tokens to its text, so that it is that of the policy."""
    if not rollout.prompt or not rollout.prompt_text or max((*rollout.prompt, *rollout.output)) >= len(tokenizer):
        return False
    return rollout.prompt_text in tokenizer.decode(list(rollout.prompt), skip_special_tokens=False)


def _cut(rows: Sequence[Sequence[int]], budget: int) -> Iterator[list[int]]:
    """Yield the indices of rows in batches of at most `budget` tokens, including padding, the shortest first."""
    batch: list[int] = []
    for number in sorted(range(len(rows)), key=lambda row: len(rows[row])):
        if batch and (len(batch) + 1) * len(rows[number]) > budget:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


reward = ModelReward()
