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
    """How one call samples: temperature 0 is greedy, and its log-probs are then those at temperature 1."""

    temperature: float
    max_tokens: int
    stop: tuple[str, ...] = ()


class Sampler(Protocol):
    """Generates answers to prompts under the weights it has loaded."""

    def generate(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]], sampling: Sampling
    ) -> list[list[Completion]]:
        """For each prompt as many answers as it has seeds; an answer's draws are a function of its seed alone."""
        ...

    def load(self, weights: nn.Module, version: int) -> None:
        """Answer from these weights from now on."""
        ...
