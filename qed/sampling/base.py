"""What every sampler offers: token ids in, token ids and log-probs out, and new weights when the policy has learned.

A sampler knows tokens and weights, nothing of problems or rewards. What is sampled is kept as it is: ids and log-probs,
the end token included, are what the learner reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from qed.types import Completion


@dataclass(frozen=True)
class Sampling:
    """How one call samples: temperature 0 is greedy, and its log-probs are then those at temperature 1.

    After the temperature, `top_k` keeps so many of the likeliest tokens, `top_p` the fewest whose probabilities reach
    that sum, `min_p` those with at least that share of the likeliest one's probability. Log-probs are those of what is
    left. Training samples from the whole distribution, because its ratios are about that one.
    """

    temperature: float
    max_tokens: int
    stop: tuple[str, ...] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0

    @property
    def whole(self) -> bool:
        """Whether every token can be drawn."""
        return self.top_p >= 1 and self.top_k == 0 and self.min_p == 0


def has_exact_logps(sampler: Sampler) -> bool:
    """Whether a sampler says that its log-probs are exact; one that does not say has none."""
    return bool(getattr(sampler, "exact_logps", False))


class Sampler(Protocol):
    """Generates answers to prompts under the weights it has loaded."""

    @property
    def exact_logps(self) -> bool:
        """Whether its log-probs are the learner's up to the rounding of float32, so that their ratio is 1."""
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        sampling: Sampling,
        given: Sequence[int] = (),
    ) -> list[list[Completion]]:
        """For each prompt as many answers as it has seeds; an answer's draws are a function of its seed alone.

        `given` says of each prompt how many of its last tokens begin the answer already: with them an answer has at
        most `max_tokens`, and what is returned is its continuation. Without it no answer is begun.
        """
        ...

    def load(self, weights: nn.Module, version: int) -> None:
        """Answer from these weights from now on."""
        ...
