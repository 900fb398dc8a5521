"""The interface of samplers: token ids in, token ids and log-probs out, and new weights after an update.

A sampler works with tokens and weights, not with problems or rewards. The learner reads the sampled ids and log-probs
unchanged, including the end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from qed.types import Completion


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters. Temperature 0 is greedy, with the log-probs of temperature 1.

    After the temperature, `top_k` keeps that many of the most likely tokens, `top_p` the smallest set whose
    probabilities reach that sum, `min_p` those with at least that share of the largest probability. Log-probs are those
    of the truncated distribution. Training samples from the full distribution, to which its ratios refer.
    """

    temperature: float
    max_tokens: int
    stop: tuple[str, ...] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def whole(self) -> bool:
        """Return whether the distribution is not truncated, so that every token can be sampled."""
        return self.top_p >= 1 and self.top_k == 0 and self.min_p == 0


def has_exact_logps(sampler: Sampler) -> bool:
    """Return a sampler's `exact_logps`; False if it has no such attribute."""
    return bool(getattr(sampler, "exact_logps", False))


class Sampler(Protocol):
    """Generates completions of prompts with the weights it has loaded."""

    @property
    def exact_logps(self) -> bool:
        """Return whether its log-probs equal the learner's up to float32 rounding, so that their ratio is 1."""
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        prefix_lengths: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """Generate one completion for each seed of each prompt; its random numbers depend on its seed alone.

        Args:
            prompts: token ids.
            seeds: of each prompt, one for each completion.
            sampling: temperature, maximum length and stop strings.
            prefix_lengths: of each prompt, how many of its last tokens are already part of the answer. They count
                towards `max_tokens`, and only the continuation is returned. Empty means 0 for all prompts.
        """
        ...

    def load(self, weights: nn.Module, version: int) -> None:
        """Sample with these weights from now on; `version` is the step that made them."""
        ...
